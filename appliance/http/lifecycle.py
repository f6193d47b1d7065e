"""Owns the way the service stops: first it takes nothing new, then it cuts what still runs.

Must not know signals, sockets or requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from appliance.errors import Unavailable

STOP_RETRY_S = 5.0  # what a client is told to wait: a restart with small models takes about this long


class Lifecycle:
    """`running → stopping → cut`, one way only; used from the event loop's thread.

    stopping: readiness fails and new requests are refused; those under way go on.
    cut: whoever still waits for something gives up and tells its client so.
    """

    def __init__(self) -> None:
        self.started_at = int(time.time())
        self.stopping = False
        self.is_cut = False
        self._timer: asyncio.TimerHandle | None = None
        self._watchers: set[Callable[[], object]] = set()

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


def stopping_error() -> Unavailable:
    """What a client is told whose request the stop refused or cut."""
    return Unavailable(
        "The service is stopping.", retry_after_s=STOP_RETRY_S, remedy="Retry when it has started again."
    )
