"""An answer ends with whoever ends first: its text, its client, or the service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from appliance.answer.types import Delta, Event, Finished, Message, Question, Sources
from appliance.errors import EngineDied, Unavailable
from appliance.http.feed import BUFFERED, Ended, Feed
from appliance.http.lifecycle import Lifecycle
from appliance.http.problems import ClientGone
from tests.unit.http.backend import ScriptedBackend

QUESTION = Question(messages=(Message("user", "?"),), collection="default", request_id="id")


class Client:
    """The ASGI channel of a client that may leave."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_all_events_come_in_order() -> None:
    backend = ScriptedBackend("a", "b")
    feed = Feed(backend.ask(QUESTION), Client().receive, Lifecycle())
    events: list[Event | None] = []
    with pytest.raises(Ended):
        while True:
            events.append(await feed.next())
    assert [type(event) for event in events] == [Sources, Delta, Delta, Finished]
    await feed.close()


async def test_a_client_that_leaves_closes_the_generator() -> None:
    backend, client = ScriptedBackend("a", 30.0), Client()
    feed = Feed(backend.ask(QUESTION), client.receive, Lifecycle())
    assert isinstance(await feed.next(), Sources)
    assert isinstance(await feed.next(), Delta)
    client.left.set()
    with pytest.raises(ClientGone):
        await feed.next()
    await feed.close()
    assert backend.closed.is_set()


async def test_nothing_for_a_while() -> None:
    feed = Feed(ScriptedBackend(30.0).ask(QUESTION), Client().receive, Lifecycle())
    assert await feed.next(0.01) is None
    assert await feed.next(0.01) is None
    await feed.close()


async def test_the_cut_ends_an_answer_with_a_word_to_retry() -> None:
    backend, lifecycle = ScriptedBackend("a", 30.0), Lifecycle()
    feed = Feed(backend.ask(QUESTION), Client().receive, lifecycle)
    await feed.next()
    await feed.next()
    lifecycle.stop(30.0)
    assert await feed.next(0.01) is None, "stopping alone must not end an answer"
    asyncio.get_running_loop().call_soon(lifecycle.cut)
    with pytest.raises(Unavailable, match=r"stopping.*Retry"):
        await feed.next()
    await feed.close()
    assert backend.closed.is_set()


async def test_the_cut_leaves_an_answer_that_is_whole_already() -> None:
    lifecycle = Lifecycle()
    feed = Feed(ScriptedBackend("a").ask(QUESTION), Client().receive, lifecycle)
    await feed.next()
    await asyncio.sleep(0.01)  # the rest is buffered
    lifecycle.cut()
    deltas, _ = await feed.whole()
    text = "".join(delta.text for delta in deltas)
    assert text == "a"
    await feed.close()


async def test_a_failure_comes_after_what_came_before_it() -> None:
    feed = Feed(ScriptedBackend("a", EngineDied("died")).ask(QUESTION), Client().receive, Lifecycle())
    assert isinstance(await feed.next(), Sources)
    assert await feed.next() == Delta("a")
    with pytest.raises(EngineDied):
        await feed.next()
    await feed.close()


async def test_a_slow_reader_holds_the_generator_back() -> None:
    backend = ScriptedBackend(*["x"] * 1000)
    feed = Feed(backend.ask(QUESTION), Client().receive, Lifecycle())
    await feed.next()
    for _ in range(10):
        await asyncio.sleep(0)
    assert backend.made <= BUFFERED + 1
    deltas, _ = await feed.whole()
    text = "".join(delta.text for delta in deltas)
    assert text == "x" * 1000
    await feed.close()


async def test_an_answer_without_a_last_event_is_a_fault() -> None:
    async def stops_early() -> Any:
        yield Delta("a")

    feed = Feed(stops_early(), Client().receive, Lifecycle())
    await feed.next()
    with pytest.raises(RuntimeError, match="without its last event"):
        await feed.next()
    await feed.close()
