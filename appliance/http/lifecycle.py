"""Owns the way the service starts and stops: what it takes while it loads, and what it cuts at the end.

Must not know signals, sockets or requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from appliance.errors import Unavailable

LOAD_RETRY_S = 2.0
STOP_RETRY_S = 5.0  # what a client is told to wait: a restart with small models takes about this long


class Lifecycle:
    """`loading → running → stopping → cut`, one way only; used from the event loop's thread.

    loading: only questions about health are answered. An orchestrator that asks whether the process lives must
    not wait for its models, nor kill it because an index is rebuilt.
    stopping: readiness fails and new requests are refused; those under way go on.
    cut: whoever still waits for something gives up and tells its client so.
    """

    def __init__(self, *, loading: bool = False) -> None:
        self.started_at = int(time.time())
        self.loading = loading
        self.stopping = False
        self.is_cut = False
        self._timer: asyncio.TimerHandle | None = None
        self._watchers: set[Callable[[], object]] = set()

    def loaded(self) -> None:
        """Requests are taken from now on."""
        self.loading = False

    def stop(self, grace_s: float) -> None:
        """Begin to stop; `cut` follows after `grace_s` seconds. Called again: `cut` at once."""
        if self.stopping:
            self.cut()
            return
        self.stopping = True
        self._timer = asyncio.get_running_loop().call_later(grace_s, self.cut)

    def cut(self) -> None:
        """End what still runs."""
        self.close()
        self.stopping = self.is_cut = True
        for watcher in tuple(self._watchers):
            watcher()

    def close(self) -> None:
        """Drop the timer: everything ended before it."""
        if self._timer is not None:
            self._timer.cancel()

    def watch(self, on_cut: Callable[[], object]) -> Callable[[], None]:
        """Have `on_cut` called at the cut; returns the function that takes it off again."""
        self._watchers.add(on_cut)
        return lambda: self._watchers.discard(on_cut)


def loading_error() -> Unavailable:
    """What a client is told that came before the service was ready for it."""
    return Unavailable("The service is loading its models and indexes.", retry_after_s=LOAD_RETRY_S)


def stopping_error() -> Unavailable:
    """What a client is told whose request the stop refused or cut."""
    return Unavailable(
        "The service is stopping.", retry_after_s=STOP_RETRY_S, remedy="Retry when it has started again."
    )
