"""Owns `POST /v1/ask`, for curl and shell scripts.

Must not know how questions are answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Controller, Request, Response, post

from appliance.answer.types import Delta, Event, Finished, Message, Question, Reason, Report, Sources
from appliance.errors import BadRequest
from appliance.http import body, extension, sse
from appliance.http.extension import Extension
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.ports import DEFAULT_COLLECTION
from appliance.http.problems import Problem
from appliance.http.reply import reply
from appliance.http.schema import json_body


class AskRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question to a collection."""

    question: str
    collection: str | None = None  # "default" when neither this nor `appliance.collection` is given
    stream: bool = True
    top_k: extension.TopK | None = None
    max_tokens: extension.Tokens | None = None
    appliance: Extension = Extension()


class Answer(msgspec.Struct, frozen=True):
    """The unstreamed reply."""

    answer: str
    finish_reason: Reason
    appliance: Report


class AskFormat:
    """Events `sources`, `delta`…, `done`, or `error`."""

    def event(self, event: Event) -> bytes:
        """The event of its name."""
        match event:
            case Sources():
                return sse.encode_json(msgspec.structs.asdict(event), "sources")
            case Delta():
                return sse.encode_json({"text": event.text}, "delta")
            case Finished():
                done = {"finish_reason": event.finish_reason, "appliance": event.report}
                return sse.encode_json(done, "done")

    def end(self) -> bytes:
        """Nothing: `done` was the end."""
        return b""

    def error(self, problem: Problem) -> bytes:
        """An `error` event with the usual error object."""
        return sse.encode_json(problem.as_object(), "error")


class AskController(Controller):
    """Questions with answers from a collection."""

    tags = ("answers",)

    @post("/v1/ask", status_code=200, operation_class=json_body(AskRequest))
    async def ask(
        self,
        request: Request[Any, Any, Any],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Response[Any]:
        """Answer a question: server-sent events, or one JSON object with `"stream": false`."""
        server = backend.settings.server
        data = await body.read(request, server.max_body_bytes, lifecycle, what="request")
        asked = body.decode(data, AskRequest)
        events = backend.ask(question(asked, request.state.request_id))
        streamed = AskFormat() if asked.stream else None
        return await reply(request, lifecycle, events, _whole, streamed, server.ping_interval_s)


def _whole(deltas: Sequence[Delta], finished: Finished) -> Answer:
    return Answer("".join(delta.text for delta in deltas), finished.finish_reason, finished.report)


def question(asked: AskRequest, request_id: str) -> Question:
    """What the backend is asked.

    Raises:
        BadRequest: two different collections are named, or something that is not supported yet.
    """
    own = asked.appliance
    extension.check(own, grounded=True)
    for name in ("collection", "top_k"):
        outer, inner = getattr(asked, name), getattr(own, name)
        if outer is not None and inner is not None and outer != inner:
            raise BadRequest(f"{name} and appliance.{name} differ.", remedy="Give one of them.", param=name)
    return Question(
        messages=(Message("user", asked.question),),
        collection=asked.collection or own.collection or DEFAULT_COLLECTION,
        request_id=request_id,
        cache=own.cache,
        top_k=asked.top_k or own.top_k,
        max_tokens=asked.max_tokens,
        priority=own.priority,
        deadline_ms=own.deadline_ms,
        effort=own.effort,
        filters=extension.filters_of(own),
        recall=extension.recall_of(own),
    )
