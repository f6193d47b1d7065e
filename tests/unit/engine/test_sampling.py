"""Owns the proof of how tokens are chosen: against llama.cpp's own samplers, and against plain definitions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.dry import BREAKERS, Dry
from appliance.engine.protocol import Sampling
from appliance.engine.sampling import PENALTY_TOKENS, Sampler, candidates, fault_of, pick, top

VOCABULARY = 500
Row = npt.NDArray[np.float32]


class Pieces:
    """Every tenth token is a breaker."""

    def piece(self, token: int) -> bytes:
        return b"%d\n" % token if token % 10 == 9 else b"%d" % token


class Only:
    """A matcher that allows the tokens after the last one it accepted, up to `width`."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.accepted: list[int] = []

    def mask(self, logits: Row) -> None:
        begin = (self.accepted[-1] if self.accepted else -1) + 1
        logits[:begin] = -np.inf
        logits[begin + self.width :] = -np.inf

    def accept(self, token: int) -> None:
        self.accepted.append(token)


def rows(count: int, seed: int = 0, size: int = VOCABULARY) -> Row:
    """Logits with a head like a model's."""
    chance = np.random.default_rng(seed)
    logits = chance.standard_normal((count, size)).astype(np.float32)
    for row in logits:
        row[chance.choice(size, 20, replace=False)] += np.linspace(9, 1, 20, dtype=np.float32)
    return logits


def generate(sampling: Sampling, logits: Row, prompt: Sequence[int] = (), answer: Sequence[int] = ()) -> list[int]:
    """The answer, and what follows it, one token for each row."""
    sampler = Sampler(Pieces(), sampling, [*prompt, *answer], len(prompt))
    return [*answer, *(sampler.choose(row.copy()).token for row in logits)]


def llama_cpp(logits: Row, *samplers: Any, accepted: Sequence[int] = ()) -> dict[int, float]:
    """Logits of the candidates that are left when llama.cpp applies samplers, which it then frees."""
    import llama_cpp as api

    data = (api.llama_token_data * logits.size)(
        *(api.llama_token_data(token, float(logit), 0.0) for token, logit in enumerate(logits))
    )
    array: Any = api.llama_token_data_array(data, logits.size, -1, False)
    for sampler in samplers:
        for token in accepted:
            api.llama_sampler_accept(sampler, token)
        api.llama_sampler_apply(sampler, ctypes.byref(array))
        api.llama_sampler_free(sampler)
    return {array.data[i].id: array.data[i].logit for i in range(array.size)}


PARAMETERS = st.builds(
    Sampling,
    temperature=st.floats(0.1, 3),
    top_k=st.sampled_from([0, 1, 3, 40, VOCABULARY, 10 * VOCABULARY]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 1.0]),
)


@given(PARAMETERS, st.integers(0, 1000))
@settings(deadline=None)
def test_what_may_be_drawn_is_what_llama_cpp_leaves(sampling: Sampling, seed: int) -> None:
    import llama_cpp as api

    row = rows(1, seed)[0]
    best = float(row.max())
    expected = llama_cpp(
        row,
        api.llama_sampler_init_top_k(sampling.top_k),
        api.llama_sampler_init_top_p(sampling.top_p, 1),
        api.llama_sampler_init_min_p(sampling.min_p, 1),
        api.llama_sampler_init_temp(sampling.temperature),
    )
    tokens, weights = candidates(row, best, sampling)
    found = range(VOCABULARY) if tokens is None else tokens.tolist()
    # llama.cpp adds probabilities up in float32, so the last token of top_p may be another one: nothing else may.
    parted = set(found) ^ set(expected)
    assert len(parted) <= 1
    for token in parted:
        ranked = np.sort(row)[::-1][: sampling.top_k or None].astype(np.float64)
        shares = np.exp(ranked - best) / np.exp(ranked - best).sum()
        place = int((ranked > row[token]).sum())
        assert abs(shares[:place].sum() - sampling.top_p) < 1e-5
    for token, weight in zip(found, weights, strict=True):
        if token in parted:
            continue
        assert weight == pytest.approx(np.exp(expected[token] - best / sampling.temperature), rel=1e-4)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=2 * PENALTY_TOKENS),
    st.sampled_from([0.5, 1.0, 1.3]),
    st.sampled_from([-1.0, 0.0, 0.7]),
    st.sampled_from([0.0, 1.5]),
)
@settings(deadline=None)
def test_penalties_are_those_of_llama_cpp(prompt: list[int], repeat: float, frequency: float, presence: float) -> None:
    import llama_cpp as api

    sampling = Sampling(repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=presence)
    row = rows(1, len(prompt))[0]
    penalties = api.llama_sampler_init_penalties(VOCABULARY, PENALTY_TOKENS, repeat, frequency, presence)
    expected = llama_cpp(row, penalties, accepted=prompt)
    changed = row.copy()
    Sampler(Pieces(), sampling, prompt, len(prompt)).choose(changed)
    assert changed == pytest.approx(np.array([expected[token] for token in range(VOCABULARY)]), rel=1e-5, abs=1e-6)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 4),
    st.sampled_from([1.0, 1.75, 3.0]),
    st.sampled_from([-1, 3, 20]),
    st.integers(0, 10),
)
@settings(deadline=None)
def test_dry_is_that_of_llama_cpp(tokens: list[int], allowed: int, base: float, last_n: int, later: int) -> None:
    import llama_cpp as api

    row = np.zeros(8, np.float32)
    known = len(tokens) if last_n < 0 else last_n
    theirs = api.llama_sampler_init_dry(None, 0.8, base, allowed, known, None, 0)
    expected = llama_cpp(row, theirs, accepted=tokens)
    # Some tokens are known at first, the others come one by one.
    dry = Dry(0.8, base, allowed, last_n, tokens[:-later] if later else tokens, lambda token: b"")
    for token in tokens[-later:] if later else ():
        dry.accept(token)
    dry.apply(row)
    assert row == pytest.approx(np.array([expected[token] for token in range(8)]), rel=1e-4)


