"""One computation for all who ask: it runs once, everybody gets all of it, and it ends with the last who wants it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from appliance.cache.flight import Flight, Flights
from appliance.errors import BadRequest, Unavailable


class Source:
    """A stream that goes on when it is told to."""

    def __init__(self, items: int = 3) -> None:
        self.items = items
        self.runs = 0
        self.closed = 0
        self.gate = asyncio.Semaphore(0)

    async def stream(self) -> AsyncGenerator[int]:
        self.runs += 1
        try:
            for number in range(self.items):
                await self.gate.acquire()
                yield number
        finally:
            self.closed += 1

    def release(self, count: int = 100) -> None:
        for _ in range(count):
            self.gate.release()


async def read(flight: Flight[int]) -> list[int]:
    async with contextlib.aclosing(flight.follow()) as items:
        return [item async for item in items]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_many_ask_and_it_runs_once_and_all_get_all_of_it() -> None:
    source, flights, results = Source(), Flights[int](), list[list[int]]()
    flight = flights.start("k", source.stream(), results.append)
    readers = [asyncio.create_task(read(flight)) for _ in range(500)]
    await settle()
    source.release(2)
    await settle()
    found = flights.get("k")
    assert found is flight
    late = asyncio.create_task(read(found))
    source.release()
    assert await asyncio.gather(*readers, late) == [[0, 1, 2]] * 501
    assert (source.runs, source.closed, len(flights), results) == (1, 1, 0, [[0, 1, 2]])


async def test_it_outlives_the_first_who_asked_while_others_wait() -> None:
    source, flights, results = Source(), Flights[int](), list[list[int]]()
    flight = flights.start("k", source.stream(), results.append)
    first = asyncio.create_task(read(flight))
    second = asyncio.create_task(read(flight))
    await settle()
    first.cancel()
    await settle()
    source.release()
    assert await second == [0, 1, 2]
    assert results == [[0, 1, 2]]


async def test_it_ends_when_the_last_one_leaves_and_the_next_starts_anew() -> None:
    source, flights, results = Source(), Flights[int](), list[list[int]]()
    reader = asyncio.create_task(read(flights.start("k", source.stream(), results.append)))
    await settle()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert source.closed == 1
    assert flights.get("k") is None
    assert results == []
    again = flights.start("k", source.stream(), results.append)
    source.release()
    assert await read(again) == [0, 1, 2]


async def test_one_for_its_result_goes_on_though_nobody_follows_it() -> None:
    source, flights, results = Source(), Flights[int](), list[list[int]]()
    flight = flights.start("k", source.stream(), results.append, for_result=True)
    reader = asyncio.create_task(read(flight))
    await settle()
    reader.cancel()
    await settle()
    source.release()
    assert await flight.wait(5)
    assert results == [[0, 1, 2]]


async def test_waiting_for_it_has_an_end_and_does_not_end_it() -> None:
    source, flights, results = Source(), Flights[int](), list[list[int]]()
    flight = flights.start("k", source.stream(), results.append, for_result=True)
    assert not await flight.wait(0.01)
    source.release()
    assert await flight.wait(5)


async def test_what_it_raises_all_get_and_it_is_no_result() -> None:
    async def bad() -> AsyncGenerator[int]:
        yield 0
        raise BadRequest("no")

    flights, results = Flights[int](), list[list[int]]()
    flight = flights.start("k", bad(), results.append)
    for outcome in await asyncio.gather(read(flight), read(flight), return_exceptions=True):
        assert isinstance(outcome, BadRequest)
    assert not await flight.wait(1)
    assert results == []


async def test_closing_ends_all_and_says_so() -> None:
    source, flights, results = Source(), Flights[int](), list[list[int]]()
    reader = asyncio.create_task(read(flights.start("k", source.stream(), results.append)))
    await settle()
    await flights.close()
    with pytest.raises(Unavailable):
        await reader
    assert (source.closed, len(flights)) == (1, 0)
