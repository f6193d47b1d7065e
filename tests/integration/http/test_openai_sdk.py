"""The real OpenAI SDK against the service, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageParam

from appliance.errors import EngineDied, Overloaded
from tests.integration.http.serving import serving, settings
from tests.unit.http.backend import ScriptedBackend, Step

TEXT = "Tighten it to 12\r\n  牛米 [1].\n\ndata: 🙂"
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "How tight?"}]},
]
GROUNDED = {"appliance": {"collection": "default"}}


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")


def scripted(data_dir: Path, *script: Step) -> ScriptedBackend:
    return ScriptedBackend(*script, configured=settings(data_dir))


def asynchronous(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20)


async def test_asynchronous_streamed_equals_unstreamed(data_dir: Path) -> None:
    async with serving(scripted(data_dir)) as server, asynchronous(server.url) as client:
        model = (await client.models.list()).data[0].id
        whole = await client.chat.completions.create(model=model, messages=MESSAGES, extra_body=GROUNDED)
        assert whole.choices[0].message.content == TEXT
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (11, 5)
        stream = await client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=GROUNDED,
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    for reply in (whole, chunks[-1]):
        assert reply.model_extra is not None
        assert reply.model_extra["appliance"]["sources"][0]["page"] == 7


async def test_synchronous_streamed_equals_unstreamed(data_dir: Path) -> None:
    def ask(url: str) -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as client:
            whole = client.chat.completions.create(model="smol", messages=MESSAGES)
            stream = client.chat.completions.create(model="smol", messages=MESSAGES, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    async with serving(scripted(data_dir)) as server:
        assert await asyncio.to_thread(ask, server.url) == (TEXT, TEXT)


async def test_the_sdks_stream_helper_gathers_the_same_text(data_dir: Path) -> None:
    async with serving(scripted(data_dir)) as server, asynchronous(server.url) as client:
        async with client.chat.completions.stream(model="smol", messages=MESSAGES) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == TEXT
        # A conversation goes on with the SDK's own message object sent back.
        turn: Any = final.choices[0].message.model_dump()
        again = await client.chat.completions.create(
            model="smol", messages=[*MESSAGES, turn, {"role": "user", "content": "Sure?"}]
        )
        assert again.choices[0].message.content == TEXT


async def test_choices_and_logprobs_streamed_equal_unstreamed(data_dir: Path) -> None:
    wanted: Any = {"model": "smol", "messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2}
    async with serving(scripted(data_dir)) as server, asynchronous(server.url) as client:
        whole = await client.chat.completions.create(**wanted)
        parts = [chunk.choices[0] async for chunk in await client.chat.completions.create(**wanted, stream=True)]
    assert [choice.message.content for choice in whole.choices] == [TEXT, TEXT]
    for choice in whole.choices:
        own = [part for part in parts if part.index == choice.index]
        assert "".join(part.delta.content or "" for part in own) == choice.message.content
        assert own[-1].finish_reason == choice.finish_reason
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        logprobs = [entry for part in own if part.logprobs for entry in part.logprobs.content or ()]
        assert logprobs == choice.logprobs.content
        assert logprobs[0].top_logprobs[1].logprob == -9999.0


class Torque(pydantic.BaseModel):
    """What the SDK makes a strict schema of."""

    value: float
    unit: str


async def test_the_sdk_parses_what_a_schema_constrains(data_dir: Path) -> None:
    backend = scripted(data_dir, '{"value": 45,', ' "unit": "Nm"}')
    async with serving(backend) as server, asynchronous(server.url) as client:
        whole = await client.chat.completions.parse(model="smol", messages=MESSAGES, response_format=Torque)
        async with client.chat.completions.stream(model="smol", messages=MESSAGES, response_format=Torque) as stream:
            gathered = await stream.get_final_completion()
    for reply in (whole, gathered):
        assert reply.choices[0].message.parsed == Torque(value=45, unit="Nm")
    constraint = backend.asked[0].constraint
    assert constraint is not None
    assert constraint.kind == "json_schema"
    assert json.loads(constraint.source)["required"] == ["value", "unit"]


async def test_errors_become_the_sdks_own(data_dir: Path) -> None:
    async with serving(scripted(data_dir)) as server, asynchronous(server.url) as client:
        with pytest.raises(openai.NotFoundError, match="smol"):
            await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="smol", messages=MESSAGES, n=2, extra_body=GROUNDED)
        assert (caught.value.param, caught.value.code, caught.value.type) == (
            "n",
            "invalid_request",
            "invalid_request_error",
        )
    async with (
        serving(scripted(data_dir, Overloaded("Too many questions wait."))) as server,
        asynchronous(server.url) as client,
    ):
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="smol", messages=MESSAGES, stream=True)


async def test_a_stream_that_breaks_raises_and_says_retry(data_dir: Path) -> None:
    backend = scripted(data_dir, "some ", EngineDied("The engine died."))
    async with serving(backend) as server, asynchronous(server.url) as client:
        stream = await client.chat.completions.create(model="smol", messages=MESSAGES, stream=True)
        pieces: list[str] = []
        with pytest.raises(openai.APIError, match="Retry"):
            async for chunk in stream:
                pieces.append(chunk.choices[0].delta.content or "")  # noqa: PERF401  # the loop is to break
    assert "".join(pieces) == "some "


async def test_embeddings_in_every_form(data_dir: Path) -> None:
    backend = scripted(data_dir)
    async with serving(backend) as server, asynchronous(server.url) as client:
        for encoding in ("float", "base64"):
            made = await client.embeddings.create(model="e5", input=["a", "b c"], encoding_format=encoding)
            assert [row.index for row in made.data] == [0, 1]
            assert made.usage.prompt_tokens == 3
        default = await client.embeddings.create(model="e5", input="a")
        assert default.data[0].embedding == pytest.approx([0.6, 0.8])
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            await client.embeddings.create(model="e5", input="a", dimensions=1)
    assert [texts for texts, _ in backend.embedded] == [("a", "b c"), ("a", "b c"), ("a",)]
