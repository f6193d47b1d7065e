"""Owns the derived indexes as one whole: opening, bringing up to date, rebuilding, comparing with the store.

Must not know questions or ranking.

The store is the truth. Chunk ids are never used twice and a chunk never changes, so an index is right exactly
when its set of ids is the store's: opening compares the sets and mends the difference, whatever caused it
(a crash, a lost file, a change that was not applied). A damaged index is one with no ids.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from appliance.errors import ApplianceError, DiskFull, Unavailable
from appliance.retrieval.analyzer import Analyzer
from appliance.retrieval.dense.files import load_graphs, save_graphs
from appliance.retrieval.dense.graph import ExactTier, GraphTier, as_unit
from appliance.retrieval.dense.types import DenseTier
from appliance.retrieval.lexical import IndexDamaged, LexicalIndex, LexicalText
from appliance.store.records import Change, Chunk, Collection, Vectors

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]
EXACT_LIMIT = 20_000  # up to here a scan of all vectors takes about as long as the rest of a search
_CHUNKS_AT_ONCE = 1000
_UNSAVED_SHARE = 0.1  # of a graph: so much may have to be inserted again after a crash


class ChunkStore(Protocol):
    """What recall needs of the store."""

    def identity(self) -> str: ...
    def generation(self) -> int: ...
    def embedder(self) -> str | None: ...
    def collection(self, name: str) -> Collection: ...
    def collections(self) -> list[Collection]: ...
    def chunks(self, ids: Sequence[int]) -> list[Chunk]: ...
    def live_chunk_ids(self, collection: str | None = None) -> Ids: ...
    def vectors(self, ids: Sequence[int]) -> Vectors: ...
    def changes_since(self, generation: int) -> list[Change] | None: ...


class Indexes:
    """The lexical index and the vectors of every collection. Searches run beside one writer."""

    def __init__(
        self, store: ChunkStore, folder: Path, fingerprint: str, dim: int, *, exact_limit: int = EXACT_LIMIT
    ) -> None:
        """`fingerprint` and `dim` are the embedder's; up to `exact_limit` vectors are scanned whole."""
        self._store = store
        self._folder = folder
        self._fingerprint = fingerprint
        self._dim = dim
        self._exact_limit = exact_limit
        self._lock = threading.Lock()  # held by whoever changes the indexes
        self.analyzer = Analyzer()
        self._lexical = LexicalIndex(folder / "lexical", self.analyzer, store.identity())
        self._tiers: dict[str, DenseTier] = {}
        self._generation: int | None = None  # None: not known to agree with the store
        self._unsaved = 0

    @property
    def lexical(self) -> LexicalIndex:
        """The lexical index of all collections."""
        return self._lexical

    def tier(self, collection: str) -> DenseTier | None:
        """The vectors of `collection`; None when it has none."""
        return self._tiers.get(collection)

    def open(self) -> None:
        """Load what is on the disk and bring it up to date with the store, from nothing if need be.

        Raises:
            DiskFull, Unavailable: the folder cannot be written.
        """
        with self._lock, _write_faults():
            self._open()

    def close(self) -> None:
        """Save the graphs and let go of the files."""
        with self._lock:
            if self._generation is not None and self._unsaved:
                # What is not saved is built again from the store.
                with contextlib.suppress(OSError):
                    self._save()
            self._lexical.close()
            self._tiers = {}
            self._generation = None

    def apply(self, change: Change) -> None:
        """Bring the indexes to the generation of a committed `change`, or later; searchable on return.

        Changes may arrive in any order and again. When this raises, the next call, or the next start, makes
        up for it.

        Raises:
            DiskFull, Unavailable: an index file cannot be written.
        """
        with self._lock, _write_faults():
            if self._generation is None:
                self._open()
                return
            if change.generation <= self._generation:
                return
            changes: list[Change] | None = [change]
            if change.generation > self._generation + 1:
                changes = self._store.changes_since(self._generation)
            known, self._generation = self._generation, None
            if changes is None:
                log.info("the store's log no longer reaches back to generation %d", known)
                self._open()
                return
            self._put(changes)
            self._generation = changes[-1].generation if changes else known
            self._save_if_due()

    def check(self) -> list[str]:
        """What does not agree with the store, a sentence each; empty when all is well."""
        with self._lock:
            faults: list[str] = []
            indexed = self._lexical.chunk_ids()
            stored = self._store.live_chunk_ids().tolist()
            faults += _differences("lexical index", indexed, stored)
            names = {found.name for found in self._store.collections()}
            left_over = sorted(set(self._tiers) - names)
            faults += [f"vectors of {name!r} are kept, which is gone" for name in left_over]
            if self._store.embedder() in (None, self._fingerprint):
                for name in sorted(names):
                    faults += self._check_tier(name)
            return faults

    def _check_tier(self, collection: str) -> list[str]:
        stored = self._store.live_chunk_ids(collection)
        tier = self._tiers.get(collection)
        if tier is None:
            return _differences(f"vectors of {collection!r}", [], stored.tolist())
        faults = _differences(f"vectors of {collection!r}", tier.ids().tolist(), stored.tolist())
        if not faults and len(stored):
            vectors = as_unit(self._store.vectors(stored[:_CHUNKS_AT_ONCE].tolist()))
            own = [tier.cosines(vector, np.array([i]))[0] for i, vector in zip(stored, vectors, strict=False)]
            if not np.allclose(own, 1.0, atol=1e-3):
                faults.append(f"vectors of {collection!r} differ from the store's")
        return faults

    def _open(self) -> None:
        generation = self._store.generation()
        live = {found.name: self._store.live_chunk_ids(found.name) for found in self._store.collections()}
        indexed = self._open_lexical(generation)
        wanted: set[int] = {int(i) for ids in live.values() for i in ids}
        gone, new = sorted(indexed - wanted), sorted(wanted - indexed)
        self._lexical.remove(gone)
        self._add_lexical(new)
        self._lexical.commit(generation)
        self._open_dense(live, generation)
        self._generation = generation
        self._save_if_due()

    def _open_lexical(self, newest: int) -> set[int]:
        self._lexical.close()
        try:
            if self._lexical.open() > newest:
                raise IndexDamaged("it is of a later generation than the store")
            ids = self._lexical.chunk_ids()
            if len(set(ids)) != len(ids):
                raise IndexDamaged("a chunk is in it twice")
        except IndexDamaged as fault:
            log.info("the lexical index is built again: %s", fault)
            self._lexical.create()
            return set()
        return set(ids)

    def _open_dense(self, live: Mapping[str, Ids], generation: int) -> None:
        self._tiers = {}
        if self._store.embedder() not in (None, self._fingerprint):
            return  # the vectors are another embedder's: searching them is refused, not answered wrongly
        tiers: dict[str, DenseTier] = {}
        tiers.update(load_graphs(self._folder / "dense", self._label(), self._dim, generation))
        for collection, wanted in live.items():
            tier = tiers.get(collection)
            if tier is None or len(tier) <= len(wanted) // 2:
                tier = ExactTier(self._dim) if len(wanted) <= self._exact_limit else GraphTier(self._dim)
            have = tier.ids()
            tier.remove(np.setdiff1d(have, wanted))
            self._add_vectors(tier, np.setdiff1d(wanted, have))
            self._tiers[collection] = tier

    def _put(self, changes: Sequence[Change]) -> None:
        removed = [chunk_id for change in changes for chunk_id in change.removed]
        self._lexical.remove(removed)
        added = [chunk_id for change in changes for chunk_id in change.added]
        self._add_lexical(added)
        self._lexical.commit(changes[-1].generation if changes else self._store.generation())
        for change in changes:
            self._put_vectors(change)
        for gone in set(self._tiers) - {found.name for found in self._store.collections()}:
            del self._tiers[gone]

    def _put_vectors(self, change: Change) -> None:
        if self._store.embedder() not in (None, self._fingerprint):
            self._tiers = {}
            return
        tier = self._tiers.get(change.collection, None)
        if tier is None:
            tier = ExactTier(self._dim)
        tier.remove(np.array(change.removed, np.int64))
        self._add_vectors(tier, np.asarray(change.added, np.int64))
        self._tiers[change.collection] = self._fitting(tier)
        if isinstance(tier, GraphTier):
            self._unsaved += len(change.removed)

    def _add_lexical(self, ids: Sequence[int]) -> None:
        for begin in range(0, len(ids), _CHUNKS_AT_ONCE):
            chunks = self._store.chunks(ids[begin : begin + _CHUNKS_AT_ONCE])
            self._lexical.add(LexicalText(one.id, one.collection, lexical_text(one)) for one in chunks)

    def _add_vectors(self, tier: DenseTier, ids: Ids) -> None:
        """Add the stored vectors of `ids`; those that are gone by now are left out."""
        for begin in range(0, len(ids), _CHUNKS_AT_ONCE):
            some = ids[begin : begin + _CHUNKS_AT_ONCE]
            vectors = self._store.vectors(some.tolist())
            there = np.isfinite(vectors).all(axis=1) & (np.abs(vectors).max(axis=1, initial=0) > 0)
            if there.any():
                tier.add(some[there], as_unit(vectors[there]))
                self._unsaved += len(some) if isinstance(tier, GraphTier) else 0

    def _fitting(self, tier: DenseTier) -> DenseTier:
        """The tier that the number of vectors asks for, with the same vectors."""
        if isinstance(tier, ExactTier) and len(tier) > self._exact_limit:
            # Slow once, about 1 ms a vector; searches go on over the exact tier.
            graph = GraphTier(self._dim)
            graph.add(tier.ids(), tier.vectors())
            self._unsaved = len(graph)
            return graph
        if isinstance(tier, GraphTier) and len(tier) <= self._exact_limit // 2:
            exact = ExactTier(self._dim)
            self._add_vectors(exact, tier.ids())
            return exact
        return tier

    def _save_if_due(self) -> None:
        largest = max((len(tier) for tier in self._tiers.values() if isinstance(tier, GraphTier)), default=0)
        if largest and self._unsaved > largest * _UNSAVED_SHARE:
            self._save()

    def _save(self) -> None:
        graphs = {name: tier for name, tier in self._tiers.items() if isinstance(tier, GraphTier)}
        generation = self._generation or 0
        save_graphs(self._folder / "dense", self._label(), self._dim, generation, graphs)
        self._unsaved = 0

    def _label(self) -> str:
        return f"{self._store.identity()} {self._fingerprint}"


