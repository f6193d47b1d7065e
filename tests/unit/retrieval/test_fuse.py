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
    final_stage,
    first_stage,
    lexical_share,
    mix_of,
    ranking,
    sigmoid,
)

NAN = float("nan")


def test_words_count_by_how_much_of_the_question_they_are() -> None:
    whole, part = (lexical_share(np.array([8.0, 1.0, NAN]), mass) for mass in (8.0, 64.0))
    assert whole == pytest.approx([1.0, 0.125, 0.0])
    assert part == pytest.approx([8 / (8 ** (1 / 3) * 64 ** (2 / 3)), 1 / (8 ** (1 / 3) * 64 ** (2 / 3)), 0.0])


def test_features_are_those_of_the_fit() -> None:
    weights = FusedWeights(lex=2.0, dense=3.0, bias=-1.0)
    logits = first_stage(weights, np.array([8.0, 4.0, NAN]), np.array([0.9, NAN, 0.5]), 8.0)
    assert logits == pytest.approx([2.0 + 2.7 - 1.0, 1.0 - 1.0, 1.5 - 1.0])
    final = final_stage(FinalWeights(first=0.5, ce=2.0, bias=0.25), logits, np.array([1.0, 0.0, -1.0]))
    assert final == pytest.approx([0.5 * 3.7 + 2.0 + 0.25, 0.25, 0.25 - 2.0 + 0.25])


@pytest.mark.parametrize("mass", [0.0, 5.0])
@pytest.mark.parametrize("bm25", [[NAN, NAN], [0.0, 0.0], []])
def test_without_a_lexical_hit_only_the_vectors_speak(bm25: list[float], mass: float) -> None:
    cosine = np.array([0.9, 0.8])[: len(bm25)]
    scores = first_stage(DEFAULT_MIX.fused, np.array(bm25, np.float64), cosine, mass)
    assert ranking(scores, np.arange(len(bm25))).tolist() == list(range(len(bm25)))


candidate = st.tuples(
    st.floats(0, 60) | st.just(NAN), st.floats(-1, 1) | st.just(NAN), st.floats(-30, 30), st.floats(0.01, 5)
)


@given(st.lists(candidate, min_size=1, max_size=12), st.sampled_from([0, 1, 2]), st.floats(0, 100))
def test_a_score_is_a_probability_and_never_falls_when_a_stage_likes_more(
    rows: list[tuple[float, float, float, float]], stage: int, mass: float
) -> None:
    table = np.array([row[:3] for row in rows], np.float64)
    better = table.copy()
    better[0, stage] = np.nan_to_num(better[0, stage], nan=0.0) + rows[0][3]

    def scores(t: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
        first = first_stage(DEFAULT_MIX.fused, t[:, 0], t[:, 1], mass)
        return sigmoid(final_stage(DEFAULT_MIX.final, first, t[:, 2]))

    before, after = scores(table), scores(better)
    assert ((before >= 0) & (before <= 1)).all()
    assert after[0] >= before[0] - 1e-12 or (stage == 1 and table[0, 1] < 0)


def test_ties_go_to_the_lower_id() -> None:
    assert ranking(np.array([0.5, 0.9, 0.5]), np.array([9, 7, 3])).tolist() == [1, 2, 0]


def test_sigmoid_does_not_overflow() -> None:
    with np.errstate(all="raise"):
        assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]


def test_a_mix_is_read_from_the_configuration() -> None:
    config = {
        "fused": {"lex": 1, "dense": 20, "bias": -15},
        "final": {"first": 0.5, "ce": 2.0, "bias": -15},
        "abstain": {},
    }
    mix = mix_of(config)
    assert (mix.fused.dense, mix.final.ce, mix.final.bias) == (20.0, 2.0, -15.0)
    assert mix_of(None) == mix_of({}) == DEFAULT_MIX


@pytest.mark.parametrize("stage", ["fused", "final"])
@pytest.mark.parametrize("wrong", [-1.0, float("inf"), NAN, "much", None])
def test_a_wrong_mix_is_refused(stage: str, wrong: object) -> None:
    config: dict[str, dict[str, object]] = {
        "fused": {"lex": 1.0, "dense": 20.0, "bias": -15.0},
        "final": {"first": 1.0, "ce": 2.0, "bias": -15.0},
    }
    mix_of(config)
    config[stage][next(iter(config[stage]))] = wrong
    with pytest.raises(ModelCorrupt, match="mix"):
        mix_of(config)
