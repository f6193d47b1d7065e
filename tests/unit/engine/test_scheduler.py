"""Owns the proof of the engine's policy over plain data."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine.scheduler import (
    MIN_PREFILL_TOKENS,
    STEP_TARGET_S,
    Pace,
    Running,
    Waiting,
    admit,
    plan,
)

# A busy machine is no counterexample.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

WAITING = st.lists(st.tuples(st.integers(1, 100), st.one_of(st.just(math.inf), st.floats(0, 10))), max_size=20).map(
    lambda rows: [Waiting(number, cells, deadline) for number, (cells, deadline) in enumerate(rows)]
)
RUNNING = st.lists(st.tuples(st.integers(1, 600), st.booleans()), max_size=64).map(
    lambda rows: [
        Running(number, 1 if decoding else pending, decoding) for number, (pending, decoding) in enumerate(rows)
    ]
)


@UNHURRIED
@given(WAITING, st.integers(0, 8), st.integers(0, 300), st.floats(0, 10))
def test_only_what_fits_is_admitted_in_order_of_arrival(
    waiting: list[Waiting], sequences: int, cells: int, now: float
) -> None:
    result = admit(now, waiting, free_sequences=sequences, free_cells=cells)
    by_id = {request.id: request for request in waiting}
    assert len(result.admit) <= sequences
    assert sum(by_id[number].cells for number in result.admit) <= cells
    assert set(result.expired) == {request.id for request in waiting if now >= request.deadline_s}
    alive = [request.id for request in waiting if request.id not in result.expired]
    assert result.admit == alive[: len(result.admit)], "nobody overtakes"


@UNHURRIED
@given(WAITING, st.integers(1, 8), st.floats(0, 10))
def test_the_first_is_admitted_when_it_fits(waiting: list[Waiting], sequences: int, now: float) -> None:
    alive = [request for request in waiting if now < request.deadline_s]
    if alive:
        result = admit(now, waiting, free_sequences=sequences, free_cells=alive[0].cells)
        assert result.admit[:1] == [alive[0].id]


@UNHURRIED
@given(RUNNING, st.integers(1, 600))
def test_a_step_decodes_all_then_fills_up_with_prompts(running: list[Running], budget: int) -> None:
    chunks = plan(running, budget)
    by_id = {sequence.id: sequence for sequence in running}
    decoding = [sequence.id for sequence in running if sequence.decoding]
    assert [chunk.id for chunk in chunks[: len(decoding)]] == decoding
    prefill = chunks[len(decoding) :]
    assert all(1 <= chunk.tokens <= by_id[chunk.id].pending for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    spent = sum(chunk.tokens for chunk in prefill)
    room = max(budget - len(decoding), MIN_PREFILL_TOKENS)
    asked = sum(sequence.pending for sequence in running if not sequence.decoding)
    assert spent == min(room, asked), "no token of the budget is left unused, none is over it"
    assert all(chunk.tokens == by_id[chunk.id].pending for chunk in prefill[:-1]), "one prompt after the other"


@UNHURRIED
@given(st.floats(5, 5000), st.integers(32, 2048))
def test_the_pace_settles_at_steps_of_the_wanted_length(tokens_per_s: float, most: int) -> None:
    pace = Pace(most)
    for _ in range(30):
        pace.observe(pace.budget_tokens, pace.budget_tokens / tokens_per_s)
        assert MIN_PREFILL_TOKENS <= pace.budget_tokens <= most
    wanted = min(max(tokens_per_s * STEP_TARGET_S, MIN_PREFILL_TOKENS), most)
    assert abs(pace.budget_tokens - wanted) <= 1 + 0.01 * wanted


def test_one_slow_step_does_not_ruin_the_pace() -> None:
    pace = Pace(512)
    for _ in range(10):
        pace.observe(pace.budget_tokens, 0.1)
    before = pace.budget_tokens
    pace.observe(before, 10.0)
    assert pace.budget_tokens >= before // 2
