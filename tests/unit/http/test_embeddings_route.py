"""`POST /v1/embeddings`: the four forms of input, both of output, and requests that cannot be answered."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from litestar.testing import AsyncTestClient

from appliance.http.app import Application, create_app
from appliance.http.embeddings import MOST_TEXTS
from appliance.http.ports import ModelInfo
from tests.unit.http.backend import ScriptedBackend

Client = AsyncTestClient[Application]


class Embedding(ScriptedBackend):
    """One whose pack names its embedder."""

    def models(self) -> list[ModelInfo]:
        return [ModelInfo("generator", "generator", ("en",), 100), ModelInfo("vectors", "embedder", ("en",), 8)]


@pytest.fixture
def backend() -> Embedding:
    return Embedding()


@pytest.fixture
async def client(backend: Embedding) -> AsyncIterator[Client]:
    async with AsyncTestClient(create_app(backend), base_url="http://127.0.0.1") as made:
        yield made


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("one text", ("one text",)),
        (["a", "b c"], ("a", "b c")),
        ([5, 7], ("5 7",)),
        ([[5, 7], [9]], ("5 7", "9")),
    ],
)
async def test_every_form_of_input(client: Client, backend: Embedding, given: Any, texts: tuple[str, ...]) -> None:
    reply = (await client.post("/v1/embeddings", json={"input": given, "model": "vectors"})).json()
    assert backend.embedded == [(texts, "passage")]
    assert reply["object"] == "list"
    assert reply["model"] == "vectors"
    assert [one["index"] for one in reply["data"]] == list(range(len(texts)))
    assert reply["data"][0]["object"] == "embedding"
    assert reply["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    tokens = sum(len(text.split()) for text in texts)
    assert reply["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


async def test_base64_and_queries(client: Client, backend: Embedding) -> None:
    asked = {"input": "q", "encoding_format": "base64", "dimensions": 2, "appliance": {"input_type": "query"}}
    (row,) = (await client.post("/v1/embeddings", json=asked)).json()["data"]
    assert np.frombuffer(base64.b64decode(row["embedding"]), "<f4").tolist() == pytest.approx([0.6, 0.8])
    assert backend.embedded == [(("q",), "query")]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", " "]}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": "x", "model": "other"}, "model"),
        ({"input": "x", "dimensions": 1}, "dimensions"),
        ({"input": "one two three four five six seven eight nine"}, "input"),
        ({"input": ["a"] * (MOST_TEXTS + 1)}, "input"),
    ],
)
async def test_what_can_not_be_embedded_is_refused_by_name(client: Client, asked: dict[str, Any], param: str) -> None:
    reply = await client.post("/v1/embeddings", json=asked)
    assert reply.status_code in (400, 404)
    assert reply.json()["error"]["param"] == param
