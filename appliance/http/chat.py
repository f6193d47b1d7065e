"""Owns `POST /v1/chat/completions`: its replies, streamed and not.

Must not know how questions are answered.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Literal

import msgspec
from litestar import Controller, Request, Response, post

from appliance import __version__
from appliance.answer.types import Delta, Event, Finished, Report, Sources, TokenCounts
from appliance.http import body, extension, sse
from appliance.http.chat_request import ChatRequest, check_model, question
from appliance.http.feed import Feed
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.problems import Problem
from appliance.http.schema import json_body

Reason = Literal["stop", "length"]


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's token counts, in the generator's tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Reply(msgspec.Struct, frozen=True):
    """The assistant's message."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    """The one choice."""

    message: Reply
    finish_reason: Reason
    index: int = 0
    logprobs: None = None


class Completion(msgspec.Struct, frozen=True):
    """The unstreamed reply."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    appliance: Report
    object: Literal["chat.completion"] = "chat.completion"


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """The one choice of a chunk."""

    delta: Piece
    finish_reason: Reason | None = None
    index: int = 0
    logprobs: None = None


class Chunk(msgspec.Struct, frozen=True):
    """A piece of the streamed reply. `usage` is null but in the last chunk, and absent unless asked for."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    appliance: Report | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class Head(msgspec.Struct, frozen=True):
    """What the reply and each of its chunks begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatFormat:
    """Chunks: one with the role, one for each piece of text, one with the reason; then usage; then `[DONE]`."""

    def __init__(self, head: Head, include_usage: bool) -> None:
        self._head = msgspec.structs.asdict(head)
        self._include_usage = include_usage
        self._begun = False

    def event(self, event: Event) -> bytes:
        """The chunks of an event."""
        data = b""
        if not self._begun:
            self._begun = True
            data = self._chunk(ChunkChoice(Piece(role="assistant", content="")))
        match event:
            case Sources():
                pass  # they come with the report, in the last chunk
            case Delta():
                data += self._chunk(ChunkChoice(Piece(content=event.text)))
            case Finished():
                choice = ChunkChoice(Piece(), finish_reason=event.finish_reason)
                if self._include_usage:
                    data += self._chunk(choice)
                    data += self._chunk(None, usage=usage(event.report.tokens), appliance=event.report)
                else:
                    data += self._chunk(choice, appliance=event.report)
        return data

    def end(self) -> bytes:
        """OpenAI's mark."""
        return sse.encode("[DONE]")

    def error(self, problem: Problem) -> bytes:
        """An error object instead of a chunk; no mark follows it."""
        return sse.encode_json(problem.as_object())

    def _chunk(self, choice: ChunkChoice | None, **fields: Any) -> bytes:
        if self._include_usage:
            fields.setdefault("usage", None)
        chunk = Chunk(**self._head, choices=[] if choice is None else [choice], **fields)
        return sse.encode_json(chunk)


class ChatController(Controller):
    """OpenAI's chat completions."""

    tags = ("answers",)

    @post("/v1/chat/completions", status_code=200, operation_class=json_body(ChatRequest))
    async def complete(
        self,
        request: Request[Any, Any, Any],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Response[Any]:
        """Continue a conversation; with `appliance.collection`, from its documents."""
        server = backend.settings.server
        data = await body.read(request, server.max_body_bytes, lifecycle, what="request")
        asked = body.decode(data, ChatRequest)
        generator = backend.models()[0].id
        check_model(asked.model, generator)
        request_id = request.state.request_id
        feed = Feed(backend.ask(question(asked, request_id)), request.receive, lifecycle)
        head = Head(f"chatcmpl-{request_id}", int(time.time()), generator, fingerprint(generator))
        if asked.stream:
            include_usage = bool(asked.stream_options and asked.stream_options.include_usage)
            return await sse.stream(feed, ChatFormat(head, include_usage), server.ping_interval_s)
        try:
            text, finished = await feed.whole()
        finally:
            await feed.close()
        report = finished.report
        completion = Completion(
            **msgspec.structs.asdict(head),
            choices=[Choice(Reply(text), finished.finish_reason)],
            usage=usage(report.tokens),
            appliance=report,
        )
        return Response(completion, headers={"Server-Timing": extension.server_timing(report.timings_ms)})


def usage(tokens: TokenCounts) -> Usage:
    """OpenAI's counts from ours."""
    total = tokens.prompt + tokens.generated
    return Usage(tokens.prompt, tokens.generated, total, PromptDetails(tokens.cached))


def fingerprint(generator: str) -> str:
    """Changes when the program or the model does, and the same seed may then give another answer."""
    return "fp_" + hashlib.sha256(f"{__version__} {generator}".encode()).hexdigest()[:12]
