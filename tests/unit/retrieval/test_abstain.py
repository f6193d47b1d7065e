"""Whether the documents answer: what the evidence is, and that better scores never make an answer less likely."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ModelCorrupt
from appliance.retrieval.abstain import (
    HEARD,
    Evidence,
    FirstWeights,
    RerankedWeights,
    Weights,
    evidence,
    probability,
    weights_of,
)
from appliance.retrieval.fuse import DEFAULT_MIX, mix_of

NAN = float("nan")
NONE = np.empty(0)
SHIPPED = Path(__file__).parents[3] / "models" / "pocket-reranker" / "config.json"
WEIGHTS = Weights(
    FirstWeights(top=0.5, gap=0.7, cover=2.0, bias=-1.0),
    RerankedWeights(top=0.3, gap=0.2, cover=1.0, ce=0.4, ce_gap=0.1, bias=-0.5),
)


def test_the_evidence_is_what_stands_out() -> None:
    first = np.array([1.0, 9.0, 8.0, 7.0, 2.0, 0.0, -50.0, 1.0, 1.0, 1.0, 1.0])
    seen = evidence(first, np.array([2.0, NAN, 6.0, *[0.0] * 8]), 8.0, np.array([NAN, 3.0, 1.0, 2.0]))
    assert seen == Evidence(9.0, 9.0 - 7 / 7, 0.75, 3.0, 1.5)


def test_a_passage_beyond_all_words_counts_as_all_of_them() -> None:
    seen = evidence(np.array([1.0]), np.array([9.0]), 8.0, NONE)
    assert seen is not None
    assert (seen.cover, seen.gap) == (1.0, 0.0)


@pytest.mark.parametrize("logits", [[], [NAN] * 5, [1.0, 2.0], [1.0, NAN, 2.0]])
def test_few_reranked_passages_leave_the_judgement_to_the_first_stage(logits: list[float]) -> None:
    seen = evidence(np.array([2.0, 1.0]), np.array([4.0, NAN]), 8.0, np.array(logits))
    assert seen is not None
    assert probability(WEIGHTS, seen) == pytest.approx(1 / (1 + math.exp(-(-1.0 + 1.0 + 0.7 + 1.0))))


def test_three_reranked_passages_are_heard() -> None:
    seen = evidence(np.array([2.0, 1.0]), np.array([4.0, NAN]), 8.0, np.array([1.0, NAN, 3.0, 2.0]))
    assert seen is not None
    assert probability(WEIGHTS, seen) == pytest.approx(1 / (1 + math.exp(-(-0.5 + 0.6 + 0.2 + 0.5 + 1.2 + 0.15))))


def test_how_many_more_were_reranked_changes_nothing() -> None:
    first, bm25 = np.linspace(9, 0, 40), np.full(40, NAN)
    logits = np.linspace(-1, 3, 40)
    assert evidence(first, bm25, 1.0, logits) == evidence(first, bm25, 1.0, logits[:HEARD])


def test_nothing_found_is_no_evidence() -> None:
    assert evidence(NONE, NONE, 3.0, NONE) is None


row = st.tuples(st.floats(-40, 40), st.floats(0, 60) | st.just(NAN), st.floats(-20, 20) | st.just(NAN))


@given(st.lists(row, min_size=1, max_size=15), st.floats(0, 100), st.floats(0.01, 9), st.sampled_from([0, 1, 2]))
def test_a_probability_that_never_falls_when_the_best_is_liked_more(
    rows: list[tuple[float, float, float]], mass: float, more: float, column: int
) -> None:
    table = np.array(rows, np.float64)
    better = table.copy()
    heard = table[:HEARD] if column == 2 else table
    place = int(np.nanargmax(np.nan_to_num(heard[:, column], nan=-1e9)))
    better[place, column] += more

    def judged(t: np.typing.NDArray[np.float64]) -> float:
        seen = evidence(t[:, 0], t[:, 1], mass, t[:, 2])
        assert seen is not None
        return probability(WEIGHTS, seen)

    before, after = judged(table), judged(better)
    assert 0.0 <= before <= 1.0
    assert after >= before - 1e-12


@given(st.lists(row, min_size=1, max_size=15), st.floats(0, 100))
def test_the_order_of_the_candidates_does_not_matter(rows: list[tuple[float, float, float]], mass: float) -> None:
    a, b = (np.array(some, np.float64) for some in (rows, sorted(rows, key=repr)))
    one, two = (evidence(t[:, 0], t[:, 1], mass, a[:, 2]) for t in (a, b))
    assert one is not None
    assert two is not None
    assert probability(WEIGHTS, one) == pytest.approx(probability(WEIGHTS, two), abs=1e-9)


def test_weights_are_read_from_the_configuration() -> None:
    first = {"top": 1, "gap": 0.5, "cover": 2, "bias": -3}
    config = {"abstain": {"first": first, "reranked": {**first, "ce": 1.0, "ce_gap": 0.0}}}
    weights = weights_of(config)
    assert weights is not None
    assert (weights.first.bias, weights.reranked.ce) == (-3.0, 1.0)
    assert weights_of(None) is weights_of({"fused": {}}) is None


def test_the_pocket_pack_brings_a_mix_of_its_own_and_none_to_abstain_by() -> None:
    config = json.loads(SHIPPED.read_text("utf-8"))["mix"]
    assert mix_of(config) != DEFAULT_MIX
    assert weights_of(config) is None


@pytest.mark.parametrize("wrong", [-1.0, NAN, "much", None])
def test_wrong_weights_are_refused(wrong: object) -> None:
    first: dict[str, object] = {"top": 1, "gap": 0.5, "cover": 2, "bias": -3}
    reranked = {**first, "ce": 1.0, "ce_gap": wrong}
    with pytest.raises(ModelCorrupt):
        weights_of({"abstain": {"first": first, "reranked": reranked}})
