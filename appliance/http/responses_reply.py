"""Owns the replies of `POST /v1/responses`: the response object, its items, and its events in OpenAI's order.

Must not know how questions are answered, nor where responses are stored.

Ids follow from the response's, so that whoever makes an object of the same answer makes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from appliance.answer.types import Delta, Event, Finished, Report
from appliance.engine.tools import CallPiece
from appliance.http import sse
from appliance.http.problems import Problem
from appliance.http.responses_request import Called, Item, ResponseRequest, Said, TextConfig

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A text of the assistant's."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputCall(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function; `arguments` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


Output = OutputMessage | OutputCall


class InputDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens."""

    cached_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the answer's tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """OpenAI's token counts, in the generator's tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails = OutputDetails()


class ResponseObject(msgspec.Struct, frozen=True):
    """A response, as it is at the moment."""

    id: str
    created_at: int
    status: Status
    model: str
    output: list[Output]
    instructions: str | None
    previous_response_id: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float
    text: TextConfig
    tool_choice: Any
    tools: list[Any]
    top_p: float
    store: bool
    usage: ResponseUsage | None = None
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    appliance: Report | msgspec.UnsetType = msgspec.UNSET
    background: bool = False
    truncation: str = "auto"
    object: Literal["response"] = "response"


def begun(asked: ResponseRequest, response_id: str, model: str, created_at: int) -> ResponseObject:
    """A response of which nothing has come yet."""
    return ResponseObject(
        id=response_id,
        created_at=created_at,
        status="in_progress",
        model=model,
        output=[],
        instructions=asked.instructions,
        previous_response_id=asked.previous_response_id,
        max_output_tokens=asked.max_output_tokens,
        metadata=asked.metadata or {},
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        temperature=asked.temperature or 0.0,
        text=asked.text or TextConfig(),
        tool_choice=asked.tool_choice or "auto",
        tools=list(asked.tools or ()),
        top_p=1.0 if asked.top_p is None else asked.top_p,
        store=asked.store is not False,
    )


def ended(response: ResponseObject, output: Sequence[Output], last: Finished) -> ResponseObject:
    """The response with all that came."""
    tokens = last.report.tokens
    cut = last.finish_reason == "length"
    return msgspec.structs.replace(
        response,
        status="incomplete" if cut else "completed",
        output=list(output),
        usage=ResponseUsage(
            tokens.prompt, tokens.generated, tokens.prompt + tokens.generated, InputDetails(tokens.cached)
        ),
        incomplete_details={"reason": "max_output_tokens"} if cut else None,
        appliance=last.report,
    )


class Assembly:
    """Makes the output of a response from the events of its answer."""

    def __init__(self, response_id: str) -> None:
        self._key = response_id.removeprefix("resp_")
        self.output: list[Output] = []

    def add(self, delta: Delta) -> None:
        """More of the text or of a call."""
        call = delta.call
        if call is None:
            self._add_text(delta.text)
        elif call.name:
            self.end("completed")
            self.output.append(self._new_call(call))
        else:
            last = self.output[-1]
            assert isinstance(last, OutputCall)  # noqa: S101  # its name came before
            self.output[-1] = msgspec.structs.replace(last, arguments=last.arguments + call.arguments)

    def end(self, status: Literal["completed", "incomplete"]) -> None:
        """The last item is as it stays."""
        if self.output:
            self.output[-1] = msgspec.structs.replace(self.output[-1], status=status)

    def finish(self, last: Finished) -> None:
        """No more comes. An answer that is nothing is an empty message."""
        if not self.output:
            self._add_text("")
        self.end("incomplete" if last.finish_reason == "length" else "completed")

    def _add_text(self, text: str) -> None:
        last = self.output[-1] if self.output else None
        if isinstance(last, OutputMessage):
            content = [OutputText(last.content[0].text + text)]
            self.output[-1] = msgspec.structs.replace(last, content=content)
        else:
            self.output.append(OutputMessage(f"msg_{self._key}{len(self.output)}", "in_progress", [OutputText(text)]))

    def _new_call(self, call: CallPiece) -> OutputCall:
        place = f"{self._key}{len(self.output)}"
        return OutputCall(f"fc_{place}", f"call_{place}", call.name, "", "in_progress")


