"""Owns whom to blame when the engine dies: in how small a company a request runs then, and what is refused for good.

Must not know processes or messages; a request is the digest of its content here, so that one sent anew is the same.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

REMEMBERED = 256  # digests of each kind; the one that was heard of least recently is forgotten
SPLIT = 4


@dataclass(slots=True)
class _Record:
    deaths: int = 0
    company: float = math.inf


class Suspects:
    """The rule by which a request that kills the engine is told from those that only ran beside it.

    1. After its first death a request is resumed together with all others: most deaths are nobody's fault.
    2. After its second death, and each further one, it may share the engine with at most a quarter as many as were
       blamed for that death (itself included, so with fewer than four: alone).
    3. It is guilty when it is blamed for a second or later death at which nothing else was in the engine.
    4. One that is answered to its end is cleared: nothing is held against it any more.

    Hence nobody is found guilty but who was there at two deaths and alone at the last; and nobody is failed for
    another's fault, only delayed. One that kills whenever it runs is found after at most 3 + log4(n) deaths, n being
    the number of requests in the engine at its second death.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._guilty: OrderedDict[bytes, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether anything is held against anyone."""
        return bool(self._records or self._guilty)

    def company(self, digest: bytes) -> float:
        """The most requests that may be in the engine together with this one, itself included."""
        record = self._records.get(digest)
        return record.company if record else math.inf

    def guilty(self, digest: bytes) -> bool:
        """Whether this content is to be refused."""
        if digest not in self._guilty:
            return False
        self._guilty.move_to_end(digest)
        return True

    def blame(self, digests: Sequence[bytes], *, alone: bool) -> bytes | None:
        """The engine died.

        Args:
            digests: of each request that may be at fault, equal ones as often as they ran.
            alone: nothing else was in the engine than the one request of `digests`.

        Returns:
            The one that is guilty.
        """
        guilty = None
        for digest in dict.fromkeys(digests):
            record = self._records.setdefault(digest, _Record())
            self._records.move_to_end(digest)
            record.deaths += 1
            if record.deaths < 2:
                continue
            record.company = max(1, len(digests) // SPLIT)
            if alone:
                guilty = digest
        # Those of this death are the last in order: none of them is forgotten before the next one.
        while len(self._records) > max(REMEMBERED, len(digests)):
            self._records.popitem(last=False)
        if guilty is not None:
            del self._records[guilty]
            self._guilty[guilty] = None
            if len(self._guilty) > REMEMBERED:
                self._guilty.popitem(last=False)
        return guilty

    def clear(self, digest: bytes) -> None:
        """A request was answered to its end."""
        self._records.pop(digest, None)
