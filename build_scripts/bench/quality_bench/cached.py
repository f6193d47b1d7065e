"""Owns the caches of what the models said: vectors and logits by a digest of what they were asked.

Must not know what the texts are for.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from appliance.inference.protocols import Embedder, Embeddings, Reranker

_DIGEST_BYTES = 16
_SAVE_EVERY_S = 15.0
_AT_ONCE = 64  # texts or pairs between two looks at the clock


class Rows:
    """Float32 rows by digest, in two `.npy` files that are replaced whole."""

    def __init__(self, stem: Path) -> None:
        self._digests, self._values = stem.with_suffix(".keys.npy"), stem.with_suffix(".rows.npy")
        self._rows: dict[bytes, npt.NDArray[np.float32]] = {}
        self._saved = 0
        if self._digests.exists() and self._values.exists():
            digests = np.load(self._digests, allow_pickle=False)
            values = np.load(self._values, allow_pickle=False)
            # The files are replaced one after the other: after a crash between, the older one is the shorter.
            for digest, row in zip(digests, values, strict=False):
                self._rows[digest.tobytes()] = row
            self._saved = len(self._rows)

    def missing(self, digests: Sequence[bytes]) -> list[int]:
        """Places of the digests that are not known, the first of each."""
        seen: set[bytes] = set()
        places: list[int] = []
        for place, digest in enumerate(digests):
            if digest not in self._rows and digest not in seen:
                seen.add(digest)
                places.append(place)
        return places

    def get(self, digests: Sequence[bytes]) -> npt.NDArray[np.float32]:
        """(n, width) rows; all must be known."""
        return np.stack([self._rows[digest] for digest in digests])

    def put(self, digests: Sequence[bytes], rows: npt.NDArray[np.float32]) -> None:
        """Remember `rows` (n, width)."""
        self._rows.update(zip(digests, rows, strict=True))

    def save(self) -> None:
        """Write what is new."""
        if len(self._rows) == self._saved:
            return
        self._digests.parent.mkdir(parents=True, exist_ok=True)
        digests = np.frombuffer(b"".join(self._rows), np.uint8).reshape(-1, _DIGEST_BYTES)
        for path, array in ((self._digests, digests), (self._values, np.stack(list(self._rows.values())))):
            beside = path.with_suffix(".new.npy")
            np.save(beside, array, allow_pickle=False)
            beside.replace(path)
        self._saved = len(self._rows)


class CachedEmbedder:
    """An `Embedder` that asks another one for what it was never asked before."""

    def __init__(self, inner: Embedder, rows: Rows, say: Callable[[str], None]) -> None:
        self._inner, self._rows, self._say = inner, rows, say

    @property
    def dim(self) -> int:
        return self._inner.dim

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    @property
    def max_tokens(self) -> int:
        return self._inner.max_tokens

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return self._inner.count_tokens(texts)

    def embed_queries(self, texts: Sequence[str]) -> Embeddings:
        return self._embed("query", texts, self._inner.embed_queries)

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        return self._embed("passage", texts, self._inner.embed_passages)

    def save(self) -> None:
        """Write what is new."""
        self._rows.save()

    def _embed(self, kind: str, texts: Sequence[str], embed: Callable[[Sequence[str]], Embeddings]) -> Embeddings:
        digests = [_digest(self.fingerprint, kind, text) for text in texts]
        missing = sorted(self._rows.missing(digests), key=lambda place: len(texts[place]))
        saved = time.monotonic()
        for begin in range(0, len(missing), _AT_ONCE):
            places = missing[begin : begin + _AT_ONCE]
            self._rows.put([digests[place] for place in places], embed([texts[place] for place in places]))
            if time.monotonic() - saved > _SAVE_EVERY_S:
                self._rows.save()
                saved = time.monotonic()
                self._say(f"{begin + len(places)} of {len(missing)} texts embedded")
        return self._rows.get(digests)


class CachedReranker:
    """Asks a `Reranker` for the pairs it was never asked before, without a budget."""

    def __init__(self, inner: Reranker, label: str, rows: Rows, say: Callable[[str], None]) -> None:
        """`label` tells models apart."""
        self._inner, self._label, self._rows, self._say = inner, label, rows, say
        self._scored = 0  # new pairs
        self._saved = time.monotonic()

    def logits(self, query: str, passages: Sequence[str]) -> npt.NDArray[np.float64]:
        """(n,) of the passages, in their order."""
        digests = [_digest(self._label, query, passage) for passage in passages]
        missing = self._rows.missing(digests)
        if missing:
            found = self._inner.score(query, [passages[place] for place in missing]).logits
            self._rows.put([digests[place] for place in missing], np.array(found, np.float32)[:, None])
            self._scored += len(missing)
            if time.monotonic() - self._saved > _SAVE_EVERY_S:
                self.save()
                self._say(f"{self._scored} new pairs reranked")
        return self._rows.get(digests)[:, 0].astype(np.float64)

    def save(self) -> None:
        """Write what is new."""
        self._rows.save()
        self._saved = time.monotonic()


def _digest(*parts: str) -> bytes:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=_DIGEST_BYTES).digest()
