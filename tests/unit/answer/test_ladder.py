"""The rung that an answer gets, the estimates that it is chosen by, and the queue before recall."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.answer.estimates import Estimates
from appliance.answer.ladder import RERANK_LEAST_MS, Costs, Rung, highest, rerank_budget_ms
from appliance.answer.turnstile import Turnstile
from appliance.errors import Overloaded

MS = st.floats(0, 1e5)
COSTS = st.builds(Costs, waiting=MS, words=MS, recall=MS, generation=MS)


@given(left=MS, costs=COSTS, best=st.sampled_from(Rung))
def test_the_rung_fits_and_none_better_does(left: float, costs: Costs, best: Rung) -> None:
    rung = highest(left, costs, best)
    assert rung >= best
    assert rung == Rung.REFUSED or costs.of(rung) <= left
    assert all(costs.of(better) > left for better in Rung if best <= better < rung)


@given(left=MS, more=MS, costs=COSTS)
def test_more_time_never_gets_a_worse_answer(left: float, more: float, costs: Costs) -> None:
    assert highest(left + more, costs) <= highest(left, costs)


@given(left=MS, costs=COSTS, most=st.floats(1, 5000))
def test_what_is_left_for_reranking_leaves_the_rest_its_time(left: float, costs: Costs, most: float) -> None:
    if highest(left, costs) == Rung.FULL:
        budget = rerank_budget_ms(left, costs, most)
        assert min(RERANK_LEAST_MS, most) <= budget + 1e-6
        assert budget <= most
        assert costs.of(Rung.UNRANKED) + budget <= left + 1e-6


def test_steps_down_in_order_as_time_runs_out() -> None:
    costs = Costs(waiting=10, words=5, recall=40, generation=500)
    rungs = [highest(left, costs) for left in (1000, 560, 300, 20, 5)]
    assert rungs == [Rung.FULL, Rung.UNRANKED, Rung.EXCERPTS, Rung.WORDS, Rung.REFUSED]


def test_while_nothing_is_known_everything_is_tried() -> None:
    assert highest(1000, Costs()) == Rung.FULL


def test_an_estimate_follows_what_is_measured() -> None:
    estimates = Estimates()
    assert estimates.mean_ms("recall", 3) == 0.0 == estimates.promise_ms("recall", 3)
    for _ in range(100):
        estimates.observe("recall", 0, 10.0)
    assert estimates.mean_ms("recall", 0) == pytest.approx(10)
    assert estimates.promise_ms("recall", 0) == pytest.approx(10, rel=0.01)
    for _ in range(100):
        estimates.observe("recall", 0, 30.0)
    assert estimates.mean_ms("recall", 0) == pytest.approx(30, rel=0.01)


@given(st.lists(st.floats(1, 100), min_size=50, max_size=200))
def test_a_promise_is_not_below_the_mean(values: list[float]) -> None:
    estimates = Estimates()
    for value in values:
        estimates.observe("s", 0, value)
    assert 1 <= estimates.mean_ms("s", 0) <= 100.0001
    assert estimates.promise_ms("s", 0) >= estimates.mean_ms("s", 0)


def test_a_load_that_was_never_seen_is_reckoned_from_the_nearest() -> None:
    estimates = Estimates()
    estimates.observe("first_token", 1, 100.0)
    assert estimates.mean_ms("first_token", 8) == 800.0
    assert estimates.mean_ms("first_token", 0) == 50.0
    estimates.observe("first_token", 8, 300.0)
    assert estimates.mean_ms("first_token", 9) == 300.0


def test_what_is_never_tried_is_believed_less_each_time() -> None:
    estimates = Estimates()
    estimates.observe("generation", 0, 60_000.0)
    tries = 0
    while highest(5000, Costs(generation=estimates.promise_ms("generation", 0))) > Rung.UNRANKED:
        estimates.doubt("generation", 0)
        tries += 1
    assert 10 < tries < 60


async def test_so_many_at_once_in_the_order_of_their_coming() -> None:
    gate = Turnstile(2, 100)
    order: list[int] = []
    inside = most = 0
    let = asyncio.Event()

    async def go(number: int) -> None:
        nonlocal inside, most
        async with gate.turn():
            order.append(number)
            inside += 1
            most = max(most, inside)
            await let.wait()
            inside -= 1

    tasks = [asyncio.create_task(go(number)) for number in range(9)]
    await asyncio.sleep(0)
    assert gate.waiting == 7
    let.set()
    await asyncio.gather(*tasks)
    assert (most, order, gate.waiting) == (2, list(range(9)), 0)


async def test_one_too_many_is_told_when_to_come_back() -> None:
    gate = Turnstile(1, 2)
    async with gate.turn():
        waiting = [asyncio.create_task(_pass(gate)) for _ in range(2)]
        await asyncio.sleep(0)
        gate._stay_s = 3.0  # as if others had stayed so long
        assert gate.expected_ms() == 9000
        with pytest.raises(Overloaded) as refused:
            await _pass(gate)
        assert refused.value.retry_after_s == 6.0
    await asyncio.gather(*waiting)


async def _pass(gate: Turnstile) -> None:
    async with gate.turn():
        pass


@given(leavers=st.sets(st.integers(0, 9)), failing=st.sets(st.integers(0, 9)))
def test_whoever_leaves_or_fails_gives_the_place_to_the_next(leavers: set[int], failing: set[int]) -> None:
    async def scene() -> None:
        gate = Turnstile(2, 100)
        done: list[int] = []
        let = asyncio.Event()

        async def go(number: int) -> None:
            async with gate.turn():
                await let.wait()
                if number in failing:
                    raise ValueError
                done.append(number)

        tasks = [asyncio.create_task(go(number)) for number in range(10)]
        await asyncio.sleep(0)
        for number in leavers:
            tasks[number].cancel()
        await asyncio.sleep(0)
        let.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(done) == sorted(set(range(10)) - leavers - failing)
        assert (gate.waiting, gate._inside) == (0, 0)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(gate.turn())
            await stack.enter_async_context(gate.turn())

    asyncio.run(scene())


async def test_one_who_is_let_in_and_leaves_at_the_same_moment_takes_no_place_away() -> None:
    gate = Turnstile(1, 10)
    first = gate.turn()
    await first.__aenter__()
    second = asyncio.create_task(_pass(gate))
    third = asyncio.create_task(_pass(gate))
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)  # the second is let in …
    second.cancel()  # … and leaves before it runs
    await asyncio.wait_for(third, 5)
    assert (gate.waiting, gate._inside) == (0, 0)
