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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from appliance.errors import ApplianceError, DiskFull, Unavailable
from appliance.retrieval.analyzer import Analyzer
from appliance.retrieval.dense.policy import Limits
from appliance.retrieval.dense.tiers import Tiers
from appliance.retrieval.dense.types import DenseTier, Sizes
from appliance.retrieval.dense.vectors import as_unit
from appliance.retrieval.lexical import IndexDamaged, LexicalIndex, LexicalText
from appliance.store.records import Change, Chunk, Collection, Vectors

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]
EXACT_LIMIT = 2_000  # up to here a scan of all vectors takes about as long as the walk of a graph
_SEAL_AT = 8  # times that, hot vectors become a segment: see `Limits`
_CHUNKS_AT_ONCE = 1000


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
        self._fingerprint = fingerprint
        self._lock = threading.Lock()  # held by whoever changes the indexes
        self.analyzer = Analyzer()
        self._lexical = LexicalIndex(folder / "lexical", self.analyzer, store.identity())
        limits = Limits(exact=exact_limit, seal=_SEAL_AT * exact_limit)
        self._tiers = Tiers(store, folder / "dense", fingerprint, dim, limits)
        self._generation: int | None = None  # None: not known to agree with the store

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
        """Save what is in memory and let go of the files."""
        with self._lock:
            self._tiers.close()
            self._lexical.close()
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

    def sizes(self) -> Sizes:
        """How many vectors lie where, of all collections together."""
        return self._tiers.sizes()

    def check(self) -> list[str]:
        """What does not agree with the store, a sentence each; empty when all is well."""
        with self._lock:
            faults: list[str] = []
            indexed = self._lexical.chunk_ids()
            stored = self._store.live_chunk_ids().tolist()
            faults += _differences("lexical index", indexed, stored)
            names = {found.name for found in self._store.collections()}
            left_over = sorted(set(self._tiers.names()) - names)
            faults += [f"vectors of {name!r} are kept, which is gone" for name in left_over]
            if self._has_own_vectors():
                for name in sorted(names):
                    faults += self._check_tier(name)
            return faults

    def _check_tier(self, collection: str) -> list[str]:
        stored = self._store.live_chunk_ids(collection)
        tier = self._tiers.get(collection)
        if tier is None:
            return _differences(f"vectors of {collection!r}", [], stored.tolist())
        faults = _differences(f"vectors of {collection!r}", tier.ids().tolist(), stored.tolist())
        faults += [f"vectors of {collection!r}: {fault}" for fault in tier.verify()]
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
        wanted = np.sort(np.concatenate([np.empty(0, np.int64), *live.values()]))
        self._lexical.remove(np.setdiff1d(indexed, wanted, assume_unique=True).tolist())
        self._add_lexical(np.setdiff1d(wanted, indexed, assume_unique=True).tolist())
        self._lexical.commit(generation)
        # The vectors of another embedder are not searched: that is refused, not answered wrongly.
        self._tiers.open(live if self._has_own_vectors() else {}, generation)
        self._generation = generation

    def _has_own_vectors(self) -> bool:
        return self._store.embedder() in (None, self._fingerprint)

    def _open_lexical(self, newest: int) -> Ids:
        self._lexical.close()
        try:
            if self._lexical.open() > newest:
                raise IndexDamaged("it is of a later generation than the store")
            ids = np.array(self._lexical.chunk_ids(), np.int64)
            if np.any(np.diff(ids) == 0):
                raise IndexDamaged("a chunk is in it twice")
        except IndexDamaged as fault:
            log.info("the lexical index is built again: %s", fault)
            self._lexical.create()
            return np.empty(0, np.int64)
        return ids

    def _put(self, changes: Sequence[Change]) -> None:
        removed = [chunk_id for change in changes for chunk_id in change.removed]
        self._lexical.remove(removed)
        added = [chunk_id for change in changes for chunk_id in change.added]
        self._add_lexical(added)
        self._lexical.commit(changes[-1].generation if changes else self._store.generation())
        if not self._has_own_vectors():
            self._tiers.keep_only({})
            return
        for change in changes:
            self._tiers.put(change)
        self._tiers.keep_only({found.name: found for found in self._store.collections()})

    def _add_lexical(self, ids: Sequence[int]) -> None:
        for begin in range(0, len(ids), _CHUNKS_AT_ONCE):
            chunks = self._store.chunks(ids[begin : begin + _CHUNKS_AT_ONCE])
            self._lexical.add(LexicalText(one.id, one.collection, lexical_text(one), one.document_id) for one in chunks)


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
