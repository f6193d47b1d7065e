"""The reranker: pairs, cutting of the passage only, batches in order, the budget, calibration."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from appliance.config import ModelSettings
from appliance.errors import BadRequest
from appliance.inference.onnx import OnnxModel
from appliance.inference.reranker import OnnxReranker, next_batch
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


@pytest.mark.parametrize(
    ("done", "spent_ms", "budget_ms", "expected"),
    [
        (0, 0.0, None, 16),
        (32, 1e9, None, 16),
        (0, 0.0, 0.001, 4),
        (4, 40.0, 100.0, 6),
        (4, 40.0, 1000.0, 16),
        (4, 95.0, 100.0, 0),
        (4, 400.0, 100.0, 0),
        (4, 0.0, 100.0, 16),
    ],
)
def test_the_next_batch_is_what_fits_the_budget_at_the_pace_so_far(
    done: int, spent_ms: float, budget_ms: float | None, expected: int
) -> None:
    assert next_batch(done, spent_ms, budget_ms) == expected


def test_the_budget_is_kept_and_the_best_of_recall_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path), SETTINGS)
    clock = [0.0]
    run = OnnxModel.run

    def ten_ms_a_pair(model: OnnxModel, ids: Any, types: Any, pad_id: int) -> Any:
        clock[0] += 0.010 * len(ids)
        return run(model, ids, types, pad_id)

    monkeypatch.setattr(OnnxModel, "run", ten_ms_a_pair)
    monkeypatch.setattr("appliance.inference.reranker.time.perf_counter", lambda: clock[0])

    def scored(budget_ms: float | None) -> list[bool]:
        clock[0] = 0.0
        logits = reranker.score("pump", ["oil"] * 50, budget_ms=budget_ms).logits
        return [not math.isnan(logit) for logit in logits]

    for budget, count in [(0.001, 4), (150.0, 15), (300.0, 30), (10_000.0, 50), (None, 50)]:
        found = scored(budget)
        assert abs(sum(found) - count) <= 1
        assert found == sorted(found, reverse=True)
        assert budget is None or sum(found) == 4 or clock[0] * 1000 <= budget + 1e-6


def test_probabilities_are_calibrated_and_unknown_where_not_scored(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, calibration=(0.5, -3.0)), SETTINGS)
    scores = reranker.score("pump", ["oil"] * 17, budget_ms=1e-9)
    assert scores.probabilities[0] == pytest.approx(1 / (1 + math.exp(-(0.5 * 4 - 3.0))))
    assert math.isnan(scores.probabilities[16])
    extreme = OnnxReranker(reranker_spec(tmp_path, calibration=(-1e6, 0.0)), SETTINGS)
    assert extreme.score("pump", ["oil"]).probabilities == (0.0,)
