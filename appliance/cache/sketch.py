"""Owns how often keys were asked for, about, in little memory: a count-min sketch that ages.

Must not know what is asked for.
"""

from __future__ import annotations

import hashlib

import numpy as np

_ROWS = 4
_WIDTH = 4096  # with as many keys as a row is wide, four rows overestimate one key in about six, by one
_MOST = 255


class Sketch:
    """Estimates that are never too low (Cormode and Muthukrishnan 2005); halved after every `period` counts, as
    TinyLFU does (arXiv 1512.00727), so that yesterday's questions fade."""

    def __init__(self, period: int = 10 * _WIDTH) -> None:
        self._counts = np.zeros((_ROWS, _WIDTH), np.uint8)
        self._period = period
        self._counted = 0

    def count(self, key: bytes) -> int:
        """Count a key once more; how often it was counted lately."""
        places = self._places(key)
        least = int(self._counts[range(_ROWS), places].min())
        if least < _MOST:  # conservative: only what is the estimate is raised
            row = self._counts[range(_ROWS), places]
            self._counts[range(_ROWS), places] = np.maximum(row, least + 1)
        self._counted += 1
        if self._counted >= self._period:
            self._counts >>= 1
            self._counted = 0
        return min(least + 1, _MOST)

    def estimate(self, key: bytes) -> int:
        """How often a key was counted lately."""
        return int(self._counts[range(_ROWS), self._places(key)].min())

    @staticmethod
    def _places(key: bytes) -> list[int]:
        digest = hashlib.blake2b(key, digest_size=2 * _ROWS).digest()
        return [int.from_bytes(digest[2 * row : 2 * row + 2], "big") % _WIDTH for row in range(_ROWS)]
