"""Owns the hot tier: new vectors in memory, scanned whole while they are few, under a graph when they are more.

Must not know the disk or the cold segments.

A `Hot` is a snapshot that shares its arrays with the one before it:

    rows      0 ........ graphed ........ count ...... capacity
              └ the graph ┘└── scanned ──┘└ never read ┘

`with_added` writes behind `count` and gives a snapshot that ends later, `without` gives one with another mask, so
searches go on over theirs without a lock, and see what was there when they began. The graph never changes either:
hnswlib allows no insertion beside searches, and one waits as long as an insertion takes; `with_graph` inserts into a
copy. One writer at a time makes snapshots, always of the newest one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from appliance.retrieval.dense.effort import Efforts, measure
from appliance.retrieval.dense.types import Floats, Ids
from appliance.retrieval.dense.vectors import Halves, Mask, Rows

if TYPE_CHECKING:
    import hnswlib

_M = 16
_EF_CONSTRUCTION = 200
_EF_SEARCH = 64  # and never another: changing it while searches run makes their caches thrash
_SLICE = 256  # rows inserted between two looks at whether the graph is still wanted
_CAPACITY = 256


@dataclass(frozen=True)
class Hot:
    """Vectors in memory, in the order in which they were added."""

    all_ids: Ids  # (capacity,)
    all_vectors: Halves  # (capacity, dim)
    dead: Mask  # (count,): rows that were removed
    count: int = 0
    alive: int = 0  # rows that were not
    walked: int = 0
    graph: hnswlib.Index | None = None
    efforts: Efforts = ()
    ascending: bool = True
    series: object = field(default_factory=object)  # all snapshots of one tier have the same
    name: str = field(default="hot", init=False)

    @classmethod
    def empty(cls, dim: int) -> Hot:
        """None."""
        return cls(np.empty(0, np.int64), np.empty((0, dim), np.float16), np.zeros(0, bool))

    @property
    def ids(self) -> Ids:
        """Of every row."""
        return self.all_ids[: self.count]

    @property
    def vectors(self) -> Halves:
        """Of every row `(n, dim)`."""
        return self.all_vectors[: self.count]

    def with_added(self, ids: Ids, vectors: Halves) -> Hot:
        """A snapshot with these rows too."""
        grown = self if self.count + len(ids) <= len(self.all_ids) else self._grown(len(ids))
        end = self.count + len(ids)
        grown.all_ids[self.count : end] = ids
        grown.all_vectors[self.count : end] = vectors
        added = np.concatenate([self.ids[-1:], ids])
        return replace(
            grown,
            count=end,
            dead=np.concatenate([self.dead, np.zeros(len(ids), bool)]),
            alive=self.alive + len(ids),
            ascending=self.ascending and bool(np.all(np.diff(added) > 0)),
        )

    def _grown(self, more: int) -> Hot:
        capacity = max(_CAPACITY, self.count + more, 2 * len(self.all_ids))
        ids = np.empty(capacity, np.int64)
        vectors = np.empty((capacity, self.all_vectors.shape[1]), np.float16)
        ids[: self.count], vectors[: self.count] = self.ids, self.vectors
        return replace(self, all_ids=ids, all_vectors=vectors)

    def without(self, rows: Rows) -> Hot:
        """A snapshot in which these rows, which are alive, are removed."""
        dead = self.dead.copy()
        dead[rows] = True
        return replace(self, dead=dead, alive=self.alive - len(rows))

    def with_graph(self, graph: hnswlib.Index, walked: int, efforts: Efforts) -> Hot:
        """A snapshot whose first `walked` rows are under `graph`."""
        return replace(self, graph=graph, walked=walked, efforts=efforts)

    def rows_of(self, ids: Ids) -> Rows:
        """The row of each id; -1 where there is none. An id that came back has its last row."""
        if not self.count:
            return np.full(len(ids), -1)
        order = np.arange(self.count) if self.ascending else np.argsort(self.ids, kind="stable")
        places = np.searchsorted(self.ids, ids, "right", sorter=order) - 1
        rows = order[np.maximum(places, 0)]
        return np.where(self.ids[rows] == ids, rows, -1)

    def walk(self, vector: Floats, ef: int) -> Rows:
        """See `Part`. The library keeps at least 64 candidates."""
        assert self.graph is not None  # noqa: S101 - walked is 0 without one
        rows = _walk(self.graph, vector[None, :], ef)[0]
        found: Rows = rows[rows >= 0]
        return found

    def graph_over(self, wanted: Callable[[], bool]) -> tuple[hnswlib.Index, Efforts] | None:
        """A graph over all rows, from a copy of the one there is; None when it is not wanted any more. Slow."""
        graph = _copy(self.graph, self.count) if self.graph is not None else _new(self.all_vectors.shape[1], self.count)
        for begin in range(self.walked, self.count, _SLICE):
            if not wanted():
                return None
            end = min(begin + _SLICE, self.count)
            rows = self.vectors[begin:end].astype(np.float32)
            graph.add_items(rows, np.arange(begin, end), num_threads=1)
        return graph, measure(self.vectors, lambda vectors, ef: _walk(graph, vectors, ef))


def _walk(graph: hnswlib.Index, vectors: Floats, ef: int) -> Rows:
    try:
        labels, _ = graph.knn_query(vectors, k=ef, num_threads=1)
    except RuntimeError:  # it reached fewer for one of them
        return np.full((len(vectors), ef), -1)
    return np.asarray(labels, np.int64)


def _new(dim: int, capacity: int) -> hnswlib.Index:
    import hnswlib

    graph = hnswlib.Index(space="ip", dim=dim)
    graph.init_index(max_elements=capacity, M=_M, ef_construction=_EF_CONSTRUCTION, random_seed=1)
    graph.set_ef(_EF_SEARCH)
    graph.set_num_threads(1)
    return graph


def _copy(graph: hnswlib.Index, capacity: int) -> hnswlib.Index:
    import hnswlib

    copy = hnswlib.Index(index=graph)
    copy.resize_index(capacity)
    copy.set_ef(_EF_SEARCH)
    copy.set_num_threads(1)
    return copy
