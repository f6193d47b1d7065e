"""The pocket pack's reranker under load: shared between callers, cut by its budget, bounded in memory."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from litestar.testing import AsyncTestClient

from appliance.config import ModelSettings
from appliance.http.app import create_app
from appliance.http.ports import ModelInfo
from appliance.inference.protocols import RerankScores
from appliance.inference.reranker import OnnxReranker
from appliance.packs import ResolvedPack
from build_scripts.bench.rerank_bench import memory
from tests.conftest import shared_models_dir
from tests.unit.http.backend import ScriptedBackend

PASSAGES = (
    "The relief valve opens at 12 bar and must be tested every year.",
    "Anchor bolts are torqued to 85 N m after the grout has cured for 72 hours.",
    "泵壳螺栓的拧紧力矩为 45 牛米，按对角顺序分两次拧紧。",
    "Spare parts are kept in cabinet four.",
    "油气桶内的润滑油每两千小时更换一次。",
)
QUESTIONS = (
    "How long must the grout cure before the anchor bolts are torqued?",
    "At which pressure does the relief valve open?",
    "润滑油多久更换一次？",
    "泵壳螺栓的拧紧力矩是多少？",
)


@pytest.fixture(scope="module")
def reranker(pocket: ResolvedPack) -> Iterator[OnnxReranker]:
    assert pocket.reranker is not None
    made = OnnxReranker(pocket.reranker, ModelSettings(device="cpu", onnx_threads=2))
    yield made
    made.close()


def test_callers_at_the_same_time_get_the_scores_of_one_alone(reranker: OnnxReranker) -> None:
    alone = {question: reranker.score(question, PASSAGES).logits for question in QUESTIONS}
    with ThreadPoolExecutor(8) as pool:
        asked = [QUESTIONS[number % 4] for number in range(16)]
        for question, found in zip(asked, pool.map(lambda one: reranker.score(one, PASSAGES), asked), strict=True):
            # Other shapes are summed in another order, and now and then one rounding of an activation falls otherwise.
            assert found.logits == pytest.approx(alone[question], abs=0.05)


def test_far_too_long_empty_and_one(reranker: OnnxReranker) -> None:
    long = reranker.score(QUESTIONS[0], ["grout " * 20_000, "", PASSAGES[1]])
    assert all(map(math.isfinite, long.logits))
    assert long.truncated == (0,)
    assert len(reranker.score(QUESTIONS[0], [PASSAGES[1]]).logits) == 1


def test_a_budget_leaves_out_the_tail_and_nothing_else(reranker: OnnxReranker) -> None:
    passages = [f"{PASSAGES[number % 5]} " * 8 for number in range(200)]
    scored = [math.isfinite(logit) for logit in reranker.score(QUESTIONS[1], passages, budget_ms=400.0).logits]
    assert 0 < sum(scored) < 200
    assert scored == sorted(scored, reverse=True)


class Ranking(ScriptedBackend):
    """One that ranks with the pack's reranker."""

    def __init__(self, reranker: OnnxReranker) -> None:
        super().__init__()
        self._reranker = reranker

    def models(self) -> list[ModelInfo]:
        return [ModelInfo("pocket-reranker", "reranker", ("en", "zh"), self._reranker.max_tokens)]

    async def rerank(self, query: str, texts: Sequence[str], budget_ms: float | None) -> RerankScores:
        return await asyncio.to_thread(self._reranker.score, query, texts, budget_ms=budget_ms)


@pytest.mark.slow
@pytest.mark.parametrize("documents", [["bolt"], [""], ["bolt", "", "螺栓", "grout " * 2000] * 2, ["bolt", ""] * 500])
async def test_the_route_ranks_all_that_it_is_given(reranker: OnnxReranker, documents: list[str]) -> None:
    async with AsyncTestClient(create_app(Ranking(reranker)), base_url="http://127.0.0.1") as client:
        reply = (await client.post("/v1/rerank", json={"query": "bolt", "documents": documents})).json()
    assert sorted(one["index"] for one in reply["results"]) == list(range(len(documents)))
    scores = [one["relevance_score"] for one in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0.0 <= score <= 1.0 for score in scores)
    cut = [place for place, text in enumerate(documents) if len(text) > 2000]
    assert reply["appliance"] == {"truncated": cut, "query_cut": False, "unscored": 0}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_calls(pocket: ResolvedPack) -> None:
    """A short form of `build_scripts/bench/rerank --only memory`."""
    held = memory.measure(shared_models_dir(), first=30, calls=120, most_words=100)
    assert abs(held.growth) <= 0.10, held
