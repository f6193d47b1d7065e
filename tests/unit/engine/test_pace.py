"""Owns the proof that the pace learns a machine, on simulated ones."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine.pace import STEP_TARGET_S, Pace
from appliance.engine.policy import MIN_PREFILL_TOKENS

UNHURRIED = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
ITL_S = 0.25
MOST = 512


@dataclass
class Machine:
    """Seconds of a step: affine, with noise; `slower` is another load on it."""

    base: float
    prefill: float
    decode: float
    noise: float = 0.0
    seed: int = 0
    slower: float = 1.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def exact(self, decodes: int, prefill: int) -> float:
        return self.slower * (self.base + self.decode * decodes + self.prefill * prefill)

    def step(self, decodes: int, prefill: int) -> float:
        return self.exact(decodes, prefill) * self._random.uniform(1 - self.noise, 1 + self.noise)

    def warm(self, tokens: int = 16) -> tuple[int, float]:
        return tokens, self.step(0, tokens)

    def best(self, decodes: int, target: float) -> float:
        """The most tokens that a step within the target may hold."""
        fit = decodes + (target / self.slower - self.base - self.decode * decodes) / self.prefill
        return min(max(fit, MIN_PREFILL_TOKENS), MOST)


def run(pace: Pace, machine: Machine, steps: int, decodes: int) -> list[float]:
    """Steps that are filled up with prompt tokens; the exact cost of each."""
    costs = []
    for _ in range(steps):
        prefill = max(pace.budget(decodes) - decodes, MIN_PREFILL_TOKENS)
        pace.observe(decodes, prefill, machine.step(decodes, prefill))
        costs.append(machine.exact(decodes, prefill))
    return costs


# What real ones are like: a step's fixed cost is that of 1 to 200 prompt tokens, a decoded token that of ½ to 10.
MACHINES = st.builds(
    lambda prefill, base, decode, noise, seed: Machine(
        min(0.15, prefill * base), prefill, prefill * decode, noise, seed
    ),
    prefill=st.floats(0.0001, 0.02),
    base=st.floats(1, 200),
    decode=st.floats(0.5, 10),
    noise=st.floats(0, 0.1),
    seed=st.integers(0, 1000),
)


@UNHURRIED
@given(MACHINES, st.integers(0, 16), st.booleans())
def test_it_settles_at_steps_of_the_wanted_length(machine: Machine, decodes: int, warm: bool) -> None:
    pace = Pace(MOST, ITL_S, warm=machine.warm() if warm else None)
    run(pace, machine, 30, decodes)
    best = machine.best(decodes, ITL_S if decodes else STEP_TARGET_S)
    assert pace.budget(decodes) <= 1.3 * best + 1
    assert pace.budget(decodes) >= 0.4 * best - 1


@UNHURRIED
@given(MACHINES, st.integers(1, 8))
def test_it_knows_prompts_after_a_hundreds_of_steps_without_one(machine: Machine, decodes: int) -> None:
    pace = Pace(MOST, ITL_S, warm=machine.warm())
    run(pace, machine, 20, 0)
    for _ in range(300):
        pace.observe(decodes, 0, machine.step(decodes, 0))
    run(pace, machine, 1, decodes)
    prefill = max(pace.budget(decodes) - decodes, MIN_PREFILL_TOKENS)
    floor = machine.exact(decodes, MIN_PREFILL_TOKENS)
    assert machine.exact(decodes, prefill) <= max(1.4 * ITL_S, 1.01 * floor)
    assert pace.budget(decodes) >= 0.4 * machine.best(decodes, ITL_S) - 1


@UNHURRIED
@given(MACHINES, st.integers(0, 8))
def test_it_recovers_from_a_slow_hour(machine: Machine, decodes: int) -> None:
    pace = Pace(MOST, ITL_S, warm=machine.warm())
    target = ITL_S if decodes else STEP_TARGET_S
    run(pace, machine, 20, decodes)
    machine.slower = 10.0
    slow = run(pace, machine, 20, decodes)
    floor = machine.exact(decodes, MIN_PREFILL_TOKENS)
    assert max(slow[4:]) <= 1.6 * max(target, floor), "believed within a few steps"
    machine.slower = 1.0
    run(pace, machine, 20, decodes)
    assert pace.budget(decodes) >= 0.4 * machine.best(decodes, target) - 1


@UNHURRIED
@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 600), st.floats(0, 100)), max_size=60),
    st.integers(32, 2048),
    st.one_of(st.none(), st.tuples(st.integers(1, 64), st.floats(1e-6, 100))),
)
def test_whatever_it_sees_the_budget_stays_in_bounds(
    steps: list[tuple[int, int, float]], most: int, warm: tuple[int, float] | None
) -> None:
    pace = Pace(most, ITL_S, warm=warm)
    for decodes, prefill, seconds in [(0, 0, 0.0), *steps]:
        pace.observe(decodes, prefill, seconds)
        for others in (0, 1, 64):
            assert MIN_PREFILL_TOKENS <= pace.budget(others) <= most
            assert 0 <= pace.marginal(others) <= 1
        assert 0 <= pace.prefill_s(100) < float("inf")


def test_the_first_prompts_are_not_paid_for_learning() -> None:
    machine = Machine(base=0.03, prefill=0.001, decode=0.002)
    pace = Pace(MOST, ITL_S, warm=machine.warm())
    read = steps = 0
    while read < 1200:
        read += pace.budget(0)
        steps += 1
        pace.observe(0, pace.budget(0), machine.step(0, pace.budget(0)))
    assert steps <= 5  # three, if all were known
    assert pace.budget(0) > 0.8 * machine.best(0, STEP_TARGET_S)


def test_one_odd_step_changes_little_a_second_one_is_believed() -> None:
    machine = Machine(base=0.02, prefill=0.003, decode=0.005)
    pace = Pace(MOST, ITL_S, warm=machine.warm())
    run(pace, machine, 20, 4)
    before = pace.budget(4)
    prefill = before - 4
    pace.observe(4, prefill, 20 * machine.exact(4, prefill))
    assert pace.budget(4) >= 0.6 * before
    pace.observe(4, prefill, 20 * machine.exact(4, prefill))
    assert pace.budget(4) <= 0.3 * before


def test_the_cost_of_other_steps_is_not_taken_for_a_slower_machine() -> None:
    """Prompts of one size do not tell the fixed cost; the decodes that follow do, and a prompt costs what it did."""
    machine = Machine(base=0.125, prefill=0.002, decode=0.016)
    pace = Pace(MOST, ITL_S, warm=machine.warm())
    run(pace, machine, 20, 0)
    for _ in range(20):
        pace.observe(1, 0, machine.step(1, 0))
    assert pace.budget(1) >= 0.5 * machine.best(1, ITL_S)


def test_no_step_is_far_beyond_what_was_measured() -> None:
    pace = Pace(4096, ITL_S, warm=(16, 1e-4))
    assert pace.budget(0) == 8 * 16
    pace.observe(0, 128, 1e-3)
    assert pace.budget(0) == 8 * 128


def test_prefill_is_estimated_once_something_was_measured() -> None:
    assert Pace(MOST, ITL_S).prefill_s(1000) == 0.0
    machine = Machine(base=0.03, prefill=0.002, decode=0.004)
    pace = Pace(MOST, ITL_S)
    run(pace, machine, 20, 0)
    steps = -(-2000 // pace.budget(0))
    assert pace.prefill_s(2000) == pytest.approx(steps * machine.base + 2000 * machine.prefill, rel=0.1)


def test_an_estimate_that_refuses_everybody_is_tried_again() -> None:
    """Ten times too slow, and no step is measured: after some refusals a request is let in, and corrects it."""
    fast = Machine(base=0.03, prefill=0.002, decode=0.004)
    pace = Pace(MOST, ITL_S, warm=Machine(base=0.3, prefill=0.02, decode=0.04).warm())
    true = fast.exact(0, 1000)
    refusals = 0
    while pace.prefill_s(1000) > 1.5 * true and refusals < 100:
        pace.doubt()
        refusals += 1
    assert 5 <= refusals <= 30
    run(pace, fast, 4, 0)
    assert pace.prefill_s(1000) == pytest.approx(true, rel=0.3)


@UNHURRIED
@given(MACHINES, st.integers(1, 16))
def test_the_price_of_a_guess_is_learned_from_guesses(machine: Machine, decodes: int) -> None:
    pace = Pace(MOST, ITL_S, warm=machine.warm())
    assert Pace(MOST, ITL_S).marginal(1) == 1.0
    for number in range(80):
        tokens = decodes + number % 5 * 2
        pace.observe(tokens, 0, machine.step(tokens, 0))
    own = machine.decode * decodes
    assert pace.marginal(decodes) == pytest.approx(own / (machine.base + own), abs=0.25)
