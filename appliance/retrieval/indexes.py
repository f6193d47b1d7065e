"""Owns the derived indexes as one whole: opening, bringing up to date, rebuilding, comparing with the store.

Must not know questions or ranking.

The store is the truth. Chunk ids are never used twice and a chunk never changes, so an index is right exactly
when its set of ids is the store's: opening compares the sets and mends the difference, whatever caused it
(a crash, a lost file, a change that was not applied). A damaged index is one with no ids. What cannot be applied
because a disk is full or sick is tried again on the side until it can; searches say so meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from appliance.errors import ApplianceError, DiskFull, Unavailable
from appliance.retrieval.analyzer import Analyzer
from appliance.retrieval.dense.policy import Limits
from appliance.retrieval.dense.tiers import Tiers
from appliance.retrieval.dense.types import Sizes
from appliance.retrieval.dense.vectors import as_unit
from appliance.retrieval.lexical import IndexDamaged, LexicalIndex, LexicalText, LexicalView
from appliance.retrieval.moments import Indexed, Moments, RecallStore, StoreReads
from appliance.store.records import Change, Chunk

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]
EXACT_LIMIT = 2_000  # up to here a scan of all vectors takes about as long as the walk of a graph
_SEAL_AT = 8  # times that, hot vectors become a segment: see `Limits`
_CHUNKS_AT_ONCE = 1000
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0  # after a change could not be applied


class Indexes:
    """The lexical index and the vectors of every collection. Searches run beside one writer.

    Attributes:
        moments: what a search sees.
        behind: why something that is stored may not be found; "" while all is.
    """

    def __init__(
        self, store: RecallStore, folder: Path, fingerprint: str, dim: int, *, exact_limit: int = EXACT_LIMIT
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
        self._words: LexicalView | None = None  # by the last commit that succeeded
        self.behind = ""
        self.moments = Moments(store, self._look)
        self._closing = threading.Event()
        self._retrying: threading.Thread | None = None

    def open(self) -> None:
        """Load what is on the disk and bring it up to date with the store, from nothing if need be.

        Raises:
            DiskFull, Unavailable: the folder cannot be written.
        """
        with self._lock, _write_faults():
            self._open()

    def close(self) -> None:
        """Save what is in memory and let go of the files."""
        self._closing.set()
        with self._lock:
            retrying = self._retrying
        if retrying is not None:
            retrying.join()
        with self._lock:
            self._tiers.close()
            self._lexical.close()
            self._generation = self._words = None

    def apply(self, change: Change) -> None:
        """Bring the indexes to the generation of a committed `change`, or later; searches see it on return.

        Changes may arrive in any order and again. When this raises, it is tried again on the side.

        Raises:
            DiskFull, Unavailable: an index file cannot be written.
        """
        try:
            with self._lock, self._telling():
                if self._generation is None or change.generation > self._generation + 1:
                    self._follow()
                elif change.generation == self._generation + 1:
                    self._put([change])
        finally:
            self.moments.move()

    def catch_up(self) -> None:
        """Bring the indexes to the store's generation, in case a change before could not be applied.

        Raises:
            DiskFull, Unavailable: it still cannot.
        """
        with self._lock, self._telling():
            if self._generation is None or self._generation < self._store.generation():
                self._follow()

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

    def _look(self) -> Indexed:
        if self._words is None:
            raise Unavailable("The search index is not open.")
        return Indexed(self._words, self._tiers.views(), self.behind)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Note whether the indexes agree with the store after the block, and have it tried again if they do not."""
        try:
            with _write_faults():
                yield
        except BaseException as error:
            self._generation = None
            self.behind = error.text if isinstance(error, ApplianceError) else f"{type(error).__name__}: {error}"
            if self._retrying is None and not self._closing.is_set():
                log.warning("the search index is behind the store: %s", self.behind)
                self._retrying = threading.Thread(target=self._retry, name="index retry", daemon=True)
                self._retrying.start()
            raise
        self.behind = ""

    def _retry(self) -> None:
        delay_s = _FIRST_RETRY_S
        while not self._closing.wait(delay_s):
            with self._lock:
                with contextlib.suppress(BaseException), self._telling():  # the engine's panics are no `Exception`
                    if self._generation is None:
                        self._follow()
                if self._generation is not None:
                    log.info("the search index agrees with the store again")
                    self._retrying = None
                    return
            delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    def _follow(self) -> None:
        """Bring the indexes to the store's newest generation, by its log where that tells."""
        changes = None if self._generation is None else self._store.changes_since(self._generation)
        if changes is None:
            self._open()
        elif changes:
            self._put(changes)

    def _open(self) -> None:
        with self._store.snapshot() as store:
            generation = store.generation()
            live = {found.name: store.live_chunk_ids(found.name) for found in store.collections()}
            indexed = self._open_lexical(generation)
            wanted = np.sort(np.concatenate([np.empty(0, np.int64), *live.values()]))
            self._lexical.remove(np.setdiff1d(indexed, wanted, assume_unique=True).tolist())
            self._add_lexical(np.setdiff1d(wanted, indexed, assume_unique=True).tolist(), store)
            self._commit_lexical(generation)
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
        """Apply changes that follow on what is indexed; what is done of them when it raises is not known."""
        self._generation = None
        try:
            self._put_vectors(changes)
        finally:
            removed = [chunk_id for change in changes for chunk_id in change.removed]
            added = [chunk_id for change in changes for chunk_id in change.added]
            self._lexical.remove(removed)
            self._add_lexical(added, self._store)
            self._commit_lexical(changes[-1].generation)
        self._generation = changes[-1].generation

    def _put_vectors(self, changes: Sequence[Change]) -> None:
        if not self._has_own_vectors():
            self._tiers.keep_only({})
            return
        for change in changes:
            self._tiers.put(change)
        self._tiers.keep_only({found.name: found for found in self._store.collections()})

    def _commit_lexical(self, generation: int) -> None:
        self._lexical.commit(generation)
        self._words = self._lexical.view()

    def _add_lexical(self, ids: Sequence[int], store: StoreReads) -> None:
        for begin in range(0, len(ids), _CHUNKS_AT_ONCE):
            chunks = store.chunks(ids[begin : begin + _CHUNKS_AT_ONCE])
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
