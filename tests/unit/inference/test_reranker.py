"""The reranker: pairs, cutting of the passage only, batches in order, the budget, calibration."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from appliance.config import ModelSettings
from appliance.errors import BadRequest
from appliance.inference.onnx import OnnxModel
from appliance.inference.reranker import OnnxReranker
from tests.unit.inference.tiny import reranker_spec

SETTINGS = ModelSettings(onnx_threads=1)
EXTRA = 3  # <s> passage: … </s>


def test_each_pair_is_scored_in_the_order_given(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, max_tokens=64), SETTINGS)
    counts = [(7 * number) % 23 + 1 for number in range(50)]
    scores = reranker.score("the pump", ["oil " * count for count in counts])
    assert scores.logits == tuple(float(count + EXTRA) for count in counts)
    assert (scores.truncated, scores.query_cut) == ((), False)


def test_the_passage_is_cut_and_reported_and_the_question_kept(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, max_tokens=32), SETTINGS)
    scores = reranker.score("the pump", ["oil", "oil " * 1000, "oil " * 24, "oil " * 25])
    room = 32 - (3 + 2)  # <s> query: the pump </s>
    assert list(scores.logits) == [1.0 + EXTRA, room, 24.0 + EXTRA, room]
    assert scores.truncated == (1, 3)
    assert not scores.query_cut


def test_a_question_of_just_the_tokens_it_may_have_is_kept(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, max_tokens=48), SETTINGS)
    assert not reranker.score("pump " * (12 - EXTRA), ["oil"]).query_cut
    assert reranker.score("pump " * (13 - EXTRA), ["oil"]).query_cut


def test_a_question_that_would_leave_no_room_is_cut_and_reported(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, max_tokens=48), SETTINGS)
    scores = reranker.score("pump " * 500, ["oil " * 20])
    assert scores.query_cut
    assert scores.logits == (20.0 + EXTRA,)  # all of the passage is read
    assert scores.truncated == ()


def test_an_empty_passage_one_passage_and_a_thousand(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path), SETTINGS)
    assert reranker.score("pump", [""]).logits == (float(EXTRA),)
    assert reranker.score("pump", []).logits == ()
    many = reranker.score("pump", ["oil"] * 1000)
    assert many.logits == (1.0 + EXTRA,) * 1000


def test_an_empty_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        OnnxReranker(reranker_spec(tmp_path), SETTINGS).score(" ", ["oil"])


def test_the_budget_ends_after_a_batch_and_the_first_is_always_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path), SETTINGS)
    clock = [0.0]
    run = OnnxModel.run

    def slow(*args: object, **kwargs: object) -> object:
        clock[0] += 0.1
        return run(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(OnnxModel, "run", slow)
    monkeypatch.setattr("appliance.inference.reranker.time.perf_counter", lambda: clock[0])

    def scored(budget_ms: float | None) -> int:
        return sum(not math.isnan(logit) for logit in reranker.score("pump", ["oil"] * 50, budget_ms=budget_ms).logits)

    assert [scored(budget) for budget in (0.001, 150.0, 10_000.0, None)] == [16, 32, 50, 50]


def test_probabilities_are_calibrated_and_unknown_where_not_scored(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, calibration=(0.5, -3.0)), SETTINGS)
    scores = reranker.score("pump", ["oil"] * 17, budget_ms=1e-9)
    assert scores.probabilities[0] == pytest.approx(1 / (1 + math.exp(-(0.5 * 4 - 3.0))))
    assert math.isnan(scores.probabilities[16])
    extreme = OnnxReranker(reranker_spec(tmp_path, calibration=(-1e6, 0.0)), SETTINGS)
    assert extreme.score("pump", ["oil"]).probabilities == (0.0,)