def test_a_repetition_ends_at_a_breaker_and_a_breaker_is_not_penalised() -> None:
    piece = Pieces().piece
    assert any(breaker in piece(9) for breaker in BREAKERS)

    def penalised(tokens: list[int]) -> list[int]:
        row = np.zeros(32, np.float32)
        Dry(1.0, 1.75, 2, -1, tokens, piece).apply(row)
        return np.flatnonzero(row).tolist()

    assert penalised([1, 2, 3, 0, 1, 2]) == [3]
    assert penalised([1, 9, 3, 0, 1, 9]) == []
    assert penalised([9, 1, 2, 3, 0, 9, 1, 2]) == [3]
    assert penalised([1, 2, 9, 0, 1, 2]) == []


SAMPLINGS = {
    "greedy": Sampling(repeat_penalty=1.3),
    "plain": Sampling(temperature=1.0, seed=7),
    "top_p": Sampling(temperature=1.0, top_p=0.9, seed=-1),
    "all": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, seed=2**63 - 1, presence_penalty=0.5),
    "dry": Sampling(temperature=1.0, dry_multiplier=0.8, dry_allowed_length=1, seed=3),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_an_answer_that_is_taken_over_goes_on_the_same(sampling: Sampling) -> None:
    logits = rows(24)
    prompt = [1, 2, 3, 1, 2]
    whole = generate(sampling, logits, prompt)
    for done in range(0, 24, 5):
        assert generate(sampling, logits[done:], prompt, whole[:done]) == whole


def test_seeds_tell_texts_apart_and_no_seed_is_a_new_one() -> None:
    logits = np.zeros((8, VOCABULARY), np.float32)
    texts = [tuple(generate(Sampling(temperature=1.0, seed=seed), logits)) for seed in (0, 1, None, None)]
    assert len(set(texts)) == 4
    assert len(set(texts[0])) > 4, "the draws of one text differ"


def test_draws_follow_the_distribution() -> None:
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.tile(np.log(shares).astype(np.float32), (4000, 1))
    counts = np.bincount(generate(Sampling(temperature=1.0, seed=5), logits), minlength=4)
    assert np.abs(counts / 4000 - shares).max() < 0.025


