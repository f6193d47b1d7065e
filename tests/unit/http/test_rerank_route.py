"""`POST /v1/rerank`: shapes, order, what was cut or left out, and requests that cannot be answered."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from appliance.http.app import Application, create_app
from appliance.http.ports import ModelInfo
from appliance.http.rerank import MOST_DOCUMENTS
from appliance.inference.protocols import RerankScores
from tests.unit.http.backend import ScriptedBackend

Client = AsyncTestClient[Application]
ASK = {"query": "locks", "documents": ["a", {"text": ""}, "c"]}


class Ranking(ScriptedBackend):
    """One whose pack has a reranker."""

    def models(self) -> list[ModelInfo]:
        return [*super().models(), ModelInfo("ranker", "reranker", ("en",), 256)]


@pytest.fixture
def backend() -> Ranking:
    made = Ranking()
    made.scores = RerankScores((-1.0, 40.0, 41.0), (0.25, 1.0, 1.0), (2,))
    return made


@pytest.fixture
async def client(backend: Ranking) -> AsyncIterator[Client]:
    async with AsyncTestClient(create_app(backend), base_url="http://127.0.0.1") as made:
        yield made


async def test_documents_come_back_best_first(client: Client, backend: Ranking) -> None:
    reply = (await client.post("/v1/rerank", json=ASK)).json()
    assert backend.reranked == [("locks", ("a", "", "c"), None)]
    assert reply == {
        "model": "ranker",
        "results": [
            {"index": 2, "relevance_score": 1.0},
            {"index": 1, "relevance_score": 1.0},
            {"index": 0, "relevance_score": 0.25},
        ],
        "appliance": {"truncated": [2], "query_cut": False, "unscored": 0},
    }


async def test_top_n_documents_and_model(client: Client) -> None:
    asked = {**ASK, "top_n": 2, "return_documents": True, "model": "ranker"}
    results = (await client.post("/v1/rerank", json=asked)).json()["results"]
    assert [(one["index"], one["document"]["text"]) for one in results] == [(2, "c"), (1, "")]


async def test_what_the_budget_left_out_comes_last_in_order(client: Client, backend: Ranking) -> None:
    nan = math.nan
    backend.scores = RerankScores((1.0, 2.0, nan, nan), (0.7, 0.9, nan, nan), (), query_cut=True)
    asked = {**ASK, "documents": ["a", "b", "c", "d"], "appliance": {"budget_ms": 12}}
    reply = (await client.post("/v1/rerank", json=asked)).json()
    assert backend.reranked[0][2] == 12
    assert [one["index"] for one in reply["results"]] == [1, 0, 2, 3]
    assert [one["relevance_score"] for one in reply["results"]] == [0.9, 0.7, None, None]
    assert reply["appliance"] == {"truncated": [], "query_cut": True, "unscored": 2}


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"query": " "}, 400, "query"),
        ({"documents": []}, 400, "documents"),
        ({"documents": ["a"] * (MOST_DOCUMENTS + 1)}, 400, "documents"),
        ({"top_n": 0}, 400, "top_n"),
        ({"appliance": {"budget_ms": 0}}, 400, "appliance.budget_ms"),
        ({"model": "smol"}, 404, "model"),
    ],
)
async def test_a_ranking_that_cannot_be_made(client: Client, change: dict[str, Any], status: int, param: str) -> None:
    reply = await client.post("/v1/rerank", json=ASK | change)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


async def test_a_thousand_documents(client: Client, backend: Ranking) -> None:
    backend.scores = RerankScores(tuple(map(float, range(1000))), (0.5,) * 1000, ())
    reply = await client.post("/v1/rerank", json={"query": "x", "documents": ["same"] * 1000})
    assert [one["index"] for one in reply.json()["results"]] == [*range(999, -1, -1)]


async def test_a_pack_without_a_reranker_says_so() -> None:
    async with AsyncTestClient(create_app(ScriptedBackend()), base_url="http://127.0.0.1") as client:
        reply = await client.post("/v1/rerank", json=ASK)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
