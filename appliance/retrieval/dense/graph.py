"""Owns the exact scan and the graph in memory.

Must not know text, collections or the store: ids and unit vectors come in, ids and cosines go out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from appliance.retrieval.dense.types import DEFAULT_TARGET, Asked, Floats, Hits, Ids

if TYPE_CHECKING:
    import hnswlib

_M = 16
_EF_CONSTRUCTION = 200
_EF_SEARCH = 64  # fixed: changing it while searches run makes their caches thrash
_INSERT_SLICE = 16  # vectors put in while searches wait, about 1 ms each
_GROWTH = 1.5


class ExactTier:
    """Every vector in one float32 matrix, scanned whole: exact, and as fast as a graph while it is small.

    A change makes a new matrix and then swaps it in, so that a search keeps the one it began with.
    """

    def __init__(self, dim: int) -> None:
        self._rows: tuple[Ids, Floats] = (np.empty(0, np.int64), np.empty((0, dim), np.float32))

    def __len__(self) -> int:
        return len(self._rows[0])

    def ids(self) -> Ids:
        return self._rows[0]

    def vectors(self) -> Floats:
        """All vectors `(n, dim)`, in the order of `ids`."""
        return self._rows[1]

    def add(self, ids: Ids, vectors: Floats) -> None:
        check_vectors(vectors)
        old_ids, old = self._rows
        merged = np.concatenate([old_ids, np.asarray(ids, np.int64)])
        if len(np.unique(merged)) != len(merged):
            raise ValueError("a vector of that id is already there")
        matrix = np.concatenate([old, np.asarray(vectors, np.float32)])
        if np.any(np.diff(merged) < 0):
            order = np.argsort(merged)
            merged, matrix = merged[order], matrix[order]
        self._rows = (merged, matrix)

    def remove(self, ids: Ids) -> None:
        old_ids, old = self._rows
        keep = ~np.isin(old_ids, ids)
        if not keep.all():
            self._rows = (old_ids[keep], old[keep])

    def search(
        self,
        vector: Floats,
        k: int,
        *,
        target: float = DEFAULT_TARGET,
        within: Ids | None = None,
        notes: list[Asked] | None = None,
    ) -> Hits:
        begun = time.perf_counter()
        ids, matrix = self._rows
        if within is not None:
            allowed = np.isin(ids, within)
            ids, matrix = ids[allowed], matrix[allowed]
        hits = _best(ids, matrix @ vector, k)
        if notes is not None:
            notes.append(Asked("hot", len(self), "exact", 0, len(ids), (time.perf_counter() - begun) * 1000))
        return hits

    def cosines(self, vector: Floats, ids: Ids) -> Floats:
        known, matrix = self._rows
        wanted = np.asarray(ids, np.int64)
        scores = np.full(len(wanted), np.nan, np.float32)
        if len(known):
            places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            there = known[places] == wanted
            scores[there] = matrix[places[there]] @ vector
        return scores


class GraphTier:
    """An hnswlib graph (M 16, efConstruction 200, efSearch 64) over unit vectors.

    The library allows searches beside searches, not beside an insertion: one lock keeps them apart, and
    insertions give it up after every few vectors. Slots of deleted vectors are used again.
    """

    def __init__(self, dim: int, index: hnswlib.Index | None = None, deleted: Iterable[int] = ()) -> None:
        """Empty, or over an `index` that was loaded; `deleted` are the ids in it that are marked so."""
        self._dim = dim
        self._lock = threading.Lock()
        self._index = index if index is not None else _new_index(dim)
        # The library lists deleted ids among the others and does not tell which they are.
        self._deleted = set(deleted)  # those whose slots were used again stay here: a superset
        self._alive = {int(i) for i in self._index.get_ids_list()} - self._deleted

    @classmethod
    def load(cls, file: Path, dim: int, deleted: Iterable[int]) -> GraphTier:
        """Load a graph that `save` wrote. The caller has compared the file's checksum."""
        import hnswlib

        index = hnswlib.Index(space="ip", dim=dim)
        index.load_index(str(file), max_elements=0, allow_replace_deleted=True)
        index.set_ef(_EF_SEARCH)
        index.set_num_threads(1)
        return cls(dim, index, deleted)

    def save(self, file: Path) -> list[int]:
        """Write the graph to `file`; returns the ids in it that are deleted."""
        with self._lock:
            self._index.save_index(str(file))
            self._deleted = {int(i) for i in self._index.get_ids_list()} - self._alive
            return sorted(self._deleted)

    def __len__(self) -> int:
        return len(self._alive)

    def ids(self) -> Ids:
        with self._lock:
            return np.array(sorted(self._alive), np.int64)

    def add(self, ids: Ids, vectors: Floats) -> None:
        check_vectors(vectors)
        for begin in range(0, len(ids), _INSERT_SLICE):
            some = np.asarray(ids[begin : begin + _INSERT_SLICE], np.int64)
            with self._lock:
                if not self._alive.isdisjoint(some.tolist()):
                    raise ValueError("a vector of that id is already there")
                self._insert(some, vectors[begin : begin + _INSERT_SLICE])

    def _insert(self, ids: Ids, vectors: Floats) -> None:
        room = self._index.get_max_elements() - len(self._alive)
        if room < len(ids):
            self._index.resize_index(int((len(self._alive) + len(ids)) * _GROWTH) + 64)
        back = self._deleted.intersection(ids.tolist())
        if back:
            # An id that comes back takes its old slot again if that still has it: two slots of one id are a fault.
            for chunk_id in back.intersection(int(i) for i in self._index.get_ids_list()):
                self._index.unmark_deleted(chunk_id)
            self._deleted -= back
        fresh = np.array([int(i) not in back for i in ids], bool)
        if not fresh.all():
            self._index.add_items(vectors[~fresh], ids[~fresh], num_threads=1)
        if fresh.any():
            self._index.add_items(vectors[fresh], ids[fresh], num_threads=1, replace_deleted=True)
        self._alive.update(ids.tolist())

    def remove(self, ids: Ids) -> None:
        with self._lock:
            for chunk_id in ids.tolist():
                if chunk_id in self._alive:
                    self._index.mark_deleted(chunk_id)
                    self._alive.remove(chunk_id)
                    self._deleted.add(chunk_id)

    def search(
        self,
        vector: Floats,
        k: int,
        *,
        target: float = DEFAULT_TARGET,
        within: Ids | None = None,
        notes: list[Asked] | None = None,
    ) -> Hits:
        if within is not None or target >= 0.99:
            # The walk of a fixed length promises neither: everything allowed is scanned.
            with self._lock:
                alive = np.array(sorted(self._alive), np.int64)
                if within is not None:
                    alive = np.intersect1d(alive, within, assume_unique=True)
                return _best(alive, self._vectors(alive) @ vector, k)
        with self._lock:
            k = min(k, len(self._alive))
            if k == 0:
                return np.empty(0, np.int64), np.empty(0, np.float32)
            try:
                labels, distances = self._index.knn_query(vector[None, :], k=k, num_threads=1)
            except RuntimeError:
                # The walk met fewer than k living vectors, as when nearly all around are deleted.
                alive = np.array(sorted(self._alive), np.int64)
                return _best(alive, self._vectors(alive) @ vector, k)
        return _best(labels[0].astype(np.int64), 1.0 - distances[0], k)

    def cosines(self, vector: Floats, ids: Ids) -> Floats:
        scores = np.full(len(ids), np.nan, np.float32)
        with self._lock:
            places = [place for place, chunk_id in enumerate(ids.tolist()) if chunk_id in self._alive]
            if places:
                scores[places] = self._vectors(ids[places]) @ vector
        return scores

    def _vectors(self, ids: Ids) -> Floats:
        return np.asarray(self._index.get_items(ids, return_type="numpy"), np.float32)


