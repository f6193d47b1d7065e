"""LangChain's own classes for OpenAI against the service, as its users point them at another base URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from appliance.http.server import Server
from tests.integration.http.serving import serving, settings
from tests.unit.http.backend import ScriptedBackend

TEXT = "Tighten it to 12\r\n  牛米 [1].\n\ndata: 🙂"
MESSAGES: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage("How tight?")]


@pytest.fixture
def backend(tmp_path_factory: pytest.TempPathFactory) -> ScriptedBackend:
    return ScriptedBackend(configured=settings(tmp_path_factory.mktemp("d")))


@pytest.fixture
async def server(backend: ScriptedBackend) -> AsyncIterator[Server]:
    async with serving(backend) as running:
        yield running


@pytest.fixture
async def options(server: Server) -> AsyncIterator[dict[str, Any]]:
    """What its users set; and clients that are closed at the end, which LangChain's own are not."""
    async with httpx.AsyncClient() as asynchronous:
        with httpx.Client() as synchronous:
            yield {
                "base_url": f"{server.url}/v1",
                "api_key": "none",
                "max_retries": 0,
                "http_client": synchronous,
                "http_async_client": asynchronous,
            }


async def test_chat_streamed_equals_unstreamed_and_has_its_usage(
    backend: ScriptedBackend, options: dict[str, Any]
) -> None:
    grounded = {"appliance": {"collection": "default"}}
    chat = ChatOpenAI(model="smol", stream_usage=True, extra_body=grounded, **options)
    whole = await chat.ainvoke(MESSAGES)
    chunks = [chunk async for chunk in chat.astream(MESSAGES)]
    assert whole.content == TEXT
    assert "".join(str(chunk.content) for chunk in chunks) == TEXT
    assert whole.usage_metadata is not None
    assert (whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"]) == (11, 5)
    counted = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert [usage["total_tokens"] for usage in counted] == [16]
    assert whole.response_metadata["finish_reason"] == "stop"
    assert [question.collection for question in backend.asked] == ["default", "default"]


async def test_synchronous_calls_in_a_batch(options: dict[str, Any]) -> None:
    replies = await asyncio.to_thread(ChatOpenAI(model="smol", **options).batch, ["one?", "two?", "three?"])
    assert [reply.content for reply in replies] == [TEXT] * 3


async def test_embeddings_of_documents_and_questions(backend: ScriptedBackend, options: dict[str, Any]) -> None:
    # Unless told otherwise, LangChain sends ids of OpenAI's own tokenizer.
    embeddings = OpenAIEmbeddings(model="e5", check_embedding_ctx_length=False, **options)
    rows = await embeddings.aembed_documents(["a", "b c"])
    row = await asyncio.to_thread(embeddings.embed_query, "q")
    assert rows == [pytest.approx([0.6, 0.8])] * 2
    assert row == pytest.approx([0.6, 0.8])
    assert [texts for texts, _ in backend.embedded] == [("a", "b c"), ("q",)]