@given(st.lists(st.sampled_from([0.0, 1e-30, 0.25, 1.0]), min_size=1, max_size=700), st.floats(0, 1, exclude_max=True))
@settings(deadline=None)
def test_a_place_is_picked_by_the_running_sum_and_never_one_without_weight(values: list[float], share: float) -> None:
    weights = np.array([*values, 1.0, 0.0], np.float32)
    place = pick(weights, share)
    assert weights[place] > 0
    exact = weights.astype(np.float64)
    before, after = exact[:place].sum() / exact.sum(), exact[: place + 1].sum() / exact.sum()
    assert before - 1e-12 <= share <= after + 1e-12


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50), st.data())
def test_the_top_is_the_largest_and_of_equal_ones_the_first(values: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert top(np.array(values, np.float32), count).tolist() == expected


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1e-5, seed=1), Sampling(repeat_penalty=1.1)])
def test_of_equal_maxima_the_first_is_taken_when_cold(sampling: Sampling) -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, [40, 30, 50]] = 2.0
    assert generate(sampling, logits) == [30]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_forbids_and_forces(temperature: float) -> None:
    logits = rows(6)
    best = int(logits[0].argmax())
    banned = Sampling(temperature=temperature, logit_bias={best: -100.0}, seed=1)
    assert best not in generate(banned, logits[:1].repeat(50, axis=0))
    assert generate(Sampling(temperature=temperature, logit_bias={77: 100.0}, seed=1), logits) == [77] * 6


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_constraint_holds_and_is_brought_to_where_the_answer_is(sampling: Sampling) -> None:
    logits = rows(12)
    matcher = Only(3)
    sampler = Sampler(Pieces(), sampling, [5], 1, matcher)
    whole = [sampler.choose(row.copy()).token for row in logits]
    assert matcher.accepted == whole
    assert all(0 < after - before <= 3 for before, after in zip([-1, *whole], whole, strict=False))
    later = Only(3)
    resumed = Sampler(Pieces(), sampling, [5, *whole[:6]], 1, later)
    assert [resumed.choose(row.copy()).token for row in logits[6:]] == whole[6:]
    assert later.accepted == whole


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(temperature: float, broken: float) -> None:
    row = rows(1)[0]
    row[3] = broken
    with pytest.raises(ArithmeticError, match="not a number"):
        Sampler(Pieces(), Sampling(temperature=temperature), [], 0).choose(row)
    with pytest.raises(ArithmeticError, match="not a number"):
        Sampler(Pieces(), Sampling(temperature=temperature), [], 0).choose(np.full(9, -np.inf, np.float32))


def test_a_constraint_that_leaves_nothing_is_an_error() -> None:
    with pytest.raises(ArithmeticError, match="no token is left"):
        Sampler(Pieces(), Sampling(temperature=1.0), [], 0, Only(0)).choose(rows(1)[0])


@pytest.mark.parametrize("wanted", [0, 1, 20])
def test_logprobs_are_the_models_own_whatever_is_done_to_the_choice(wanted: int) -> None:
    row = rows(1)[0] + np.float32(300)  # beyond what exp takes
    exact = row.astype(np.float64) - 300
    expected = exact - np.log(np.exp(exact).sum())
    sampling = Sampling(logprobs=wanted, logit_bias={77: 100.0}, repeat_penalty=2.0, temperature=2.0, top_k=1)
    logprob = Sampler(Pieces(), sampling, [1, 2], 2).choose(row).logprob
    assert logprob is not None
    assert (logprob.token, logprob.data) == (77, b"77")
    assert logprob.logprob == pytest.approx(expected[77], abs=1e-4)
    best = np.argsort(-exact, kind="stable")[:wanted]
    assert [entry[:2] for entry in logprob.top] == [(token, Pieces().piece(int(token))) for token in best]
    assert [entry[2] for entry in logprob.top] == pytest.approx(expected[best], abs=1e-4)


def test_logprobs_are_left_out_unless_asked_for() -> None:
    assert Sampler(Pieces(), Sampling(), [], 0).choose(rows(1)[0]).logprob is None


GOOD = [Sampling(), Sampling(logprobs=20), Sampling(logprobs=0), Sampling(dry_penalty_last_n=0), Sampling(seed=-5)]
BAD: dict[str, list[dict[str, Any]]] = {
    "finite": [{name: value} for name in ("temperature", "dry_base") for value in (float("nan"), float("inf"), 1e30)],
    "none beyond": [{"logit_bias": {1: 1e30}}, {"dry_multiplier": float("nan")}, {"presence_penalty": -1e30}],
    "repeat_penalty": [{"repeat_penalty": 0.0}, {"repeat_penalty": 1e-40}],
    "top_k": [{"top_k": -1}, {"top_p": 1.1}, {"top_p": -0.1}, {"min_p": 1.1}],
    "dry_multiplier": [{"dry_multiplier": -0.1}, {"dry_base": 0.9}],
    "dry_allowed_length": [{"dry_allowed_length": 0}, {"dry_penalty_last_n": -2}],
    "logprobs": [{"logprobs": -1}, {"logprobs": 21}],
    "logit_bias": [{"logit_bias": {VOCABULARY: 1.0}}, {"logit_bias": {-1: 1.0}}],
}


def test_faults_are_named() -> None:
    assert [fault_of(sampling, VOCABULARY) for sampling in GOOD] == [""] * len(GOOD)
    for word, parameters in BAD.items():
        for wrong in parameters:
            assert word in fault_of(Sampling(**wrong), VOCABULARY), wrong
