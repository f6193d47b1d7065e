"""Owns the request of `POST /v1/responses`: its fields, its items, and what of them is understood.

Must not know replies, nor how questions are answered.

Every field that OpenAI's reference names is declared; what asks for something that is not there is refused by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from appliance.answer.types import CacheUse, Message, Question
from appliance.engine.protocol import Constraint, Priority, Sampling
from appliance.engine.tools import Call, Toolset
from appliance.errors import BadRequest
from appliance.http import chat_tools
from appliance.http.chat_request import JsonObjectFormat, TextFormat, refuse_unless_neutral
from appliance.http.extension import Tokens

# What an unsupported field may be set to, because it then asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": (),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "reasoning": ({},),
    "top_logprobs": (0,),
    "truncation": ("auto",),
}
MAX_METADATA = 16


class ResponseTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A function of the client's; there are no other tools yet. Its parameters are enforced, `strict` or not."""

    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """This function is called."""

    name: str


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"):
    """These functions may, or one of them must, be called; the model is told of all."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1)]


class SchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON that a schema allows; it is enforced, `strict` or not."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer looks like that is no call."""

    format: TextFormat | JsonObjectFormat | SchemaFormat = TextFormat()
    verbosity: Literal["medium"] | None = None


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is obfuscated, so `include_obfuscation` has no effect."""

    include_obfuscation: bool | None = None


class ResponseExtension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What OpenAI's requests have no field for."""

    deadline_ms: Annotated[float, Meta(gt=0)] | None = None
    priority: Priority = "interactive"
    cache: CacheUse = "default"


class ResponseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's request; a field that is null counts as left out. `temperature` left out means 0."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_output_tokens: Tokens | None = None
    metadata: dict[str, str] | None = None
    appliance: ResponseExtension | None = None
    # Taken, and without effect on an answer.
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: str | None = None
    # Refused unless neutral; see NEUTRAL.
    background: Any = None
    context_management: Any = None
    conversation: Any = None
    include: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    prompt: Any = None
    reasoning: Any = None
    top_logprobs: Any = None
    truncation: Any = None


class Said(msgspec.Struct, frozen=True, tag=True):
    """A text of a conversation."""

    role: Literal["system", "user", "assistant"]
    text: str


class Called(msgspec.Struct, frozen=True, tag=True):
    """A call of the assistant's."""

    call_id: str
    name: str
    arguments: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """What came of a call."""

    call_id: str
    text: str


Item = Said | Called | Answered


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[dict[str, Any]]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None
    phase: Any = None


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    parsed_arguments: Any = None  # the SDK's own, in items that it sends back


class _Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]
    id: str | None = None
    status: str | None = None


_KINDS: dict[Any, type[_Message | _Call | _Output]] = {
    "message": _Message,
    "function_call": _Call,
    "function_call_output": _Output,
}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


@contextlib.contextmanager
def own_names() -> Iterator[None]:
    """Within it, errors about a request name its fields as this request has them, not as chat has."""
    try:
        yield
    except BadRequest as error:
        if error.param is not None:
            renamed = error.param.replace(".function.", ".").replace(".allowed_tools.", ".")
            renamed = {"response_format": "text.format", "messages": "input"}.get(renamed, renamed)
            error.message = error.message.replace(error.param, renamed)
            error.param = renamed
        raise


def items_of(given: str | Sequence[dict[str, Any]]) -> list[Item]:
    """The items of an input.

    Raises:
        BadRequest: one is wrong, or of a kind that is not supported; names it.
    """
    if isinstance(given, str):
        return [Said("user", given)]
    return [_item(item, f"input[{number}]") for number, item in enumerate(given)]


def _item(item: dict[str, Any], where: str) -> Item:
    kind = item.get("type", "message")
    if not isinstance(kind, str) or kind not in _KINDS:
        remedy = f"Send {', '.join(_KINDS)}."
        raise BadRequest(f"Items of type {kind!r} are not supported.", remedy=remedy, param=f"{where}.type")
    try:
        read = msgspec.convert(item, _KINDS[kind])
    except msgspec.ValidationError as error:
        raise BadRequest(f"{where}: {error}.", param=where) from error
    match read:
        case _Call():
            return Called(read.call_id, read.name, read.arguments)
        case _Output():
            return Answered(read.call_id, _text(read.output, f"{where}.output"))
        case _:
            role = "system" if read.role == "developer" else read.role
            return Said(role, _text(read.content, f"{where}.content"))