def lexical_text(chunk: Chunk) -> str:
    """What a chunk is found by in the lexical index: the document's title too.

    A question that names the machine then speaks for all of its manual, and not for the one page that
    repeats the name.
    """
    return f"{chunk.title}\n{passage_text(chunk)}"


def passage_text(chunk: Chunk) -> str:
    """A chunk as it is embedded and reranked: its heading path, then its text."""
    return f"{chunk.heading}\n{chunk.text}" if chunk.heading else chunk.text


def _differences(what: str, found: Sequence[int], stored: Sequence[int]) -> list[str]:
    faults: list[str] = []
    missing, extra = set(stored) - set(found), set(found) - set(stored)
    if missing:
        faults.append(f"{what}: {len(missing)} stored chunks are missing, the first is {min(missing)}")
    if extra:
        faults.append(f"{what}: {len(extra)} chunks are not stored, the first is {min(extra)}")
    if len(set(found)) != len(found):
        faults.append(f"{what}: {len(found) - len(set(found))} chunks are there more than once")
    return faults


@contextlib.contextmanager
def _write_faults() -> Iterator[None]:
    """Tell a fault of the disk so that a user understands it; the engine raises ValueError or OSError."""
    try:
        yield
    except ApplianceError:
        raise
    except (OSError, ValueError) as error:
        if "No space left" in str(error):
            raise DiskFull(
                "The disk is full: the search index cannot be written.", remedy="Free some space."
            ) from error
        raise Unavailable(f"The search index cannot be written: {error}.") from error
