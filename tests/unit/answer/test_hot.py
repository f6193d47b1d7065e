"""Answers that were given before: when they are given again, shared, renewed, and when never."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace

from appliance.answer.hot import HotAnswers
from appliance.answer.types import (
    Delta,
    Event,
    Finished,
    Message,
    PromptReport,
    Question,
    Report,
    Source,
    Sources,
    TokenCounts,
)
from appliance.answer.versions import Versions
from appliance.cache.tiers import Cache
from appliance.config import CacheSettings
from appliance.engine.protocol import Sampling
from appliance.engine.tools import Tool, Toolset
from appliance.errors import Unavailable

SOURCE = Source(1, "m.pdf", "Manual", 3, "Torque", 17, 0.9, "40 Nm.", 5)


class Answers:
    """Makes answers that are numbered, when it is let."""

    def __init__(self) -> None:
        self.made = 0
        self.ended = 0
        self.priorities: list[str] = []
        self.degraded: tuple[str, ...] = ()
        self.fails = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, question: Question) -> AsyncGenerator[Event]:
        self.made += 1
        self.priorities.append(question.priority)
        number = self.made
        try:
            yield Sources((SOURCE,), self.degraded, {"recall_lexical": 2.0})
            await self.gate.wait()
            if self.fails:
                raise Unavailable("no")
            for text in ("Answer ", f"{number}", " [1]."):
                yield Delta(text)
            report = Report(
                question.request_id, "miss", self.degraded, (SOURCE,), True, PromptReport({}), {}, TokenCounts(9, 0, 3)
            )
            yield Finished("stop", report)
        finally:
            self.ended += 1


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock.time)
    return clock


class Bed:
    def __init__(self, folder: Path | None = None, **settings: float | bool) -> None:
        self.answers = Answers()
        self.cache = Cache(folder, memory_bytes=1 << 20, disk_bytes=1 << 24, keep_s=1e6, wait_s=60)
        self.version = b"1"
        self.hot = HotAnswers(self.answers.ask, self.cache, lambda _: self.version, CacheSettings(**settings))  # type: ignore[arg-type]


@pytest.fixture
async def bed(clock: Clock) -> AsyncGenerator[Bed]:
    bed = Bed(wait_ms=20)
    yield bed
    await bed.hot.close()
    bed.cache.close()


def question(text: str = "Torque?", **other: object) -> Question:
    return replace(Question((Message("user", text),), "c", "first", sampling=Sampling(temperature=0.0)), **other)


async def read(bed: Bed, asked: Question | None = None) -> list[Event]:
    async with contextlib.aclosing(bed.hot.ask(asked or question())) as events:
        return [event async for event in events]


def told(events: list[Event]) -> tuple[str, str]:
    """The text and how it was had."""
    last = events[-1]
    assert isinstance(last, Finished)
    return "".join(event.text for event in events if isinstance(event, Delta)), last.report.cache


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # what is waited for knows no event
            await asyncio.sleep(0.001)


async def test_the_same_question_gets_the_same_pieces_again(bed: Bed) -> None:
    first = await read(bed)
    again = await read(bed, question("torque", request_id="second"))
    assert told(first) == ("Answer 1 [1].", "miss")
    assert told(again) == ("Answer 1 [1].", "hit")
    assert again[1:4] == first[1:4]
    assert isinstance(again[0], Sources) and again[0].sources == (SOURCE,)
    last = again[-1]
    assert isinstance(last, Finished)
    assert (last.report.request_id, set(last.report.timings_ms)) == ("second", {"cache", "total"})
    assert last.report.tokens.generated == 3
    assert bed.answers.made == 1


async def test_another_question_version_or_caller_gets_another_answer(bed: Bed) -> None:
    await read(bed)
    assert told(await read(bed, question("Pressure?"))) == ("Answer 2 [1].", "miss")
    assert told(await read(bed, question(label="other"))) == ("Answer 3 [1].", "miss")
    bed.version = b"2"
    assert told(await read(bed)) == ("Answer 4 [1].", "miss")


async def test_an_answer_that_may_call_tools_is_made_each_time(bed: Bed) -> None:
    tools = Toolset((Tool("now"),))
    for number in (1, 2):
        assert told(await read(bed, question(collection=None, tools=tools))) == (f"Answer {number} [1].", "miss")
    assert told(await read(bed, question(collection=None))) == ("Answer 3 [1].", "miss")
    assert bed.cache.figures().entries == 1


async def test_five_hundred_at_once_are_one_generation(bed: Bed) -> None:
    bed.answers.gate.clear()
    readers = [asyncio.create_task(read(bed, question(request_id=f"{n}"))) for n in range(500)]
    await until(lambda: bed.answers.made == 1)
    await asyncio.sleep(0.01)
    bed.answers.gate.set()
    found = [told(events) for events in await asyncio.gather(*readers)]
    assert bed.answers.made == 1
    assert {text for text, _ in found} == {"Answer 1 [1]."}
    assert sorted(cache for _, cache in found).count("miss") == 1


async def test_five_hundred_at_once_on_an_old_answer_are_one_generation_though_the_first_leaves(
    bed: Bed, clock: Clock
) -> None:
    await read(bed)
    clock.now += 1000
    bed.answers.gate.clear()
    readers = [asyncio.create_task(read(bed, question(request_id=f"{n}"))) for n in range(500)]
    await until(lambda: bed.answers.made == 2)
    readers[0].cancel()
    found = [told(events) for events in await asyncio.gather(*readers[1:])]
    assert set(found) == {("Answer 1 [1].", "stale")}  # nobody waits longer than `wait_ms` while there is an old one
    bed.answers.gate.set()
    await until(lambda: bed.answers.ended == 2)
    assert told(await read(bed)) == ("Answer 2 [1].", "hit")
    assert bed.answers.made == 2


async def test_an_old_answer_is_not_given_when_the_new_one_comes_in_time(bed: Bed, clock: Clock) -> None:
    await read(bed)
    clock.now += 1000
    assert told(await read(bed)) == ("Answer 2 [1].", "hit")


async def test_an_old_answer_is_better_than_none(bed: Bed, clock: Clock) -> None:
    await read(bed)
    clock.now += 1000
    bed.answers.fails = True
    assert told(await read(bed)) == ("Answer 1 [1].", "stale")
    bed.answers.fails = False
    assert told(await read(bed)) == ("Answer 3 [1].", "hit")


async def test_a_popular_answer_is_renewed_before_it_is_old_an_unpopular_one_is_not(bed: Bed, clock: Clock) -> None:
    await read(bed)
    clock.now += 100
    assert told(await read(bed)) == ("Answer 1 [1].", "hit")
    await asyncio.sleep(0.01)
    assert bed.answers.made == 1
    assert told(await read(bed)) == ("Answer 1 [1].", "hit")
    await until(lambda: bed.answers.ended == 2)
    assert bed.answers.priorities == ["interactive", "batch"]
    assert told(await read(bed)) == ("Answer 2 [1].", "hit")
    assert bed.answers.made == 2


async def test_at_most_one_answer_is_renewed_ahead_at_a_time(bed: Bed, clock: Clock) -> None:
    for text in ("a1", "b1", "c1"):
        for _ in range(3):
            await read(bed, question(text))
    clock.now += 100
    bed.answers.gate.clear()
    for text in ("a1", "b1", "c1"):
        assert told(await read(bed, question(text)))[1] == "hit"
    await until(lambda: bed.answers.made == 4)
    await asyncio.sleep(0.01)
    assert bed.answers.made == 4
    bed.answers.gate.set()


async def test_while_it_is_busy_old_answers_are_given_at_once_and_nothing_is_made_anew(bed: Bed, clock: Clock) -> None:
    for _ in range(4):
        await read(bed)
    bed.hot._busy = lambda: True
    for seconds, outcome in ((100, "hit"), (1000, "stale")):
        clock.now += seconds
        assert told(await read(bed)) == ("Answer 1 [1].", outcome)
    assert bed.answers.made == 1
    bed.hot._busy = lambda: False
    assert told(await read(bed)) == ("Answer 2 [1].", "hit")


async def test_when_the_clock_was_set_back_an_answer_counts_as_old(bed: Bed, clock: Clock) -> None:
    await read(bed)
    clock.now -= 86400
    bed.answers.fails = True
    assert told(await read(bed)) == ("Answer 1 [1].", "stale")


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("unsupported: no source bears it out", True),
        ("rerank_partial: 20 of 50", True),
        ("engine_unavailable: excerpts", False),
        ("deadline: cut off", False),
        ("overloaded: excerpts", False),
        ("something_new: unknown", False),
    ],
)
async def test_what_a_bad_moment_took_away_is_not_kept(bed: Bed, reason: str, kept: bool) -> None:
    bed.answers.degraded = (reason,)
    await read(bed)
    assert told(await read(bed))[1] == ("hit" if kept else "miss")


async def test_what_failed_is_not_kept_and_all_who_waited_are_told(bed: Bed) -> None:
    bed.answers.fails = True
    bed.answers.gate.clear()
    readers = [asyncio.create_task(read(bed)) for _ in range(2)]
    await until(lambda: len(bed.hot._flights) and bed.hot._flights.followers() == 2)
    bed.answers.gate.set()
    for outcome in await asyncio.gather(*readers, return_exceptions=True):
        assert isinstance(outcome, Unavailable)
    assert bed.answers.made == 1
    bed.answers.fails = False
    assert told(await read(bed)) == ("Answer 2 [1].", "miss")


async def test_when_the_last_reader_leaves_the_making_ends_and_nothing_is_kept(bed: Bed) -> None:
    bed.answers.gate.clear()
    readers = [asyncio.create_task(read(bed)) for _ in range(3)]
    await until(lambda: bed.answers.made == 1)
    for reader in readers:
        reader.cancel()
    await until(lambda: bed.answers.ended == 1)
    bed.answers.gate.set()
    assert told(await read(bed)) == ("Answer 2 [1].", "miss")


async def test_bypass_neither_looks_nor_keeps_and_refresh_makes_anew_and_keeps(bed: Bed) -> None:
    await read(bed)
    assert told(await read(bed, question(cache="bypass"))) == ("Answer 2 [1].", "miss")
    assert told(await read(bed)) == ("Answer 1 [1].", "hit")
    assert told(await read(bed, question(cache="refresh"))) == ("Answer 3 [1].", "miss")
    assert told(await read(bed)) == ("Answer 3 [1].", "hit")


async def test_what_is_drawn_at_random_is_made_each_time_unless_the_settings_say_otherwise(clock: Clock) -> None:
    drawn = question(sampling=Sampling(temperature=0.7))
    for sampled, made in ((False, 2), (True, 1)):
        bed = Bed(sampled=sampled)
        await read(bed, drawn)
        await read(bed, drawn)
        assert bed.answers.made == made
        await bed.hot.close()
        bed.cache.close()


async def test_after_a_change_nothing_of_the_collection_is_left_not_even_what_was_being_made(bed: Bed) -> None:
    await read(bed)
    other = question("Other?", collection="d")
    await read(bed, other)
    bed.answers.gate.clear()
    making = asyncio.create_task(read(bed, question("Third?")))
    await until(lambda: bed.answers.made == 3)
    bed.cache.forget("c")
    bed.answers.gate.set()
    await making
    assert told(await read(bed, other))[1] == "hit"
    assert told(await read(bed))[1] == "miss"
    assert told(await read(bed, question("Third?")))[1] == "miss"


async def test_answers_survive_a_restart(tmp_path: Path, clock: Clock) -> None:
    first = Bed(tmp_path)
    await read(first)
    await first.hot.close()
    first.cache.close()
    second = Bed(tmp_path)
    assert told(await read(second)) == ("Answer 1 [1].", "hit")
    assert second.answers.made == 0
    await second.hot.close()
    second.cache.close()


async def test_one_in_a_hurry_does_not_cut_the_answer_of_one_who_is_not(bed: Bed) -> None:
    bed.answers.gate.clear()
    readers = [asyncio.create_task(read(bed, question(deadline_ms=ms))) for ms in (50.0, None)]
    await until(lambda: bed.answers.made == 2)
    bed.answers.gate.set()
    await asyncio.gather(*readers)


def test_a_version_is_another_one_for_each_change_collection_and_model() -> None:
    versions = Versions(["store", "model"], {"c": 5})
    found = [versions.of("c"), versions.of("d"), versions.of(None)]
    versions.changed("c", 6)
    found.append(versions.of("c"))
    versions.changed("d", 7)
    found.append(versions.of("d"))
    found.append(Versions(["store", "other model"], {"c": 5}).of("c"))
    assert len(set(found)) == len(found)
    assert Versions(["store", "model"], {"c": 5}).of("c") == found[0]  # after a restart


async def test_closing_ends_what_is_being_made(bed: Bed) -> None:
    bed.answers.gate.clear()
    reading = asyncio.create_task(read(bed))
    await until(lambda: bed.answers.made == 1)
    await bed.hot.close()
    with pytest.raises(Unavailable):
        await reading
    assert bed.answers.ended == 1
