"""Owns what a search of one collection's vectors sees: some parts at one moment, which never change.

Must not know how parts come and go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from appliance.retrieval.dense.hot import Hot
from appliance.retrieval.dense.segment import Segment
from appliance.retrieval.dense.types import DEFAULT_TARGET, TARGETS, Asked, Floats, Hits, Ids
from appliance.retrieval.dense.vectors import Halves, Query, Rows, as_unit, best
from appliance.retrieval.dense.walk import Part, search_part

Fetch = Callable[[Ids], Halves]
READ_AT_ONCE = 4096  # pending vectors


@dataclass(frozen=True, eq=False)
class View:
    """Segments, hot vectors, and ids whose vectors `fetch` reads in every search. See `DenseView`."""

    segments: tuple[Segment, ...]
    hots: tuple[Hot, ...]  # the last one takes what is added
    pending: Ids  # sorted; their vectors are still to be read
    fetch: Fetch | None  # stored vectors `(n, dim)` float16; rows of NaN for those that are gone

    @property
    def parts(self) -> tuple[Segment | Hot, ...]:
        """All that is searched but for what is pending."""
        return (*self.segments, *self.hots)

    def __len__(self) -> int:
        return sum(part.alive for part in self.parts) + len(self.pending)

    def ids(self) -> Ids:
        """Ids that are alive, sorted."""
        return np.sort(np.concatenate([*(part.ids[~part.dead] for part in self.parts), self.pending]))

    def among(self, ids: Ids) -> Ids:
        """Those of `ids` that are there, in no order."""
        found = [np.intersect1d(ids, self.pending)]
        for part in self.parts:
            if part.alive:
                rows = part.rows_of(ids)
                there = rows >= 0
                there[there] = ~part.dead[rows[there]]
                found.append(ids[there])
        return np.concatenate(found)

    def without(self, ids: Ids) -> View:
        """The same without these ids; those that are not there are passed over."""
        return replace(
            self,
            segments=tuple(part.without(rows) if len(rows := _alive(part, ids)) else part for part in self.segments),
            hots=tuple(part.without(rows) if len(rows := _alive(part, ids)) else part for part in self.hots),
            pending=np.setdiff1d(self.pending, ids),
        )

    def reading(self, fetch: Fetch) -> View:
        """The same with what is pending read by `fetch`: at the moment that the view is of."""
        return replace(self, fetch=fetch)

    def search(
        self,
        vector: Floats,
        k: int,
        *,
        target: float = DEFAULT_TARGET,
        within: Ids | None = None,
        notes: list[Asked] | None = None,
    ) -> Hits:
        """See `DenseView`.

        Raises:
            ValueError: `target` is none of `TARGETS`.
        """
        if target not in TARGETS:
            raise ValueError(f"the recall target is one of {TARGETS}")
        query = Query(vector)
        found: list[Hits] = []
        for part in self.parts:
            if part.alive:
                hits, asked = search_part(part, query, k, target, within)
                found.append(hits)
                if notes is not None:
                    notes.append(asked)
        if len(self.pending):
            found.append(self._search_pending(query, k, within))
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        if len(found) == 1:
            return best(*found[0], k)
        return best(np.concatenate([ids for ids, _ in found]), np.concatenate([scores for _, scores in found]), k)

    def cosines(self, vector: Floats, ids: Ids) -> Floats:
        """Exact cosine of each id `(n,)`, NaN where it is not there."""
        query = Query(vector)
        wanted = np.asarray(ids, np.int64)
        scores = np.full(len(wanted), np.nan, np.float32)
        for part in self.parts:
            if part.alive:
                rows = part.rows_of(wanted)
                there = np.flatnonzero(rows >= 0)
                there = there[~part.dead[rows[there]]]
                scores[there] = query.cosines(part.vectors[rows[there]])
        waiting = np.flatnonzero(np.isin(wanted, self.pending))
        if len(waiting):
            scores[waiting] = query.cosines(self.read(wanted[waiting]))
        return scores

    def read(self, ids: Ids) -> Halves:
        """The vectors of pending ids `(n, dim)` as the others are kept; rows of NaN where there is none."""
        assert self.fetch is not None, "what is pending needs fetch"  # noqa: S101
        stored = self.fetch(ids)
        stored = np.where(np.any(stored, axis=1, keepdims=True), stored, np.float16(np.nan))
        return as_unit(stored).astype(np.float16)

    def _search_pending(self, query: Query, k: int, within: Ids | None) -> Hits:
        wanted = self.pending if within is None else np.intersect1d(self.pending, within)
        found: list[Hits] = [(np.empty(0, np.int64), np.empty(0, np.float32))]
        for begin in range(0, len(wanted), READ_AT_ONCE):
            ids = wanted[begin : begin + READ_AT_ONCE]
            vectors = self.read(ids)
            there = ~np.isnan(vectors[:, 0])
            rows, scores = query.nearest(vectors[there], k)
            found.append((ids[there][rows], scores))
        return np.concatenate([ids for ids, _ in found]), np.concatenate([scores for _, scores in found])


def _alive(part: Part, ids: Ids) -> Rows:
    """The rows of those of `ids` that are alive in a part."""
    if not part.alive:
        return np.empty(0, np.int64)
    rows = part.rows_of(ids)
    rows = rows[rows >= 0]
    return rows[~part.dead[rows]]
