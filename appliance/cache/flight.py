"""Owns one computation that many wait for: it runs once, and each of them gets all that comes of it, from the start.

Must not know what is computed. For one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable
from typing import Generic, TypeVar

from appliance.errors import Unavailable

T = TypeVar("T")


class Flight(Generic[T]):
    """A stream that is read by a task of its own and kept, so that those who come later miss nothing.

    It goes on while anybody follows it, whoever came first; when the last one leaves, it ends, unless it was started
    for its result alone (`for_result`).
    """

    def __init__(self, stream: AsyncIterator[T], on_end: Callable[[Flight[T]], None], *, for_result: bool) -> None:
        self._stream = stream
        self._items: list[T] = []
        self._error: Exception | None = None
        self._ended = False
        self.followers = 0
        self.for_result = for_result
        self._moved = asyncio.Event()
        self._on_end = on_end
        self._task = asyncio.create_task(self._run(), name="flight")

    @property
    def failed(self) -> bool:
        """Whether it came to a bad end."""
        return self._error is not None

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came in time, and was a good one."""
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        return bool(done) and self._error is None

    async def follow(self) -> AsyncGenerator[T]:
        """All items, from the first; what the stream raised is raised. To be closed by who leaves early."""
        self.followers += 1
        try:
            place = 0
            while True:
                while place < len(self._items):
                    place += 1
                    yield self._items[place - 1]
                if self._ended:
                    break
                await self._moved.wait()
            if self._error is not None:
                raise self._error
        finally:
            self.followers -= 1
            if not self.followers and not self.for_result:
                await self.cancel()

    async def cancel(self) -> None:
        """End it now; those who follow it get `Unavailable`. From here on it is nobody's any more."""
        if not self._error:
            self._error = Unavailable("The answer was given up: the service stops.")
        self._end()
        self._task.cancel()
        await asyncio.wait({self._task})

    def result(self) -> list[T]:
        """All items of a stream that came to its end."""
        return self._items

    async def _run(self) -> None:
        try:
            async with contextlib.aclosing(self._stream) as items:  # type: ignore[type-var]
                async for item in items:
                    self._items.append(item)
                    self._move()
        except asyncio.CancelledError:
            pass  # `cancel` said why
        except Exception as error:
            self._error = error
        finally:
            self._end()
            self._move()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(self)

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


class Flights(Generic[T]):
    """The flights that are in the air, by key: never two of the same."""

    def __init__(self) -> None:
        self._flying: dict[Hashable, Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flying)

    def unattended(self) -> int:
        """How many were started for their result alone."""
        return sum(flight.for_result for flight in self._flying.values())

    def followers(self) -> int:
        """How many follow all of them."""
        return sum(flight.followers for flight in self._flying.values())

    def get(self, key: Hashable) -> Flight[T] | None:
        """The one that is in the air."""
        return self._flying.get(key)

    def start(
        self,
        key: Hashable,
        stream: AsyncIterator[T],
        on_result: Callable[[list[T]], None],
        *,
        for_result: bool = False,
    ) -> Flight[T]:
        """Start one; `on_result` is called with all its items when it came to a good end."""
        assert key not in self._flying, "it is in the air already"  # noqa: S101

        def ended(flight: Flight[T]) -> None:
            del self._flying[key]
            if not flight.failed:
                on_result(flight.result())

        flight = Flight(stream, ended, for_result=for_result)
        self._flying[key] = flight
        return flight

    async def close(self) -> None:
        """End all."""
        for flight in list(self._flying.values()):
            await flight.cancel()
