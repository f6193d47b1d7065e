"""The mix: its features, its direction, its place between 0 and 1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ModelCorrupt
from appliance.retrieval.fuse import (
    DEFAULT_MIX,
    FinalWeights,
    FusedWeights,
    final_scores,
    fused_scores,
    mix_of,
    ranking,
    sigmoid,
)

NAN = float("nan")


def test_features_are_those_of_the_fit() -> None:
    weights = FusedWeights(lex=2.0, loglex=0.5, dense=3.0, bias=-1.0)
    scores = fused_scores(weights, np.array([8.0, 4.0, NAN]), np.array([0.9, NAN, 0.5]))
    expected = [
        2.0 * 1.0 + 0.5 * np.log1p(8.0) + 3.0 * 0.9 - 1.0,
        2.0 * 0.5 + 0.5 * np.log1p(4.0) - 1.0,
        3.0 * 0.5 - 1.0,
    ]
    assert scores == pytest.approx(1 / (1 + np.exp(-np.array(expected))))


def test_the_final_score_measures_bm25_against_all_candidates() -> None:
    weights = FinalWeights(lex=1.0, loglex=0.0, dense=0.0, ce=2.0, bias=0.0)
    scores = final_scores(weights, np.array([2.0]), np.array([0.8]), np.array([0.25]), np.array([2.0, 4.0, NAN]))
    assert scores == pytest.approx([1 / (1 + np.exp(-(0.5 + 0.5)))])


@pytest.mark.parametrize("bm25", [[NAN, NAN], [0.0, 0.0], []])
def test_without_a_lexical_hit_only_the_vectors_speak(bm25: list[float]) -> None:
    cosine = np.array([0.9, 0.8])[: len(bm25)]
    scores = fused_scores(DEFAULT_MIX.fused, np.array(bm25, np.float64), cosine)
    assert ranking(scores, np.arange(len(bm25))).tolist() == list(range(len(bm25)))


candidate = st.tuples(
    st.floats(0, 60) | st.just(NAN), st.floats(-1, 1) | st.just(NAN), st.floats(-30, 30), st.floats(0.01, 5)
)


@given(st.lists(candidate, min_size=1, max_size=12), st.sampled_from([0, 1, 2]))
def test_a_score_is_a_probability_and_never_falls_when_a_stage_likes_more(
    rows: list[tuple[float, float, float, float]], stage: int
) -> None:
    table = np.array([row[:3] for row in rows], np.float64)
    better = table.copy()
    better[0, stage] = np.nan_to_num(better[0, stage], nan=0.0) + rows[0][3]
    before, after = (final_scores(DEFAULT_MIX.final, t[:, 0], t[:, 1], t[:, 2], t[:, 0]) for t in (table, better))
    assert ((before >= 0) & (before <= 1)).all()
    assert after[0] >= before[0] - 1e-12 or (stage == 1 and table[0, 1] < 0)


def test_ties_go_to_the_lower_id() -> None:
    assert ranking(np.array([0.5, 0.9, 0.5]), np.array([9, 7, 3])).tolist() == [1, 2, 0]


def test_sigmoid_does_not_overflow() -> None:
    with np.errstate(all="raise"):
        assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]


def test_a_mix_is_read_from_the_configuration() -> None:
    fused = {"lex": 1, "loglex": 0.5, "dense": 20, "bias": -15}
    config = {"features": ["lex", "loglex", "dense", "ce"], "fused": fused, "final": {**fused, "ce": 2.0}}
    mix = mix_of(config)
    assert (mix.fused.dense, mix.final.ce, mix.final.bias) == (20.0, 2.0, -15.0)
    assert mix_of(None) == mix_of({}) == DEFAULT_MIX


@pytest.mark.parametrize(
    "change", [{"lex": -1.0}, {"dense": float("inf")}, {"bias": NAN}, {"loglex": "much"}, {"dense": None}]
)
def test_a_wrong_mix_is_refused(change: dict[str, object]) -> None:
    fused: dict[str, object] = {"lex": 1.0, "loglex": 0.5, "dense": 20.0, "bias": -15.0}
    with pytest.raises(ModelCorrupt, match="mix"):
        mix_of({"fused": fused | change, "final": {**fused, "ce": 2.0}})
