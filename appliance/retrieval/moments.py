"""Owns which moment a search sees: the store, the words and the vectors as they were together, and never half a change.

Must not know what a search asks them, nor how a change is applied.

    hold ─▶ the store commits ─▶ the words, the vectors follow ─▶ move
    └───────── who begins a search here sees what was before ───────┘

Outside of a change the three agree, and each search takes what is there. A transaction of its own in SQLite would then
see a change that the indexes do not have yet; so the moment before is held, once, for all who come meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.retrieval.dense.types import DenseView
from appliance.retrieval.dense.view import View
from appliance.retrieval.lexical import LexicalView
from appliance.store.attributes import Filter
from appliance.store.records import Change, Chunk, Collection, Vectors

Ids = npt.NDArray[np.int64]


class StoreReads(Protocol):
    """What recall reads of a store."""

    def identity(self) -> str: ...
    def generation(self) -> int: ...
    def embedder(self) -> str | None: ...
    def collection(self, name: str) -> Collection: ...
    def collections(self) -> list[Collection]: ...
    def chunks(self, ids: Sequence[int]) -> list[Chunk]: ...
    def live_chunk_ids(self, collection: str | None = None) -> Ids: ...
    def vectors(self, ids: Sequence[int]) -> Vectors: ...
    def changes_since(self, generation: int) -> list[Change] | None: ...
    def matching(self, collection: str, wanted: Filter) -> Ids: ...
    def chunk_ids_in(self, document_ids: Ids) -> Ids: ...


class RecallStore(StoreReads, Protocol):
    """A store as recall needs it: what it is now, and as it was at some moment."""

    def snapshot(self) -> AbstractContextManager[StoreReads]: ...


class Indexed(msgspec.Struct, frozen=True):
    """What is found by words and by vectors."""

    lexical: LexicalView
    tiers: Mapping[str, View]  # by collection
    behind: str = ""  # why something is missing in them that is stored; "": nothing is


class Moment(msgspec.Struct, frozen=True):
    """All that a search reads."""

    store: StoreReads
    indexed: Indexed

    def tier(self, collection: str) -> DenseView | None:
        """The vectors of a collection; None when it has none."""
        view = self.indexed.tiers.get(collection)
        return None if view is None else view.reading(lambda ids: self.store.vectors(ids.tolist()))


class _Shared:
    """A moment, until the last who looks at it leaves."""

    def __init__(self, moment: Moment, closing: contextlib.ExitStack) -> None:
        self.moment = moment
        self.users = 1
        self._closing = closing

    def leave(self) -> bool:
        self.users -= 1
        return self.users == 0

    def close(self) -> None:
        self._closing.close()


class Moments:
    """The moment that searches see. For any thread.

    Args:
        store: what is searched.
        look: what is indexed now; called while nothing changes that searches see.
    """

    def __init__(self, store: RecallStore, look: Callable[[], Indexed]) -> None:
        self._store = store
        self._look = look
        self._lock = threading.Lock()
        self._held: _Shared | None = None

    @contextlib.contextmanager
    def now(self) -> Iterator[Moment]:
        """What a search sees, for the block."""
        with self._lock:
            shared = self._held
            if shared is None:
                shared = self._take()
            else:
                shared.users += 1
        try:
            yield shared.moment
        finally:
            self._leave(shared)

    def hold(self) -> None:
        """From now on searches see what is there now, until `move`. One change at a time."""
        with self._lock:
            assert self._held is None, "another change is under way"  # noqa: S101
            self._held = self._take()

    def move(self) -> None:
        """From now on searches see what is there; not held, it does nothing."""
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            self._leave(held)

    def _take(self) -> _Shared:
        with contextlib.ExitStack() as closing:
            moment = Moment(closing.enter_context(self._store.snapshot()), self._look())
            return _Shared(moment, closing.pop_all())

    def _leave(self, shared: _Shared) -> None:
        with self._lock:
            last = shared.leave()
        if last:
            shared.close()
