"""Owns the proof that guesses are repetitions, pay where the text repeats, and cost nearly nothing elsewhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine.speculate import Drafter

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.lists(st.integers(0, 3), max_size=60)
MOST = 12


def longest_repetition(tokens: list[int]) -> tuple[int, int]:
    """Brute force: where the longest match of the end (3 to 8 tokens) goes on, among the 16 latest; its length."""
    end = len(tokens)
    places = [place for place in range(3, end) if tokens[place - 3 : place] == tokens[end - 3 :]]
    best, longest = -1, 0
    for place in places[::-1][:16]:
        length = max(n for n in range(3, 9) if n <= place and tokens[place - n : place] == tokens[end - n :])
        if length > longest:
            best, longest = place, length
    return best, longest


@UNHURRIED
@given(TEXT, st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=10))
def test_a_guess_continues_the_longest_and_latest_repetition(prompt: list[int], more: list[list[int]]) -> None:
    tokens = list(prompt)
    drafter = Drafter(prompt, MOST)
    for part in [[], *more]:
        drafter.extend(part)
        tokens += part
        guess = drafter.draft(0.01)
        place, _ = longest_repetition(tokens) if len(tokens) >= 3 else (-1, 0)
        assert bool(guess) == (place >= 0)
        repeated = list(tokens)
        for source in range(place, place + len(guess)):
            repeated.append(repeated[source])
        assert guess == repeated[len(tokens) :]
        assert len(guess) <= MOST


def cost(truth: list[int], prompt: list[int], price: float) -> tuple[float, int, int]:
    """Generate `truth` with guesses: its cost in steps, tokens guessed, tokens accepted."""
    drafter = Drafter(prompt, MOST)
    done, steps, drafted, right = 0, 0.0, 0, 0
    while done < len(truth):
        guess = drafter.draft(price)[: len(truth) - done - 1]
        accepted = 0
        while accepted < len(guess) and guess[accepted] == truth[done + accepted]:
            accepted += 1
        drafter.extend(truth[done : done + accepted + 1])
        drafter.verified(len(guess), accepted)
        done += accepted + 1
        steps += 1 + price * len(guess)
        drafted += len(guess)
        right += accepted
    return steps, drafted, right


@UNHURRIED
@given(TEXT, st.lists(st.integers(0, 3), min_size=1, max_size=300), st.floats(0, 1.5))
def test_no_text_costs_more_than_the_account_allows(prompt: list[int], truth: list[int], price: float) -> None:
    steps, _, _ = cost(truth, prompt, price)
    assert steps <= 1.01 * len(truth) + 0.5 + 1e-3 * len(truth)


def quoting(rng: random.Random) -> tuple[list[int], list[int]]:
    """A prompt of passages, and an answer of quotes (two thirds of it) with own words between them."""
    prompt = [rng.randrange(2000) for _ in range(800)]
    answer: list[int] = []
    while len(answer) < 160:
        start = rng.randrange(700)
        answer += prompt[start : start + rng.randrange(10, 35)]
        answer += [rng.randrange(2000) for _ in range(rng.randrange(5, 18))]
    return prompt, answer


@pytest.mark.parametrize("price", [0.05, 0.15, 0.3])
def test_quotes_come_faster(price: float) -> None:
    rng = random.Random(7)
    plain = guessed = 0.0
    for _ in range(40):
        prompt, answer = quoting(rng)
        plain += len(answer)
        guessed += cost(answer, prompt, price)[0]
    assert plain / guessed >= 1.3


@pytest.mark.parametrize("price", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("vocabulary", [4, 12, 100, 2000])
def test_text_that_only_seems_to_repeat_costs_next_to_nothing(price: float, vocabulary: int) -> None:
    rng = random.Random(3)
    weights = [1 / (1 + rank) for rank in range(vocabulary)]
    plain = guessed = 0.0
    for _ in range(40):
        prompt = rng.choices(range(vocabulary), weights, k=600)
        answer = rng.choices(range(vocabulary), weights, k=128)
        plain += len(answer)
        guessed += cost(answer, prompt, price)[0]
    assert guessed / plain <= 1.02


def test_it_wakes_when_quotes_begin_after_a_long_stretch_of_failures() -> None:
    rng = random.Random(5)
    prompt = [rng.randrange(3) for _ in range(500)]
    passage = [100 + number for number in range(200)]
    truth = [rng.randrange(3) for _ in range(400)] + passage + passage
    before = cost(truth[:600], prompt, 0.3)[0]
    assert cost(truth, prompt, 0.3)[0] - before < 0.6 * 200, "the passage comes again, and is guessed"


def test_nothing_is_guessed_at_the_price_of_what_it_saves() -> None:
    drafter = Drafter([1, 2, 3, 4] * 9, MOST)
    assert drafter.draft(1.0) == []
    assert drafter.draft(0.01)[:5] == [1, 2, 3, 4, 1]


def test_the_better_guesses_are_the_longer_they_get() -> None:
    drafter = Drafter(list(range(50)) * 2, MOST)
    lengths = []
    for _ in range(20):
        guess = drafter.draft(0.1)
        lengths.append(len(guess))
        drafter.verified(len(guess), len(guess))
    assert lengths[0] < lengths[-1] == MOST
    for _ in range(20):
        guess = drafter.draft(0.1)
        drafter.verified(len(guess), 0)
    assert len(drafter.draft(0.1)) <= 1


def test_the_work_for_a_token_does_not_grow_with_the_text() -> None:
    """Many places alike, none of them a long match, is the worst case: only some of them are looked at."""

    class Counted(list[int]):
        looks = 0

        def __getitem__(self, place):  # type: ignore[no-untyped-def]  # an overload for slices, too
            Counted.looks += 1
            return super().__getitem__(place)

    drafter = Drafter([t for number in range(5000) for t in (10 + number, 1, 2, 3)], MOST)
    drafter._before = Counted(drafter._before)
    drafter._tokens = Counted(drafter._tokens)
    assert drafter.draft(0.01)
    assert 0 < Counted.looks < 16 * 20
