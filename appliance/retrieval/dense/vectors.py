"""Owns the arithmetic on vectors: which are accepted, their exact cosines, the best of a scan.

Must not know where vectors are kept.

Vectors are kept as float16, as the store has them. A cosine is the inner product of a float32 question with such a
row and is computed in one way everywhere, row by row, so that it does not depend on where the vector lies now or
which others are asked for beside it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from appliance.retrieval.dense.types import Floats, Hits, Ids

Halves = npt.NDArray[np.float16]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_UNIT_TOLERANCE = 1e-2
_TWICE = 4096  # from so many rows on, a scan with half of the question's digits comes first
_BLOCK = 65_536  # rows that a scan takes at once


class Query:
    """A question as the scan needs it: two float16 vectors whose sum is the float32 one to within 2^-22."""

    def __init__(self, vector: Floats) -> None:
        """`vector` `(dim,)` is float32, of unit length."""
        self.vector = np.ascontiguousarray(vector, np.float32)
        self._both = np.empty((2, len(self.vector)), np.float16)
        self._both[0] = self.vector
        self._both[1] = self.vector - self._both[0]

    def cosines(self, rows: Halves) -> Floats:
        """Exact cosines of `rows` `(n, dim)`."""
        import numkong

        if not len(rows):
            return np.empty(0, np.float32)
        parts = np.asarray(numkong.cdist(self._both, rows, "dot"))
        return np.asarray(parts[0] + parts[1], np.float32)

    def nearest(self, rows: Halves, k: int, alive: Mask | None = None) -> tuple[Rows, Floats]:
        """Places and exact cosines of the best `k` of `rows`, and of all that tie with the last of them.

        In no order. `alive` `(n,)` tells which may be taken; None: all.
        """
        if len(rows) < _TWICE:
            places = np.arange(len(rows)) if alive is None else np.flatnonzero(alive)
            return _at_least(places, self.cosines(rows if alive is None else rows[places]), k)
        rough = self._rough(rows)
        if alive is not None:
            rough[~alive] = -np.inf
        places = np.arange(len(rows))
        if k < len(rough):
            floor = np.partition(rough, len(rough) - k)[len(rough) - k] - 2 * self._error()
            places = np.flatnonzero(rough >= floor)
        places = places[rough[places] > -np.inf]
        return _at_least(places, self.cosines(rows[places]), k)

    def _error(self) -> float:
        """How far a rough cosine may be off: by what the rest of the question adds, and the kernel's rounding."""
        return float(np.linalg.norm(self._both[1].astype(np.float32))) * (1 + _UNIT_TOLERANCE) + 1e-5

    def _rough(self, rows: Halves) -> Floats:
        import numkong

        rough = np.empty(len(rows), np.float32)
        for begin in range(0, len(rows), _BLOCK):
            block = rows[begin : begin + _BLOCK]
            rough[begin : begin + len(block)] = np.asarray(numkong.cdist(self._both[:1], block, "dot"))[0]
        return rough


def best(ids: Ids, scores: Floats, k: int) -> Hits:
    """The `k` of the highest scores, best first, ties by id."""
    order = np.lexsort((ids, -scores))[:k]
    return ids[order], np.asarray(scores[order], np.float32)


def check_vectors(vectors: Floats) -> None:
    """Refuse what would spoil the neighbours of others.

    Raises:
        ValueError: a vector is not finite or not of unit length.
    """
    if not np.isfinite(vectors).all():
        raise ValueError("a vector is not finite")
    if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=_UNIT_TOLERANCE):
        raise ValueError("a vector is not of unit length")


def as_unit(vectors: npt.NDArray[np.floating]) -> Floats:
    """Stored vectors `(n, dim)` float16 as float32 of unit length: rounding to half precision moved it."""
    wide = np.asarray(vectors, np.float32)
    if not len(wide):
        return wide
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.ascontiguousarray(wide / np.where(norms == 0, 1.0, norms))


def _at_least(places: Rows, scores: Floats, k: int) -> tuple[Rows, Floats]:
    """The best `k`, and everything that ties with the last of them: ids decide later."""
    if k >= len(scores):
        return places, scores
    chosen = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
    return places[chosen], scores[chosen]
