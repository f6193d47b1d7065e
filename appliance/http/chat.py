"""Owns `POST /v1/chat/completions`: its replies, streamed and not.

Must not know how questions are answered.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

import msgspec
from litestar import Controller, Request, Response, post

from appliance import __version__
from appliance.answer.types import Delta, Event, Finished, Reason, Report, Sources, TokenCounts
from appliance.engine.protocol import TokenLogprob
from appliance.errors import BadRequest
from appliance.http import body, sse
from appliance.http.chat_request import ChatRequest, check_model, constraint_param, question
from appliance.http.chat_tools import CallDelta, ToolCall, call_delta, tool_calls
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.problems import Problem
from appliance.http.reply import reply
from appliance.http.schema import json_body

UNLIKELY = -9999.0  # OpenAI's number for a token that could not come


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's token counts, in the generator's tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that was likely; its bytes may be a part of a character."""

    token: str
    bytes: list[int]
    logprob: float


class ContentLogprob(msgspec.Struct, frozen=True):
    """A token of the answer."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct, frozen=True):
    """Of the tokens of a choice or chunk."""

    content: list[ContentLogprob]
    refusal: None = None


class Reply(msgspec.Struct, frozen=True):
    """The assistant's message. `content` is null where it is calls alone."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct, frozen=True):
    """A whole choice."""

    message: Reply
    finish_reason: Reason
    index: int = 0
    logprobs: Logprobs | None = None


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
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """What a chunk says of one choice."""

    delta: Piece
    finish_reason: Reason | None = None
    index: int = 0
    logprobs: Logprobs | None = None


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
    """Chunks, of each choice: one with the role, one for each piece of text or of a call, one with the reason.

    Those of several choices come in between one another. Then follow usage and `[DONE]`.
    """

    def __init__(self, head: Head, include_usage: bool) -> None:
        self._head = msgspec.structs.asdict(head)
        self._include_usage = include_usage
        self._begun: set[int] = set()

    def event(self, event: Event) -> bytes:
        """The chunks of an event."""
        match event:
            case Sources():
                return self._begin(0)  # they come with the report, in the last chunk
            case Delta():
                piece = Piece(content=event.text) if event.call is None else Piece(tool_calls=[call_delta(event.call)])
                choice = ChunkChoice(piece, index=event.index, logprobs=logprobs([event]))
                return self._begin(event.index, None if event.call else "") + self._chunk(choice)
            case Finished():
                return self._finish(event)

    def _begin(self, index: int, content: str | None = "") -> bytes:
        if index in self._begun:
            return b""
        self._begun.add(index)
        return self._chunk(ChunkChoice(Piece(role="assistant", content=content), index=index))

    def _finish(self, event: Finished) -> bytes:
        reasons = (event.finish_reason, *event.further)
        data = b"".join(self._begin(index) for index in range(len(reasons)))
        *choices, last = (ChunkChoice(Piece(), reason, index) for index, reason in enumerate(reasons))
        data += b"".join(self._chunk(choice) for choice in choices)
        if self._include_usage:
            data += self._chunk(last)
            return data + self._chunk(None, usage=usage(event.report.tokens), appliance=event.report)
        return data + self._chunk(last, appliance=event.report)

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
        events = _naming_fields(backend.ask(question(asked, request_id)), constraint_param(asked))
        head = Head(f"chatcmpl-{request_id}", int(time.time()), generator, fingerprint(generator))
        streamed = None
        if asked.stream:
            streamed = ChatFormat(head, bool(asked.stream_options and asked.stream_options.include_usage))

        def whole(deltas: Sequence[Delta], finished: Finished) -> Completion:
            return Completion(
                **msgspec.structs.asdict(head),
                choices=[
                    choice([delta for delta in deltas if delta.index == index], reason, index, bool(asked.logprobs))
                    for index, reason in enumerate((finished.finish_reason, *finished.further))
                ],
                usage=usage(finished.report.tokens),
                appliance=finished.report,
            )

        return await reply(request, lifecycle, events, whole, streamed, server.ping_interval_s)


async def _naming_fields(events: AsyncGenerator[Event], constraint: str | None) -> AsyncGenerator[Event]:
    """The events; an error of the engine about this request names the field at fault, which the engine cannot know.

    What it alone can judge are the tokens in logit_bias and the constraint, if one was given in the field `constraint`.
    """
    async with contextlib.aclosing(events) as given:
        try:
            async for event in given:
                yield event
        except BadRequest as error:
            if error.param is None:
                error.param = "logit_bias" if error.message.startswith("logit_bias") else constraint
            raise


def choice(deltas: Sequence[Delta], reason: Reason, index: int, with_logprobs: bool) -> Choice:
    """A whole choice from its pieces."""
    text = "".join(delta.text for delta in deltas)
    calls = tool_calls([delta.call for delta in deltas if delta.call is not None])
    reply = Reply(text or None, tool_calls=calls) if calls else Reply(text)
    found = logprobs(deltas) or Logprobs([])
    return Choice(reply, reason, index, found if with_logprobs else None)


def logprobs(deltas: Sequence[Delta]) -> Logprobs | None:
    """OpenAI's list from ours; None where there are none."""
    content = [_content(entry) for delta in deltas for entry in delta.logprobs]
    return Logprobs(content) if content else None


def _content(entry: TokenLogprob) -> ContentLogprob:
    top = [TopLogprob(*_token(data, logprob)) for _, data, logprob in entry.top]
    return ContentLogprob(*_token(entry.data, entry.logprob), top)


def _token(data: bytes, logprob: float) -> tuple[str, list[int], float]:
    return data.decode("utf-8", "replace"), list(data), max(logprob, UNLIKELY)


def usage(tokens: TokenCounts) -> Usage:
    """OpenAI's counts from ours."""
    total = tokens.prompt + tokens.generated
    return Usage(tokens.prompt, tokens.generated, total, PromptDetails(tokens.cached))


def fingerprint(generator: str) -> str:
    """Changes when the program or the model does, and the same seed may then give another answer."""
    return "fp_" + hashlib.sha256(f"{__version__} {generator}".encode()).hexdigest()[:12]
