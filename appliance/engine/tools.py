"""Owns the written form of tool calls: how tools are told to a model, which texts are calls, how calls are read.

Must not know wire formats, tokens or the model.

The form is that of Hermes and Qwen, whatever the model's template says: the constraint makes any model keep to it.

    Some text, or none, then
    <tool_call>
    {"name": "search", "arguments": {"query": "grout"}}
    </tool_call>

A text holds `<tool_call>` where a call begins, and nowhere else. Arguments may hold it: they are JSON in one line, and
end with their last bracket.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.engine.protocol import Constraint
from appliance.engine.schema import MAX_SOURCE_BYTES, refuse

MAX_CALLS = 8  # of one answer: a weak model would go on calling
_OPEN = "<tool_call>"
_CLOSE = "\n</tool_call>"
_NAME = '\n{"name": '
_ARGUMENTS = ', "arguments": '
_END_OF_RESULT = "</tool_response"
# The words are Qwen's: models that were trained to call tools know them, and others get by.
_INSTRUCTIONS = (
    "# Tools\n\n"
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML "
    "tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
# Beside one of these, properties that are not listed may be meant.
_OPENING = frozenset({"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"})


class Tool(msgspec.Struct, frozen=True):
    """A function that may be called. `parameters`: the JSON schema of its arguments."""

    name: str  # of letters, digits, _ and -
    parameters: dict[str, Any] = {}
    description: str = ""


class Toolset(msgspec.Struct, frozen=True):
    """The tools that a model is told of, each name once, and which calls its answer may have."""

    tools: tuple[Tool, ...]
    only: tuple[str, ...] = ()  # names of those that may be called; none: all
    required: bool = False  # the answer is calls, without a text
    most: int = MAX_CALLS

    def __post_init__(self) -> None:
        names = {tool.name for tool in self.tools}
        if not names or len(names) < len(self.tools):
            raise ValueError("tools must be there, each with a name of its own")
        if not names.issuperset(self.only):
            raise ValueError("tools that may be called must be among the tools")
        if self.most < 1:
            raise ValueError(f"most is {self.most}, not 1 or more")

    def callable_numbers(self) -> list[int]:
        """Which of `tools` may be called."""
        return [number for number, tool in enumerate(self.tools) if not self.only or tool.name in self.only]


class Calling(msgspec.Struct, frozen=True):
    """What a constraint of kind `tools` says in its source: calls, or an answer of this JSON schema, or any text."""

    toolset: Toolset
    answer: str | None = None


class CallPiece(msgspec.Struct, frozen=True):
    """A piece of the call that has this `number` in its answer. The first piece of a call is its name alone."""

    number: int
    name: str = ""
    arguments: str = ""


class Call(msgspec.Struct, frozen=True):
    """A call as a whole; `arguments` is JSON text."""

    name: str
    arguments: str


def constraint_of(toolset: Toolset, answer: Constraint | None) -> Constraint:
    """The constraint that makes a text calls of these tools, or JSON as `answer` says; None: or any text."""
    if answer is not None and answer.kind not in ("json_schema", "json_object"):
        raise ValueError(f"an answer beside tools can be JSON, not {answer.kind}")
    schema = None if answer is None else answer.source or '{"type": "object"}'
    bare = tuple(Tool(tool.name, tool.parameters) for tool in toolset.tools)  # descriptions constrain nothing
    calling = Calling(msgspec.structs.replace(toolset, tools=bare), schema)
    return Constraint("tools", msgspec.json.encode(calling).decode())


def read_calling(source: str) -> Calling:
    """What the source of a constraint of kind `tools` says.

    Raises:
        UnsupportedConstraint: it is no such source, or too long.
    """
    if len(source) > MAX_SOURCE_BYTES:
        refuse(f"the tools are over {MAX_SOURCE_BYTES >> 10} KiB")
    try:
        return msgspec.json.decode(source, type=Calling)
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        refuse(f"the tools are not understood: {error}")


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments, enforceable, as a call keeps to it.

    Without keywords it is that of no arguments. Where nothing is said of properties that are not listed, a call has
    none: the function would not know them.

    Raises:
        UnsupportedConstraint: it allows what is no object.
    """
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.get("type") != "object":
        refuse("the type must be object, as arguments have names")
    opened = _OPENING & schema.keys() or set(schema.get("required", ())) - schema.get("properties", {}).keys()
    return schema if opened or "properties" not in schema else {**schema, "additionalProperties": False}


