"""Owns the order in which the vectors of several parts are written as one.

Must not know where they are written, nor when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from appliance.retrieval.dense.types import Ids
from appliance.retrieval.dense.vectors import Halves, Rows
from appliance.retrieval.dense.walk import Part

_BLOCK = 16_384


class Merge:
    """What is alive in some parts at this moment, by id."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._alive = [np.flatnonzero(~part.dead) for part in parts]
        ids = np.concatenate([part.ids[rows] for part, rows in zip(parts, self._alive, strict=True)])
        self._order = np.argsort(ids, kind="stable")
        self.ids: Ids = ids[self._order]
        self._part_of = np.repeat(np.arange(len(parts)), [len(rows) for rows in self._alive])[self._order]
        self._row_of = np.concatenate(self._alive)[self._order]

    def blocks(self) -> Iterator[Halves]:
        """The vectors `(any, dim)`, in the order of `ids`."""
        for begin in range(0, len(self.ids), _BLOCK):
            parts, rows = self._part_of[begin : begin + _BLOCK], self._row_of[begin : begin + _BLOCK]
            block = np.empty((len(rows), self._parts[0].vectors.shape[1]), np.float16)
            for number, part in enumerate(self._parts):
                own = parts == number
                block[own] = part.vectors[rows[own]]
            yield block

    def died_since(self, now: Mapping[object, Part]) -> Rows:
        """Places in `ids` of what was removed from the parts since.

        Args:
            now: the parts as they are now, by their series.
        """
        died = [now[part.series].dead[rows] for part, rows in zip(self._parts, self._alive, strict=True)]
        return np.flatnonzero(np.concatenate(died)[self._order])
