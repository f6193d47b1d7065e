"""Owns tools in OpenAI's chat: how a request offers them, and how calls look in its messages and in replies.

Must not know how calls are made or constrained, nor the rest of the request.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from appliance.answer.types import Message
from appliance.engine.tools import MAX_CALLS, Call, CallPiece, Tool, Toolset
from appliance.errors import BadRequest

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FunctionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function. Its parameters are a JSON schema that is enforced, `strict` or not; without any it has none."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A tool that is a function of the client's; there are no others."""

    function: FunctionSpec


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which function."""

    name: str


class FunctionChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """This function is called."""

    function: FunctionName


class Allowed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These functions may, or one of them must, be called; the model is told of all."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Meta(min_length=1)]


class AllowedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"):
    """Some of the tools."""

    allowed_tools: Allowed


ToolChoice = Literal["none", "auto", "required"] | FunctionChoice | AllowedChoice


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was called, with what: JSON text."""

    name: str
    arguments: str
    parsed_arguments: Any = None  # the SDK's own, in messages that it sends back


class GivenCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call in a message of the assistant's."""

    id: Annotated[str, Meta(min_length=1)]
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None  # of our own streams, where a client keeps it


class FunctionCall(msgspec.Struct, frozen=True):
    """A function and its arguments, or in a chunk a piece of them: JSON text."""

    arguments: str
    name: str | msgspec.UnsetType = msgspec.UNSET


class ToolCall(msgspec.Struct, frozen=True):
    """A call in a reply."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class CallDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to the call number `index`; the first one of each has all but the arguments."""

    index: int
    function: FunctionCall
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET


def toolset(tools: Sequence[FunctionTool] | None, choice: ToolChoice | None, parallel: bool | None) -> Toolset | None:
    """The tools that an answer may call; None: it is a text.

    Raises:
        BadRequest: a tool or the choice is wrong; names it.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise BadRequest("tool_choice needs tools.", remedy="Send tools, or leave it out.", param="tool_choice")
        return None
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"tools has {len(tools)} entries; at most {MAX_TOOLS} are allowed.", param="tools")
    told: dict[str, Tool] = {}
    for number, tool in enumerate(tools):
        spec, param = tool.function, f"tools[{number}].function.name"
        if not _NAME.fullmatch(spec.name):
            raise BadRequest(f"{param} must be 1 to 64 letters, digits, _ and -.", param=param)
        if spec.name in told:
            raise BadRequest(f"{param}: there are two tools {spec.name!r}.", param=param)
        told[spec.name] = Tool(spec.name, spec.parameters or {}, spec.description or "")
    if choice == "none":
        return None
    only = _only(choice, told)
    one = parallel is False or isinstance(choice, FunctionChoice)
    required = choice == "required" or isinstance(choice, FunctionChoice)
    if isinstance(choice, AllowedChoice):
        required = choice.allowed_tools.mode == "required"
    return Toolset(tuple(told.values()), only, required, most=1 if one else MAX_CALLS)


def _only(choice: ToolChoice | None, told: dict[str, Tool]) -> tuple[str, ...]:
    match choice:
        case FunctionChoice():
            names, param = [choice.function.name], "tool_choice.function.name"
        case AllowedChoice():
            names = [one.function.name for one in choice.allowed_tools.tools]
            param = "tool_choice.allowed_tools.tools"
        case _:
            return ()
    for name in names:
        if name not in told:
            raise BadRequest(f"{param}: there is no tool {name!r}.", remedy="Name one of tools.", param=param)
    return tuple(dict.fromkeys(names))


class Results:
    """What came of the calls of one message: each is to be told once, before the conversation goes on.

    Args:
        calls: of the message; of none, no result may be told.
        where: the message, as errors name it.
    """

    def __init__(self, calls: Sequence[GivenCall] = (), where: str = "") -> None:
        self._calls = {call.id: call.function.name for call in calls}
        self._where = where
        self._told: dict[str, Message] = {}
        if len(self._calls) < len(calls):
            param = f"{where}.tool_calls"
            raise BadRequest(f"{param}: two calls have the same id.", param=param)

    def tell(self, call_id: str | None, name: str | None, text: str, where: str) -> None:
        """Take the message at `where`.

        Raises:
            BadRequest: it is the result of no call, or another function's, or that was told already.
        """
        param = f"{where}.tool_call_id"
        if call_id is None:
            raise BadRequest(f"{param} is missing.", remedy="Name the call that this is the result of.", param=param)
        if call_id not in self._calls:
            raise BadRequest(
                f"{param}: the assistant's message before it has no call {call_id!r}.",
                remedy="Send results right after the message whose tool_calls they answer.",
                param=param,
            )
        if call_id in self._told:
            raise BadRequest(f"{param}: the result of the call {call_id!r} was told before.", param=param)
        if name not in (None, self._calls[call_id]):
            param = f"{where}.name"
            raise BadRequest(f"{param}: the call {call_id!r} is one of {self._calls[call_id]!r}.", param=param)
        self._told[call_id] = Message("tool", text)

    def whole(self) -> list[Message]:
        """All results, in the order of the calls.

        Raises:
            BadRequest: one is missing.
        """
        for call_id in self._calls:
            if call_id not in self._told:
                param = f"{self._where}.tool_calls"
                remedy = "Each call needs a message of the role tool with its tool_call_id, right after."
                raise BadRequest(f"{param}: the call {call_id!r} has no result.", remedy=remedy, param=param)
        return [self._told[call_id] for call_id in self._calls]


def calls_of(given: Sequence[GivenCall]) -> tuple[Call, ...]:
    """Calls of a message as a conversation has them."""
    return tuple(Call(call.function.name, call.function.arguments) for call in given)


def new_id() -> str:
    """An id that no call has."""
    return f"call_{secrets.token_hex(12)}"


def call_delta(piece: CallPiece) -> CallDelta:
    """A piece of a call as a chunk has it; an id is made for the first one."""
    if piece.name:
        return CallDelta(piece.number, FunctionCall("", piece.name), new_id(), "function")
    return CallDelta(piece.number, FunctionCall(piece.arguments))


def tool_calls(pieces: Sequence[CallPiece]) -> list[ToolCall]:
    """The calls of a choice from their pieces, with ids."""
    names = [piece.name for piece in pieces if piece.name]
    arguments = [""] * len(names)
    for piece in pieces:
        arguments[piece.number] += piece.arguments
    return [ToolCall(new_id(), FunctionCall(*made)) for made in zip(arguments, names, strict=True)]
