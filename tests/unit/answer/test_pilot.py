"""Which rung an answer takes while the appliance learns how long its stages take, and how the pipeline follows."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from appliance.answer.ladder import Rung
from appliance.answer.pilot import Pilot
from appliance.answer.pipeline import Answerer
from appliance.answer.types import Delta, Event, Finished, Question
from appliance.config import AnswerSettings
from appliance.errors import Overloaded
from appliance.retrieval.types import SearchRequest, SearchResult
from tests.unit.answer.test_pipeline import ScriptedGenerator, ScriptedRecall, ask, passages

SAID = ["The casing bolts are tightened to 45 Nm."]


def pilot(recall_ms: float = 20, words_ms: float = 2, generation_ms: float = 500) -> Pilot:
    """One that has seen many answers, each like the other."""
    made = Pilot(width=2, most_waiting=3, rerank_ms=1000)
    for _ in range(200):
        made.learn_recall(Rung.FULL, recall_ms)
        made.learn_recall(Rung.WORDS, words_ms)
        made.learn_generation(0, generation_ms)
    return made


async def answer(
    made: Pilot, question: Question, recall: ScriptedRecall | None = None, generator: ScriptedGenerator | None = None
) -> tuple[str, Finished]:
    answerer = Answerer(
        recall or ScriptedRecall(passages()), generator or ScriptedGenerator(SAID), ["en"], AnswerSettings(), pilot=made
    )
    found: list[Event] = [event async for event in answerer.ask(question)]
    last = found[-1]
    assert isinstance(last, Finished)
    return "".join(event.text for event in found if isinstance(event, Delta)), last


def codes(finished: Finished) -> list[str]:
    return [reason.split(":")[0] for reason in finished.report.degraded]


@pytest.mark.parametrize(
    ("deadline_ms", "mode", "rerank", "generated", "said"),
    [
        (5000.0, "hybrid", True, True, []),
        (560.0, "hybrid", False, True, ["rerank_skipped"]),
        (300.0, "hybrid", False, False, ["no_time_to_generate"]),
        (15.0, "lexical", False, False, ["words_only"]),
    ],
)
async def test_the_less_time_the_simpler_the_answer_and_it_says_so(
    deadline_ms: float, mode: str, rerank: bool, generated: bool, said: list[str]
) -> None:
    recall, generator = ScriptedRecall(passages()), ScriptedGenerator(SAID)
    text, finished = await answer(pilot(), ask(deadline_ms=deadline_ms), recall, generator)
    (request,) = recall.requests
    assert (request.mode, request.rerank, bool(generator.asked)) == (mode, rerank, generated)
    assert codes(finished) == said
    assert "45 Nm" in text


async def test_reranking_gets_what_the_rest_leaves_it() -> None:
    recall = ScriptedRecall(passages())
    await answer(pilot(), ask(deadline_ms=900.0), recall)
    budget = recall.requests[0].rerank_budget_ms
    assert budget is not None
    assert 300 < budget <= 900 - 520


async def test_recall_that_took_too_long_leaves_no_time_to_generate() -> None:
    class Slow(ScriptedRecall):
        def search(self, request: SearchRequest) -> SearchResult:
            threading.Event().wait(0.3)
            return super().search(request)

    generator = ScriptedGenerator(SAID)
    _, finished = await answer(pilot(), ask(deadline_ms=700.0), Slow(passages()), generator)
    assert codes(finished) == ["no_time_to_generate"]
    assert generator.asked == []


async def test_an_engine_that_is_down_is_not_waited_for_and_nothing_is_reranked_meanwhile() -> None:
    for state in ("restarting", "failed"):
        recall, generator = ScriptedRecall(passages()), ScriptedGenerator(SAID)
        generator.state = state
        text, finished = await answer(pilot(), ask(), recall, generator)
        assert (recall.requests[0].rerank, generator.waited_s, generator.asked) == (False, -1.0, [])
        assert codes(finished) == ["engine_unavailable"]
        assert "45 Nm" in text


async def test_what_an_answer_took_is_learned() -> None:
    made = Pilot()
    await answer(made, ask())
    assert made._estimates.mean_ms("generation", 0) > 0
    assert made._estimates.mean_ms("recall", 0) > 0


async def test_an_answer_that_was_thought_impossible_is_tried_again_after_a_while() -> None:
    made, tries = pilot(generation_ms=60_000), 0
    generator = ScriptedGenerator(SAID)
    while not generator.asked:
        await answer(made, ask(deadline_ms=5000.0), generator=generator)
        tries += 1
    assert 10 < tries < 60


async def test_who_could_not_be_answered_in_time_is_refused_at_once_and_told_when_to_come_back() -> None:
    made = pilot()
    made._turnstile._stay_s = 10.0
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(made.turn(1e9))
        waiting = [asyncio.create_task(_pass(made)) for _ in range(3)]
        await asyncio.sleep(0)
        assert made.busy
        with pytest.raises(Overloaded, match="within its deadline") as refused:
            await answer(made, ask(deadline_ms=5000.0))
        assert refused.value.retry_after_s == 15.0
        with pytest.raises(Overloaded, match="wait already"):
            await answer(made, ask(deadline_ms=1e6))
    await asyncio.gather(*waiting)
    _, finished = await answer(made, ask())
    assert codes(finished) == []


async def _pass(made: Pilot) -> None:
    async with made.turn(1e9):
        pass


async def test_the_more_wait_the_less_is_reranked() -> None:
    made = pilot()
    idle = made.course(1e6, best=Rung.FULL, generates=True).rerank_ms
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(made.turn(1e9))
        waiting = [asyncio.create_task(_pass(made)) for _ in range(2)]
        await asyncio.sleep(0)
        assert made.course(1e6, best=Rung.FULL, generates=True).rerank_ms == idle / 2
    await asyncio.gather(*waiting)
