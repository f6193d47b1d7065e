"""Owns the vectors of all collections, and the thread that seals, merges and verifies them on the side.

Must not know the lexical index or questions.

    dense/<hash of the collection's name>/   the files of one `TieredVectors`
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from appliance.retrieval.dense.policy import Limits
from appliance.retrieval.dense.tiered import TieredVectors
from appliance.retrieval.dense.types import Ids, Sizes
from appliance.retrieval.dense.vectors import as_unit
from appliance.retrieval.dense.view import View
from appliance.store.records import Change, Vectors

log = logging.getLogger(__name__)

_READ_NOW = 4096  # vectors that are missing; more are read on the side
_QUIET_S = 600.0  # without a change, and segments are merged that need not be
_RETRY_S = 60.0  # after a fault of the disk


class VectorStore(Protocol):
    """What the tiers need of the store."""

    def identity(self) -> str: ...
    def live_chunk_ids(self, collection: str | None = None) -> Ids: ...
    def vectors(self, ids: Sequence[int]) -> Vectors: ...


class Tiers:
    """A tier for each collection. One thread changes them, any number search, one of its own maintains."""

    def __init__(self, store: VectorStore, folder: Path, fingerprint: str, dim: int, limits: Limits) -> None:
        """`fingerprint` is of the embedder: vectors of another are not taken from the folder."""
        self._store = store
        self._folder = folder
        self._label = f"{store.identity()} {fingerprint}"
        self._dim = dim
        self._limits = limits
        self._tiers: dict[str, TieredVectors] = {}
        self._generation = 0
        self._lock = threading.RLock()  # held by whoever changes what should be in a tier
        self._due = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def get(self, collection: str) -> TieredVectors | None:
        """The vectors of a collection; None when it has none."""
        return self._tiers.get(collection)

    def views(self) -> dict[str, View]:
        """The vectors of every collection as they are now."""
        return {collection: tier.view() for collection, tier in list(self._tiers.items())}

    def open(self, live: Mapping[str, Ids], generation: int) -> None:
        """Have exactly the `live` ids of every collection, whatever is in the folder or in memory.

        Many missing vectors are read on the side; until then searches read them from the store.

        Raises:
            OSError: the folder cannot be written.
        """
        with self._lock:
            self._generation = generation
            self.keep_only(live)
            self._folder.mkdir(parents=True, exist_ok=True)
            own = {_folder_name(collection) for collection in live}
            for path in self._folder.iterdir():
                if path.name not in own:
                    _remove(path)
            for collection, wanted in live.items():
                tier = self._tiers.get(collection) or self._opened(collection)
                self._mend(tier, wanted)
                self._tiers[collection] = tier
        self._work_on()

    def put(self, change: Change) -> None:
        """Apply a committed change of one collection; done before, it does nothing.

        Raises:
            OSError: a file cannot be written.
        """
        with self._lock:
            self._generation = max(self._generation, change.generation)
            tier = self._tiers.get(change.collection)
            if tier is None:
                tier = self._opened(change.collection)
                tier.remove(tier.ids())
                self._tiers[change.collection] = tier
            tier.generation = self._generation
            tier.remove(np.array(change.removed, np.int64))
            added = np.array(change.added, np.int64)
            self._add(tier, np.setdiff1d(added, tier.among(added)))
        self._due.set()

    def keep_only(self, collections: Mapping[str, object]) -> None:
        """Let go of the vectors of all other collections, files included."""
        with self._lock:
            for gone in set(self._tiers) - set(collections):
                tier = self._tiers.pop(gone)
                with contextlib.suppress(OSError):
                    tier.close()
                _remove(self._folder / _folder_name(gone))

    def close(self) -> None:
        """Stop the thread, save what is in memory, let go of the files."""
        self._stopping.set()
        self._due.set()
        # A tier that closes ends the work on it.
        for tier in self._tiers.values():
            # What is not saved is read from the store at the next start.
            with contextlib.suppress(OSError):
                tier.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._tiers = {}

    def sizes(self) -> Sizes:
        """How many vectors lie where, of all collections together."""
        views = [tier.view() for tier in list(self._tiers.values())]
        hots = [hot for view in views for hot in view.hots]
        segments = [segment for view in views for segment in view.segments]
        return Sizes(
            hot=sum(hot.alive for hot in hots),
            cold=sum(segment.alive for segment in segments),
            pending=sum(len(view.pending) for view in views),
            removed=sum(len(part.ids) - part.alive for view in views for part in view.parts),
            segments=len(segments),
        )

    def names(self) -> list[str]:
        """Collections that have a tier."""
        return sorted(self._tiers)

    def _opened(self, collection: str) -> TieredVectors:
        return TieredVectors(
            self._folder / _folder_name(collection),
            self._dim,
            label=f"{self._label} {collection}",
            newest=self._generation,
            fetch=lambda ids: self._store.vectors(ids.tolist()),
            limits=self._limits,
        )

    def _mend(self, tier: TieredVectors, wanted: Ids) -> None:
        tier.generation = self._generation
        have = tier.ids()
        tier.remove(np.setdiff1d(have, wanted, assume_unique=True))
        missing = np.setdiff1d(wanted, have, assume_unique=True)
        if len(missing) <= _READ_NOW:
            self._add(tier, missing)
        else:
            tier.expect(missing)

    def _add(self, tier: TieredVectors, ids: Ids) -> None:
        """Add the stored vectors of `ids`; those that are gone by now are left out."""
        if not len(ids):
            return
        vectors = self._store.vectors(ids.tolist())
        there = np.isfinite(vectors).all(axis=1) & np.any(vectors, axis=1)
        if there.any():
            tier.add(ids[there], as_unit(vectors[there]))

    def _work_on(self) -> None:
        self._due.set()
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._work, name="vectors", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while not self._stopping.is_set():
            quiet = not self._due.wait(_QUIET_S)
            self._due.clear()
            for collection, tier in list(self._tiers.items()):
                try:
                    while not self._stopping.is_set() and tier.maintain(quiet=quiet):
                        if tier.damaged:
                            self._mend_damaged(collection, tier)
                except Exception:
                    # Whatever it is: searches go on over what there is, and a later try may succeed.
                    log.exception("the vectors of %r cannot be put in order now", collection)
                    self._stopping.wait(_RETRY_S)
                    self._due.set()

    def _mend_damaged(self, collection: str, tier: TieredVectors) -> None:
        with self._lock:
            if self._tiers.get(collection) is tier:
                tier.damaged = False
                self._mend(tier, self._store.live_chunk_ids(collection))


def _folder_name(collection: str) -> str:
    return hashlib.sha256(collection.encode()).hexdigest()[:16]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
