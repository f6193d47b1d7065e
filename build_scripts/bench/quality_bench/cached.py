"""Owns the caches of what the models said: vectors and logits by a digest of what they were asked.

Must not know what the texts are for.
"""

from __future__ import annotations

import hashlib
import os
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
    """Float32 rows of one width by digest, in a `.npy` file that is replaced whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[bytes, npt.NDArray[np.float32]] = {}
        if path.exists():
            kept = np.load(path, allow_pickle=False)
            self._rows = {digest.tobytes(): row for digest, row in zip(kept["digest"], kept["row"], strict=True)}
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
        self._path.parent.mkdir(parents=True, exist_ok=True)
        rows = np.stack(list(self._rows.values()))
        kept = np.empty(len(rows), [("digest", np.void, _DIGEST_BYTES), ("row", np.float32, rows.shape[1:])])
        kept["digest"], kept["row"] = np.frombuffer(b"".join(self._rows), np.dtype((np.void, _DIGEST_BYTES))), rows
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        with beside.open("wb") as stream:
            np.save(stream, kept, allow_pickle=False)
        beside.replace(self._path)
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
