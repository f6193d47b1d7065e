"""Owns how one part of a tier is searched: by its graph or whole, so that neither filter nor removal costs recall.

Must not know what parts there are.

A walk gives the nearest `ef` of all rows. Those that may be taken among them are the nearest that may be taken: if
there are as many as are to be scored exactly, the walk found what a walk over them alone would have found. If there
are fewer it is repeated with a greater ef, as long as that is cheaper than to scan them all.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

import numpy as np

from appliance.retrieval.dense.effort import Efforts, effort_for
from appliance.retrieval.dense.types import Asked, Floats, Hits, Ids
from appliance.retrieval.dense.vectors import Halves, Mask, Query, Rows

_ROWS_AN_EF = 8  # rows that a scan does in the time that a walk needs for one more candidate
_NONE: Hits = (np.empty(0, np.int64), np.empty(0, np.float32))


class Part(Protocol):
    """Vectors, some of them removed, with a graph over the first of them."""

    @property
    def name(self) -> str:
        """For `Asked.part`."""

    @property
    def ids(self) -> Ids:
        """Of every row."""

    @property
    def vectors(self) -> Halves:
        """Of every row `(n, dim)`."""

    @property
    def dead(self) -> Mask:
        """Rows that were removed `(n,)`."""

    @property
    def alive(self) -> int:
        """How many were not."""

    @property
    def series(self) -> object:
        """The same for all versions of a part, in which more or less is removed."""

    @property
    def walked(self) -> int:
        """The graph has the rows before this one."""

    @property
    def efforts(self) -> Efforts:
        """Of the graph."""

    def rows_of(self, ids: Ids) -> Rows:
        """The row of each id `(n,)`, removed or not; -1 where there is none."""

    def walk(self, vector: Floats, ef: int) -> Rows:
        """The rows nearest to `vector` by the graph, best first, at most `ef`."""


def search_part(part: Part, query: Query, k: int, target: float, within: Ids | None) -> tuple[Hits, Asked]:
    """The best `k` of a part and perhaps more, in no order, with exact cosines; ties with the last are all there."""
    begun = time.perf_counter()
    allowed = part.alive
    if within is not None and len(part.ids):
        allowed = min(allowed, len(within))
    effort = None if target >= 1.0 else effort_for(part.efforts, target, k)
    hits, walked = _NONE, None
    if allowed:
        if effort is not None:
            walked = _by_graph(part, query, effort, allowed, within)
        hits = walked[0] if walked else _whole(part, query, k, within)
    ef, rescored = (walked[1], walked[2]) if walked else (0, allowed)
    took_ms = (time.perf_counter() - begun) * 1000
    return hits, Asked(part.name, part.alive, "graph" if walked else "exact", ef, rescored, took_ms)


def _whole(part: Part, query: Query, k: int, within: Ids | None) -> Hits:
    if within is not None and len(within) < len(part.ids) // 2:
        rows = part.rows_of(within)
        rows = rows[rows >= 0]
        rows = rows[~part.dead[rows]]
        places, scores = query.nearest(part.vectors[rows], k)
        return part.ids[rows[places]], scores
    alive = ~part.dead
    if within is not None:
        alive &= _is_in(part.ids, within)
    rows, scores = query.nearest(part.vectors, k, None if alive.all() else alive)
    return part.ids[rows], scores


def _by_graph(
    part: Part, query: Query, effort: tuple[int, int], allowed: int, within: Ids | None
) -> tuple[Hits, int, int] | None:
    """Hits, the ef and how many were scored; None where a scan is as good."""
    ef, wanted = effort
    total = part.walked
    some_dead = part.alive < len(part.ids)
    ef = math.ceil(max(ef, wanted) * len(part.ids) / allowed)
    while ef < total and allowed > _ROWS_AN_EF * ef:
        rows = part.walk(query.vector, ef)
        if some_dead:
            rows = rows[~part.dead[rows]]
        if within is not None:
            rows = rows[_is_in(part.ids[rows], within)]
        if len(rows) >= wanted:
            rows = rows[:wanted]
            if total < len(part.ids):
                rows = np.concatenate([rows, _not_walked(part, within)])
            return (part.ids[rows], query.cosines(part.vectors[rows])), ef, len(rows)
        ef *= 2
    return None


def _not_walked(part: Part, within: Ids | None) -> Rows:
    rows = np.arange(part.walked, len(part.ids))
    rows = rows[~part.dead[rows]]
    return rows if within is None else rows[_is_in(part.ids[rows], within)]


def _is_in(ids: Ids, within: Ids) -> Mask:
    """Which `ids` are in the sorted `within`."""
    if not len(within):
        return np.zeros(len(ids), bool)
    places = np.minimum(np.searchsorted(within, ids), len(within) - 1)
    found: Mask = within[places] == ids
    return found
