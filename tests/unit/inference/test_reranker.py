"""The reranker: pairs, cutting of the passage only, batches in order, the budget, calibration."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from appliance.config import ModelSettings
from appliance.errors import BadRequest, Unavailable
from appliance.inference.onnx import OnnxModel
from appliance.inference.reranker import OnnxReranker
from appliance.inference.schedule import FIRST_ITEMS
from appliance.inference.shared import SharedRuns
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


def test_the_budget_is_kept_and_the_best_of_recall_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path), SETTINGS)
    run = OnnxModel.run

    def ten_ms_a_pair(model: OnnxModel, ids: Any, types: Any, pad_id: int) -> Any:
        time.sleep(0.010 * len(ids))
        return run(model, ids, types, pad_id)

    monkeypatch.setattr(OnnxModel, "run", ten_ms_a_pair)

    def scored(budget_ms: float | None) -> list[bool]:
        logits = reranker.score("pump", ["oil " * (7 * place % 20) for place in range(50)], budget_ms=budget_ms).logits
        return [not math.isnan(logit) for logit in logits]

    assert sum(scored(None)) == 50
    for budget in (0.001, 100.0, 250.0):
        found = scored(budget)
        assert found == sorted(found, reverse=True), "what is left out is the tail"
        assert sum(found) <= budget / 10.0 + FIRST_ITEMS
    assert sum(scored(60_000.0)) == 50
    assert not any(scored(0.001)), "a deadline that has passed"


def test_what_was_scored_beyond_a_gap_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, max_tokens=10), SETTINGS)

    def gap(runs: object, pairs: Sequence[object], widths: object, *, deadline: float) -> list[float | None]:
        return [1.0, 2.0, None, *[3.0] * (len(pairs) - 3)]

    monkeypatch.setattr(SharedRuns, "ask", gap)
    scores = reranker.score("pump", ["oil", "oil " * 50, "oil " * 50, "oil"], budget_ms=1.0)
    assert scores.logits[:2] == (1.0, 2.0)
    assert all(map(math.isnan, scores.logits[2:]))
    assert scores.truncated == (1,)


def test_callers_share_one_reranker_and_each_gets_his_scores(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, max_tokens=64), ModelSettings(onnx_threads=2))

    def ask(caller: int) -> bool:
        counts = [(caller + 5 * place) % 40 for place in range(30)]
        expected = tuple(float(count + EXTRA) for count in counts)
        return all(reranker.score("pump", ["oil " * count for count in counts]).logits == expected for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))


def test_after_close_there_are_no_scores(tmp_path: Path) -> None:
    used, unused = (OnnxReranker(reranker_spec(tmp_path), SETTINGS) for _ in range(2))
    assert used.score("pump", ["oil"]).logits == (1.0 + EXTRA,)
    for reranker in (used, unused):
        reranker.close()
        with pytest.raises(Unavailable):
            reranker.score("pump", ["oil"])


def test_probabilities_are_calibrated_and_unknown_where_not_scored(tmp_path: Path) -> None:
    reranker = OnnxReranker(reranker_spec(tmp_path, calibration=(0.5, -3.0)), SETTINGS)
    scores = reranker.score("pump", ["oil"])
    assert scores.probabilities[0] == pytest.approx(1 / (1 + math.exp(-(0.5 * 4 - 3.0))))
    assert math.isnan(reranker.score("pump", ["oil"], budget_ms=1e-9).probabilities[0])
    extreme = OnnxReranker(reranker_spec(tmp_path, calibration=(-1e6, 0.0)), SETTINGS)
    assert extreme.score("pump", ["oil"]).probabilities == (0.0,)
