"""Owns the queue before recall: how many search at once, who waits, who is told to come back and when.

Must not know what is done inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from appliance.errors import Overloaded

_WEIGHT = 0.1  # of the newest stay in the running mean


class Turnstile:
    """Lets `width` in at once, in the order of their coming; for one event loop.

    Args:
        width: more at once take each other's cores, and nobody is done sooner.
        most_waiting: one more is refused.
    """

    def __init__(self, width: int, most_waiting: int) -> None:
        self._width = width
        self._most_waiting = most_waiting
        self._inside = 0
        self._queue: dict[asyncio.Future[None], float] = {}  # in their order, with when they came
        self._stay_s = 0.0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def oldest_s(self) -> float:
        """How long the first of them has waited."""
        return time.monotonic() - next(iter(self._queue.values())) if self._queue else 0.0

    def expected_ms(self) -> float:
        """How long the next one waits, by the time that others stayed lately."""
        ahead = self.waiting + self._inside - self._width + 1
        return max(0, ahead) * self._stay_s / self._width * 1000

    def drained_s(self) -> float:
        """When those who wait now will be through, at the rate at which it goes."""
        return self.waiting * self._stay_s / self._width

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait for a turn, and have it for the block.

        Raises:
            Overloaded: too many wait already.
        """
        if self._inside >= self._width:
            if self.waiting >= self._most_waiting:
                message = f"{self.waiting} questions wait already."
                raise Overloaded(message, retry_after_s=max(1.0, self.drained_s()))
            await self._wait()
        else:
            self._inside += 1
        begun = time.monotonic()
        try:
            yield
        finally:
            stay = time.monotonic() - begun
            self._stay_s += (stay - self._stay_s) * (_WEIGHT if self._stay_s else 1.0)
            self._leave()

    async def _wait(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[place] = time.monotonic()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was let in as it left
                self._leave()
            else:
                del self._queue[place]
            raise

    def _leave(self) -> None:
        """The place goes to the next who waits, or is free."""
        while self._queue:
            place = next(iter(self._queue))
            del self._queue[place]
            if not place.done():
                place.set_result(None)
                return
        self._inside -= 1