def _text(content: str | list[dict[str, Any]], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type")
        key = _TEXTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise BadRequest(
                f"Content of type {kind!r} is not supported.",
                remedy="Send input_text.",
                param=f"{where}[{number}].type",
            )
        text = part.get(key)
        if not isinstance(text, str):
            param = f"{where}[{number}].{key}"
            raise BadRequest(f"{param} must be a string.", param=param)
        texts.append(text)
    return "\n".join(texts)


def messages_of(items: Sequence[Item], instructions: str | None) -> tuple[Message, ...]:
    """The conversation; what came of calls follows them, in their order.

    Raises:
        BadRequest: a call has no result or two, or a result no call.
    """
    made = [Message("system", instructions)] if instructions else []
    calls: dict[str, Called] = {}  # of the last message
    results: dict[str, str] = {}
    for item in items:
        match item:
            case Answered(call_id, text):
                if call_id not in calls or call_id in results:
                    why = "has its result already" if call_id in results else "is none of the assistant's last turn"
                    raise BadRequest(f"The call {call_id!r} of a function_call_output {why}.", param="input")
                results[call_id] = text
            case Called(call_id):
                if results or not (calls or (made and made[-1].role == "assistant")):
                    _close(made, calls, results)
                    made.append(Message("assistant", ""))
                if call_id in calls:
                    raise BadRequest(f"Two calls have the id {call_id!r}.", param="input")
                calls[call_id] = item
                made[-1] = msgspec.structs.replace(made[-1], calls=(*made[-1].calls, Call(item.name, item.arguments)))
            case Said(role, text):
                _close(made, calls, results)
                made.append(Message(role, text))
    _close(made, calls, results)
    return tuple(made)


def _close(made: list[Message], calls: dict[str, Called], results: dict[str, str]) -> None:
    """Puts the results of the last message's calls behind it."""
    for call_id in calls:
        if call_id not in results:
            remedy = "Send a function_call_output with its call_id."
            raise BadRequest(f"The call {call_id!r} has no result.", remedy=remedy, param="input")
        made.append(Message("tool", results[call_id]))
    calls.clear()
    results.clear()


def question(asked: ResponseRequest, items: Sequence[Item], request_id: str) -> Question:
    """What the backend is asked; `items`: the whole conversation.

    Raises:
        BadRequest: a field is wrong, or not supported yet; names it.
    """
    for name, neutral in NEUTRAL.items():
        refuse_unless_neutral(name, getattr(asked, name), neutral)
    if asked.stream_options is not None and not asked.stream:
        raise BadRequest("stream_options needs stream to be true.", param="stream_options")
    if len(asked.metadata or {}) > MAX_METADATA:
        raise BadRequest(f"metadata has more than {MAX_METADATA} pairs.", param="metadata")
    own = asked.appliance or ResponseExtension()
    return Question(
        messages=messages_of(items, asked.instructions),
        collection=None,
        request_id=request_id,
        cache=own.cache,
        max_tokens=asked.max_output_tokens,
        sampling=Sampling(temperature=asked.temperature or 0.0, top_p=1.0 if asked.top_p is None else asked.top_p),
        constraint=_constraint(asked.text),
        tools=_toolset(asked),
        priority=own.priority,
        deadline_ms=own.deadline_ms,
    )


def _toolset(asked: ResponseRequest) -> Toolset | None:
    tools = [
        chat_tools.FunctionTool(chat_tools.FunctionSpec(tool.name, tool.description, tool.parameters, tool.strict))
        for tool in asked.tools or ()
    ]
    choice: chat_tools.ToolChoice | None
    match asked.tool_choice:
        case NamedTool(name):
            choice = _named(name)
        case AllowedTools(mode, allowed):
            choice = chat_tools.AllowedChoice(chat_tools.Allowed(mode, [_named(tool.name) for tool in allowed]))
        case other:
            choice = other
    return chat_tools.toolset(tools, choice, asked.parallel_tool_calls)


def _named(name: str) -> chat_tools.FunctionChoice:
    return chat_tools.FunctionChoice(chat_tools.FunctionName(name))


def _constraint(text: TextConfig | None) -> Constraint | None:
    match text.format if text else None:
        case JsonObjectFormat():
            return Constraint("json_object")
        case SchemaFormat(_, schema):
            return Constraint("json_schema", msgspec.json.encode(schema).decode())
        case _:
            return None