def check_vectors(vectors: Floats) -> None:
    """Refuse what would spoil the neighbours of others.

    Raises:
        ValueError: a vector is not finite or not of unit length.
    """
    if not np.isfinite(vectors).all():
        raise ValueError("a vector is not finite")
    if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-2):
        raise ValueError("a vector is not of unit length")


def as_unit(vectors: npt.NDArray[np.floating]) -> Floats:
    """Stored vectors `(n, dim)` float16 as float32 of unit length: rounding to half precision moved it."""
    wide = np.asarray(vectors, np.float32)
    if not len(wide):
        return wide
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.ascontiguousarray(wide / np.where(norms == 0, 1.0, norms))


def _best(ids: Ids, scores: Floats, k: int) -> Hits:
    if k < len(ids):
        # Everything that ties with the k-th stays in until ids decide.
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        chosen = np.flatnonzero(scores >= threshold)
        ids, scores = ids[chosen], scores[chosen]
    order = np.lexsort((ids, -scores))[:k]
    return ids[order], np.asarray(scores[order], np.float32)


def _new_index(dim: int) -> hnswlib.Index:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=dim)
    index.init_index(
        max_elements=1024, M=_M, ef_construction=_EF_CONSTRUCTION, random_seed=1, allow_replace_deleted=True
    )
    index.set_ef(_EF_SEARCH)
    index.set_num_threads(1)
    return index
