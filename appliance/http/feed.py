"""Owns running an answer for a client: one task makes the events, and ends when the client or service does.

Must not know wire formats.

The generator of events lives in a task of its own, from its first step to its close:

    backend.ask(…) ──> pump task ──> at most BUFFERED events ──> next() ──> the reply
                          ^ cancelled by close()                   ^ woken by an event, a disconnect, the cut

So that a cancelled reply never interrupts the closing of the generator, and context variables (spans) that
it sets are reset in the context that set them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from appliance.answer.types import Delta, Event, Finished
from appliance.http.lifecycle import Lifecycle, stopping_error
from appliance.http.problems import ClientGone

# A client that reads slowly holds its generator back after this many events.
BUFFERED = 64

Receive = Callable[[], Awaitable[Any]]


class Ended(Exception):
    """The answer came to its end: all events were taken."""


class Feed:
    """The events of one answer, for one client.

    Args:
        events: what the backend makes; closed by `close`.
        receive: the request's ASGI channel, its body read: the next message tells that the client left.
        lifecycle: its cut ends the answer.
    """

    def __init__(self, events: AsyncGenerator[Event], receive: Receive, lifecycle: Lifecycle) -> None:
        self._events = events
        self._receive = receive
        self._lifecycle = lifecycle
        self._ready: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._over = False  # the pump has ended
        self._whole = False  # `Finished` came
        self._failure: Exception | None = None
        self._gone = False
        self._unwatch = lifecycle.watch(self._wake.set)
        self._tasks = [asyncio.create_task(self._pump()), asyncio.create_task(self._watch())]

    async def next(self, patience_s: float | None = None) -> Event | None:
        """The next event; None when there is none within `patience_s` seconds.

        Raises:
            Ended: there are no more.
            ClientGone: the client left.
            Unavailable: the service stops.
            Exception: whatever ended the answer early.
        """
        while True:
            if self._gone:
                raise ClientGone
            if self._lifecycle.is_cut and not self._over:
                raise stopping_error()
            if self._ready:
                self._room.set()
                return self._ready.popleft()
            if self._over:
                if self._failure is not None:
                    raise self._failure
                if not self._whole:
                    raise RuntimeError("the backend ended an answer without its last event")
                raise Ended
            self._wake.clear()
            try:
                async with asyncio.timeout(patience_s):
                    await self._wake.wait()
            except TimeoutError:
                return None

    async def whole(self) -> tuple[list[Delta], Finished]:
        """All pieces of the answer, and the last event. Raises what `next` raises, but for `Ended`."""
        pieces: list[Delta] = []
        last: Event | None = None
        with contextlib.suppress(Ended):
            while True:
                last = await self.next()
                if isinstance(last, Delta):
                    pieces.append(last)
        assert isinstance(last, Finished)  # noqa: S101  # `next` has seen to it
        return pieces, last

    async def close(self) -> None:
        """Close the generator, if it has not ended, and wait for that. May be called again."""
        self._unwatch()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self) -> None:
        try:
            async with contextlib.aclosing(self._events) as events:
                async for event in events:
                    self._whole = isinstance(event, Finished)
                    self._ready.append(event)
                    self._wake.set()
                    while len(self._ready) >= BUFFERED:
                        self._room.clear()
                        await self._room.wait()
        except Exception as error:
            self._failure = error
        finally:
            self._over = True
            self._wake.set()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._wake.set()