def turn_of(output: Sequence[Output]) -> list[Item]:
    """What a conversation that goes on has of an output: all but a call that was cut off."""
    items: list[Item] = []
    for item in output:
        if isinstance(item, OutputMessage):
            items.append(Said("assistant", item.content[0].text))
        elif item.status == "completed":
            items.append(Called(item.call_id, item.name, item.arguments))
    return items


class ResponseFormat:
    """The events of a streamed response, numbered.

    Of each item: that it was added, its text or arguments in pieces, then as a whole, then that it is done.
    """

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._assembly = Assembly(response.id)
        self._number = 0
        self._told = 0  # items that were begun

    def event(self, event: Event) -> bytes:
        """The events of an event."""
        match event:
            case Delta():
                return self._begin() + self._delta(event)
            case Finished():
                return self._begin() + self._finish(event)
            case _:
                return b""

    def end(self) -> bytes:
        """Nothing follows."""
        return b""

    def error(self, problem: Problem) -> bytes:
        """The response failed; before it was begun, there is only the error to tell."""
        if not self._number:
            return self._send("error", code=problem.code, message=problem.message, param=problem.param)
        failed = msgspec.structs.replace(
            self._response,
            status="failed",
            output=self._assembly.output,
            error={"code": problem.code, "message": problem.message},
        )
        return self._send("response.failed", response=failed)

    def _begin(self) -> bytes:
        if self._number:
            return b""
        return self._send("response.created", response=self._response) + self._send(
            "response.in_progress", response=self._response
        )

    def _delta(self, event: Delta) -> bytes:
        before = len(self._assembly.output)
        self._assembly.add(event)
        data = b""
        if len(self._assembly.output) > before:
            data = self._close(before - 1) + self._open(before)
        if event.call is None and event.text:
            data += self._part("response.output_text.delta", delta=event.text, logprobs=[])
        elif event.call is not None and event.call.arguments:
            data += self._of_item("response.function_call_arguments.delta", delta=event.call.arguments)
        return data

    def _finish(self, event: Finished) -> bytes:
        before = len(self._assembly.output)
        self._assembly.finish(event)
        data = self._open(0) if not before else b""
        data += self._close(len(self._assembly.output) - 1)
        whole = ended(self._response, self._assembly.output, event)
        return data + self._send(f"response.{whole.status}", response=whole)

    def _open(self, index: int) -> bytes:
        item = self._assembly.output[index]
        if isinstance(item, OutputCall):
            return self._send("response.output_item.added", output_index=index, item=item)
        empty = msgspec.structs.replace(item, content=[])
        return self._send("response.output_item.added", output_index=index, item=empty) + self._part(
            "response.content_part.added", part=OutputText("")
        )

    def _close(self, index: int) -> bytes:
        """An item is whole. The first one has nothing before it."""
        if index < 0:
            return b""
        item = self._assembly.output[index]
        if isinstance(item, OutputCall):
            data = self._of_item(
                "response.function_call_arguments.done", index, name=item.name, arguments=item.arguments
            )
        else:
            (part,) = item.content
            data = self._part("response.output_text.done", index, text=part.text, logprobs=[])
            data += self._part("response.content_part.done", index, part=part)
        return data + self._send("response.output_item.done", output_index=index, item=item)

    def _part(self, kind: str, index: int = -1, **fields: Any) -> bytes:
        return self._of_item(kind, index, content_index=0, **fields)

    def _of_item(self, kind: str, index: int = -1, **fields: Any) -> bytes:
        index %= len(self._assembly.output)
        return self._send(kind, item_id=self._assembly.output[index].id, output_index=index, **fields)

    def _send(self, kind: str, **fields: Any) -> bytes:
        data = sse.encode_json({"type": kind, "sequence_number": self._number, **fields}, kind)
        self._number += 1
        return data
