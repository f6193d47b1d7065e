"""Owns the routes of responses: asked for, shown again, deleted.

Must not know how questions are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post
from litestar.params import FromPath

from appliance.answer.types import Delta, Event, Finished, Question
from appliance.errors import BadRequest
from appliance.http import body
from appliance.http.chat_request import check_model
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.ports import Backend
from appliance.http.reply import reply
from appliance.http.responses_reply import Assembly, ResponseFormat, ResponseObject, begun, ended, turn_of
from appliance.http.responses_request import Item, ResponseRequest, items_of, own_names, question
from appliance.http.schema import json_body
from appliance.store.responses import StoredResponse

_items = msgspec.json.Decoder(list[Item])


class DeletedResponse(msgspec.Struct, frozen=True):
    """That a response is gone."""

    id: str
    object: str = "response"
    deleted: bool = True


class ResponsesController(Controller):
    """OpenAI's responses."""

    tags = ("answers",)
    path = "/v1/responses"

    @post("/", status_code=200, operation_class=json_body(ResponseRequest))
    async def create(
        self,
        request: Request[Any, Any, Any],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Response[Any]:
        """Answer, or call functions; with `previous_response_id`, where a stored response went to."""
        server = backend.settings.server
        data = await body.read(request, server.max_body_bytes, lifecycle, what="request")
        asked = body.decode(data, ResponseRequest)
        model = backend.models()[0].id
        check_model(asked.model, model)
        label = request.state["caller"].label
        new = items_of(asked.input)
        known = await _said_before(backend, asked.previous_response_id, label)
        with own_names():
            asking = question(asked, [*known, *new], request.state.request_id)
        response = begun(asked, f"resp_{secrets.token_hex(16)}", model, int(time.time()))
        recorded = _recorded(backend, asking, response, new, label)
        streamed = ResponseFormat(response) if asked.stream else None
        whole = functools.partial(_whole, response)
        return await reply(request, lifecycle, recorded, whole, streamed, server.ping_interval_s)

    @get("/{response_id:str}")
    async def show(
        self, request: Request[Any, Any, Any], response_id: FromPath[str], backend: GivenBackend
    ) -> Response[bytes]:
        """A stored response as it was given."""
        kept = await asyncio.to_thread(backend.responses.body, response_id, request.state["caller"].label)
        return Response(kept, media_type="application/json")

    @delete("/{response_id:str}", status_code=200)
    async def delete_response(
        self, request: Request[Any, Any, Any], response_id: FromPath[str], backend: GivenBackend
    ) -> DeletedResponse:
        """Delete a stored response; what went on from it can go on no further."""
        await asyncio.to_thread(backend.responses.delete, response_id, request.state["caller"].label)
        return DeletedResponse(response_id)


async def _said_before(backend: Backend, previous: str | None, label: str) -> list[Item]:
    if previous is None:
        return []
    turns = await asyncio.to_thread(backend.responses.turns, previous, label)
    return [item for turn in turns for item in _items.decode(turn)]


def _whole(response: ResponseObject, deltas: Sequence[Delta], last: Finished) -> ResponseObject:
    assembly = Assembly(response.id)
    for delta in deltas:
        assembly.add(delta)
    assembly.finish(last)
    return ended(response, assembly.output, last)


async def _recorded(
    backend: Backend, asking: Question, response: ResponseObject, new: Sequence[Item], label: str
) -> AsyncGenerator[Event]:
    """The events of the answer; before the last one, the response is stored, where that is wanted."""
    deltas: list[Delta] = []
    with own_names():
        try:
            async with contextlib.aclosing(backend.ask(asking)) as events:
                async for event in events:
                    if isinstance(event, Delta):
                        deltas.append(event)
                    if isinstance(event, Finished) and response.store:
                        whole = _whole(response, deltas, event)
                        stored = StoredResponse(
                            response.id,
                            label,
                            response.previous_response_id,
                            msgspec.json.encode([*new, *turn_of(whole.output)]),
                            msgspec.json.encode(whole),
                        )
                        await asyncio.to_thread(backend.responses.put, stored)
                    yield event
        except BadRequest as error:
            if error.param is None and asking.tools is not None:
                error.param = "tools"
            elif error.param is None and asking.constraint is not None:
                error.param = "text.format"
            raise
