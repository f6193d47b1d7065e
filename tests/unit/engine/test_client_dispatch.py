"""Owns the proof of who is handed to an engine and when; the engine is a list that is written to."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from appliance.engine.dispatch import Dispatch
from appliance.engine.protocol import (
    Cancel,
    Count,
    Counted,
    Done,
    Failed,
    FrameError,
    Segment,
    Started,
    Submit,
    ToEngine,
)
from appliance.engine.request import Request
from appliance.errors import EngineDied, Overloaded, PromptTooLong, Quarantined


class Desk:
    def __init__(self, max_queue: int = 100) -> None:
        self.dispatch = Dispatch(max_queue, 60.0)
        self.sent: list[ToEngine] = []
        self._open = contextlib.ExitStack()

    def ask(self, number: int, text: str = "") -> Request:
        message = Submit(number, (Segment(text or str(number)),), 8)
        return self._open.enter_context(self.dispatch.request(message))

    def count(self, number: int, text: str) -> Request:
        return self._open.enter_context(self.dispatch.request(Count(number, (text,))))

    def attach(self) -> list[int]:
        """A new engine; the ids that it is given at once."""
        self.sent.clear()
        self.dispatch.attach(self.sent.append)
        return self.ids()

    def ids(self) -> list[int]:
        return [message.id for message in self.sent if isinstance(message, Submit | Count)]

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self.dispatch.receive(Started(number, 1, 0, 0.0))

    def done(self, *numbers: int) -> None:
        for number in numbers:
            self.dispatch.receive(Done(number, "stop", 1, 0, 1, 0.0, 0.0, 0.0))

    def close(self) -> None:
        self._open.close()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


async def test_one_that_ran_beside_a_queued_one_was_not_alone(desk: Desk) -> None:
    desk.attach()
    desk.ask(1)
    desk.ask(2)
    for _ in range(2):
        desk.start(1)
        desk.dispatch.lose_engine()
        desk.attach()
    assert desk.ids() == [1], "a suspect now, not guilty: it runs alone"
    desk.start(1)
    desk.done(1)
    assert desk.ids() == [1, 2]


async def test_suspects_run_in_ever_smaller_company_the_oldest_first(desk: Desk) -> None:
    desk.attach()
    requests = [desk.ask(number) for number in range(1, 9)]
    for expected in ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2], [1]):
        desk.start(*desk.ids())
        desk.dispatch.lose_engine()
        assert desk.attach() == expected
    desk.done(1)
    assert desk.ids() == [1, 2]
    desk.start(2)
    desk.dispatch.lose_engine()
    assert isinstance(await requests[1].next(), Started), "told once"
    with pytest.raises(EngineDied):
        await requests[1].next()
    assert desk.attach() == [3, 4]
    with pytest.raises(Quarantined):
        desk.ask(9, "2")


async def test_a_resumed_crowd_does_not_overflow_the_engines_queue() -> None:
    desk = Desk(max_queue=2)
    desk.attach()
    for number in (1, 2, 3, 4):
        desk.ask(number)
        if number < 3:
            desk.start(number)
    with pytest.raises(Overloaded, match="2 requests"):
        desk.ask(5)
    desk.dispatch.lose_engine()
    assert desk.attach() == [1, 2], "it has room for two that have not started"
    desk.start(1)
    assert desk.ids() == [1, 2, 3]
    with pytest.raises(Overloaded):
        desk.ask(6)
    desk.count(7, "a")
    desk.count(8, "b")
    with pytest.raises(Overloaded):
        desk.count(9, "c")
    desk.close()


async def test_only_a_whole_answer_clears(desk: Desk) -> None:
    """A refusal and a cancel prove nothing."""
    desk.attach()
    desk.ask(1, "x")
    desk.start(1)
    desk.dispatch.lose_engine()
    desk.attach()
    desk.dispatch.receive(Failed(1, "engine_error", "no"))
    with desk.dispatch.request(Submit(2, (Segment("x"),), 8)):
        pass
    assert desk.sent[-1] == Cancel(2)
    desk.dispatch.receive(Done(2, "cancelled", 1, 0, 0, 0.0, 0.0, 0.0))
    guilty = desk.ask(3, "x")
    desk.dispatch.lose_engine()
    with pytest.raises(EngineDied):
        await guilty.next()


async def test_a_cancelled_one_has_its_place_until_the_engine_lets_go_of_it(desk: Desk) -> None:
    desk.attach()
    desk.ask(1)
    desk.ask(2)
    for _ in range(2):
        desk.start(1, 2)
        desk.dispatch.lose_engine()
        desk.attach()
    assert desk.ids() == [1]
    with desk.dispatch.request(Submit(3, (Segment("3"),), 8)):
        pass  # given up while it waited: the engine never hears of it
    desk.done(1)
    assert desk.ids() == [1, 2]
    desk.done(2)
    with desk.dispatch.request(Submit(4, (Segment("4"),), 8)):
        desk.start(4)
    assert not desk.dispatch.idle.is_set(), "1 and 2 are still read"
    desk.dispatch.lose_engine()
    assert desk.attach() == [], "nobody reads it"


async def test_idle_is_when_nobody_waits_for_a_reply(desk: Desk) -> None:
    assert desk.dispatch.idle.is_set()
    desk.attach()
    with desk.dispatch.request(Count(1, ("a",))) as request:
        assert not desk.dispatch.idle.is_set()
        desk.dispatch.receive(Counted(1, (1,)))
        assert await request.next() == Counted(1, (1,))
    assert desk.dispatch.idle.is_set()
    assert Cancel(1) not in desk.sent


async def test_a_request_that_no_frame_holds_is_refused_alone(desk: Desk) -> None:
    too_large, small = desk.ask(1), desk.ask(2)

    def send(message: ToEngine) -> None:
        if message.id == too_large.id:  # type: ignore[union-attr]
            raise FrameError("over the limit")
        desk.sent.append(message)

    desk.dispatch.attach(send)
    with pytest.raises(PromptTooLong, match="over the limit"):
        await too_large.next()
    assert desk.ids() == [small.id]