def grammar(
    toolset: Toolset, schemas: Sequence[dict[str, Any]], answer: dict[str, Any] | None, json_options: dict[str, Any]
) -> str:
    """The grammar of such answers, in llguidance's dialect of Lark.

    Args:
        toolset: what may be called.
        schemas: of the arguments, one for each tool, as the compiler takes them.
        answer: schema of an answer that is no call; None: it is any text, and a text may come before calls.
        json_options: how the compiler writes JSON.
    """
    rules = []
    numbers = toolset.callable_numbers()
    for number in numbers:
        begin = f"{_NAME}{json.dumps(toolset.tools[number].name)}{_ARGUMENTS}"
        rules.append(f"call_{number}: {json.dumps(begin)} arguments_{number} {json.dumps('}' + _CLOSE)}")
        rules.append(f"arguments_{number}: %json {json.dumps({**schemas[number], 'x-guidance': json_options})}")
    rules.append("call: " + " | ".join(f"call_{number}" for number in numbers))
    more = f' ("\\n{_OPEN}" call){{0,{toolset.most - 1}}}' if toolset.most > 1 else ""
    calls = f'"{_OPEN}" call{more}'
    if toolset.required:
        return "\n".join([f"start: {calls}", *rules, ""])
    if answer is not None:
        rules.append(f"answer: %json {json.dumps({**answer, 'x-guidance': json_options})}")
        return "\n".join([f"start: answer | {calls}", *rules, ""])
    rules.append(f"to_call[lazy]: /(?s:.*){_OPEN}/")
    rules.append(f"TEXT: /(?s:.*)/ & ~/(?s:.*){_OPEN}(?s:.*)/")
    return "\n".join([f"start: TEXT | to_call call{more}", *rules, ""])


def instructions(tools: Sequence[Tool]) -> str:
    """What a model is told of its tools, for the system message."""
    lines = []
    for tool in tools:
        described = {"description": tool.description} if tool.description else {}
        function = {"name": tool.name, **described, "parameters": tool.parameters}
        lines.append(json.dumps({"type": "function", "function": function}, ensure_ascii=False))
    return _INSTRUCTIONS.format(tools="\n".join(lines))


def written(text: str, calls: Sequence[Call]) -> str:
    """A text and calls as a model has written them, for the conversation that goes on."""
    blocks = [text] if text else []
    for call in calls:
        arguments = call.arguments.strip() or "{}"
        blocks.append(f"{_OPEN}{_NAME}{json.dumps(call.name)}{_ARGUMENTS}{arguments}}}{_CLOSE}")
    return "\n".join(blocks)


def results(texts: Sequence[str]) -> str:
    """What tools answered, in the order of their calls, for the user's turn that follows these.

    No text gets out of its frame: in it, `</tool_response` becomes `<\\/tool_response`.
    """
    inert = [text.replace(_END_OF_RESULT, _END_OF_RESULT.replace("/", "\\/")) for text in texts]
    return "\n".join(f"<tool_response>\n{text}\n{_END_OF_RESULT}>" for text in inert)


class CallReader:
    """Tells text and calls of one answer apart while it comes.

    For texts under a constraint of kind `tools`. What it gives, pieces joined, does not depend on how the text was cut.
    Of an answer that ends early, the last call has its arguments as far as they came; one without any is not told.
    """

    def __init__(self) -> None:
        self._held = ""  # not read yet: it may be of the frame around a call's arguments
        self._number = -1  # of the last call
        self._inside = False  # its arguments, in which so many brackets are open:
        self._depth = 0
        self._in_string = self._escaped = False

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return self._number >= 0

    def feed(self, text: str) -> list[str | CallPiece]:
        """The pieces of text and calls that are known now."""
        pieces: list[str | CallPiece] = []
        self._held += text
        while self._held:
            if self._inside:
                pieces.append(CallPiece(self._number, arguments=self._take_arguments()))
            elif (at := self._held.find(_OPEN)) < 0:
                # The line break before a call is its frame's.
                if not self.called and (known := self._take(len(self._held) - _begun(self._held, "\n" + _OPEN))):
                    pieces.append(known)
                break
            else:
                if not self.called and (before := self._take(at).removesuffix("\n")):
                    pieces.append(before)
                if (name := self._take_name()) is None:
                    break
                self._number += 1
                self._inside = True
                pieces.append(CallPiece(self._number, name))
        return pieces

    def finish(self) -> str:
        """No more comes: what was held back, if it is text."""
        held, self._held = self._held, ""
        return "" if self.called or _OPEN in held else held

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken

    def _take_name(self) -> str | None:
        """Takes the frame up to the arguments, if it is held whole; the name in it."""
        at = self._held.find(_ARGUMENTS + "{")
        if at < 0:
            return None
        frame = self._take(at + len(_ARGUMENTS))
        name: str = json.loads(frame[frame.index(_NAME) + len(_NAME) : -len(_ARGUMENTS)])
        return name

    def _take_arguments(self) -> str:
        """Takes what of the arguments is held: all, or up to their last bracket."""
        for at, character in enumerate(self._held):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    self._inside = False
                    return self._take(at + 1)
        return self._take(len(self._held))


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`, or of it without its first."""
    longest = min(len(text), len(mark) - 1)
    for length in range(longest, 0, -1):
        if text.endswith((mark[:length], mark[1 : length + 1])):
            return length
    return 0
