"""Owns the request of `POST /v1/chat/completions`: its fields, and what of them is understood.

Must not know replies, nor how questions are answered.

Every field that OpenAI's reference names is declared. A field that is not supported yet is refused unless its
value asks for nothing; none is silently ignored. Fields that cannot change an answer are taken.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from appliance.answer.types import MAX_CHOICES, Message, Question, Role
from appliance.engine.protocol import Constraint, Sampling
from appliance.errors import ApplianceError, BadRequest
from appliance.http import chat_tools, extension
from appliance.http.chat_tools import FunctionTool, GivenCall, Results, ToolChoice
from appliance.http.extension import Extension, Tokens

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Lookback = Annotated[int, Meta(ge=-1, le=1 << 20)]
MAX_STOPS = 4
MAX_BIAS = 100.0
# Names under which the generator answers besides its own.
ALIASES = frozenset({"", "default", "appliance"})

# What an unsupported field may be set to, because it then asks for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Fields that are parameters of `Sampling` as they are.
SAMPLING = (
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "top_k",
    "min_p",
    "repeat_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
)
UNSUPPORTED_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": (),
    "parsed": (),  # the SDK's own, in messages that it sends back
}
# Fields of messages that mean something in those of one role alone.
OF_ROLE: dict[str, tuple[str, Any]] = {"tool_call_id": ("tool", None), "tool_calls": ("assistant", [])}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a stream. Nothing is obfuscated, so `include_obfuscation` has no effect."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema with what only describes it. It is enforced, `strict` or not."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON that a schema allows."""

    json_schema: JsonSchema


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message, its content checked by `_text`."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None  # of our own earlier replies
    audio: Any = None
    function_call: Any = None
    name: str | None = None  # of the function that answers; nobody else has one yet
    parsed: Any = None
    tool_call_id: str | None = None
    tool_calls: list[GivenCall] | None = None


class ChatRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's request; a field that is null counts as left out. `temperature` left out means 0: a small model
    on documents does best when it takes its most likely words."""

    messages: list[ChatMessage]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # Not OpenAI's: llama.cpp's names and meanings.
    top_k: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    min_p: Share | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    dry_penalty_last_n: Lookback | None = None
    appliance: Extension | None = None
    # Taken, and without effect on an answer.
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: str | None = None
    # Refused unless neutral; see NEUTRAL.
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    store: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class UnknownModel(ApplianceError):
    """A model was named that cannot answer."""

    code, status, kind = "model_not_found", 404, "invalid_request_error"


def check_model(name: str | None, generator: str) -> None:
    """Refuse a model that is not the generator: its name in the reply would be a lie.

    Raises:
        UnknownModel: `name` is neither the generator's nor an alias.
    """
    if (name or "") not in ALIASES and name != generator:
        raise UnknownModel(
            f"There is no model {name!r} that answers.", remedy=f"Use {generator!r}, or leave it out.", param="model"
        )


def question(asked: ChatRequest, request_id: str) -> Question:
    """What the backend is asked.

    Raises:
        BadRequest: a field is wrong, or not supported yet; names it.
    """
    for name, neutral in NEUTRAL.items():
        refuse_unless_neutral(name, getattr(asked, name), neutral)
    own = asked.appliance or Extension()
    grounded = own.collection is not None
    extension.check(own, grounded=grounded)
    constraint = _constraint(asked, own)
    tools = chat_tools.toolset(asked.tools, asked.tool_choice, asked.parallel_tool_calls)
    if grounded and constraint is not None:
        raise extension.not_grounded("response_format")
    if grounded and tools is not None:
        raise extension.not_grounded("tools")
    if tools is not None:
        _check_beside_tools(asked, own)
    if grounded and (asked.n or 1) > 1:
        raise extension.not_grounded("n")
    if asked.stream_options is not None and not asked.stream:
        raise BadRequest("stream_options needs stream to be true.", param="stream_options")
    if not asked.messages:
        raise BadRequest("messages is empty.", remedy="Send at least one user message.", param="messages")
    return Question(
        messages=_messages(asked.messages),
        collection=own.collection,
        request_id=request_id,
        cache=own.cache,
        filters=extension.filters_of(own),
        recall=extension.recall_of(own),
        top_k=own.top_k,
        max_tokens=_max_tokens(asked),
        sampling=_sampling(asked),
        stop=_stop(asked.stop),
        constraint=constraint,
        tools=tools,
        n=asked.n or 1,
        priority=own.priority,
        deadline_ms=own.deadline_ms,
        effort=own.effort,
    )


def refuse_unless_neutral(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    """Refuse a value that asks for what is not supported: any but null and the neutral ones."""
    # `True == 1` in Python: types are compared too.
    if value is None or any(value == allowed and type(value) is type(allowed) for allowed in neutral):
        return
    shown = f"{name} = {msgspec.json.encode(value).decode():.60}"
    raise BadRequest(f"{shown} is not supported yet.", remedy=f"Leave {name.split('.')[-1]} out.", param=name)


def _check_beside_tools(asked: ChatRequest, own: Extension) -> None:
    """Refuse what an answer cannot have that may be calls."""
    for param, given in (("appliance.constraint", own.constraint is not None), ("logprobs", asked.logprobs)):
        if given:
            raise BadRequest(f"{param} and tools are both given.", remedy="Give one of them.", param=param)


def _messages(given: list[ChatMessage]) -> tuple[Message, ...]:
    """The conversation; what came of calls, in their order."""
    made: list[Message] = []
    results = Results()
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        role = _role(message, where)
        text = _text(message, where)
        if role == "tool":
            results.tell(message.tool_call_id, message.name or None, text, where)
            continue
        calls = message.tool_calls or []
        made += [*results.whole(), Message(role, text, chat_tools.calls_of(calls))]
        results = Results(calls, where)
    return (*made, *results.whole())


def _role(message: ChatMessage, where: str) -> Role:
    roles: dict[str, Role] = {role: role for role in get_args(Role)} | {"developer": "system"}
    role = roles.get(message.role)
    if role is None:
        remedy = f"Use {', '.join(roles)}."
        raise BadRequest(f"The role {message.role!r} is not supported.", remedy=remedy, param=f"{where}.role")
    for name, neutral in UNSUPPORTED_IN_MESSAGE.items():
        refuse_unless_neutral(f"{where}.{name}", getattr(message, name), neutral)
    if role != "tool":
        refuse_unless_neutral(f"{where}.name", message.name, ("",))
    for name, (owner, neutral) in OF_ROLE.items():
        if role != owner and getattr(message, name) not in (None, neutral):
            param = f"{where}.{name}"
            raise BadRequest(f"{param} is for messages of the role {owner}.", remedy="Leave it out.", param=param)
    return role


def _text(message: ChatMessage, where: str) -> str:
    content = message.content
    if content is None:
        if message.role == "assistant":
            return message.refusal or ""
        raise BadRequest("A message has no content.", param=f"{where}.content")
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{where}.content[{number}]") for number, part in enumerate(content))


def _part(part: dict[str, Any], where: str) -> str:
    kind = part.get("type")
    key = {"text": "text", "refusal": "refusal"}.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise BadRequest(
            f"Content parts of type {kind!r} are not supported.", remedy="Send text parts.", param=f"{where}.type"
        )
    text = part.get(key)
    if not isinstance(text, str):
        raise BadRequest(f"{where}.{key} must be a string.", param=f"{where}.{key}")
    return text


def _max_tokens(asked: ChatRequest) -> int | None:
    old, new = asked.max_tokens, asked.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise BadRequest(
            "max_tokens and max_completion_tokens differ.",
            remedy="Give max_completion_tokens alone.",
            param="max_tokens",
        )
    return old if new is None else new


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"stop has {len(stops)} sequences; at most {MAX_STOPS} are allowed.", param="stop")
    if "" in stops:
        raise BadRequest("stop has an empty sequence.", param="stop")
    return stops


def constraint_param(asked: ChatRequest) -> str | None:
    """The field that a constraint was given in, or that makes one."""
    if asked.tools and asked.tool_choice != "none":
        return "tools"
    if asked.appliance is not None and asked.appliance.constraint is not None:
        return "appliance.constraint"
    return "response_format" if isinstance(asked.response_format, JsonObjectFormat | JsonSchemaFormat) else None


def _constraint(asked: ChatRequest, own: Extension) -> Constraint | None:
    wanted = extension.constraint_of(own)
    match asked.response_format:
        case JsonObjectFormat():
            standard = Constraint("json_object")
        case JsonSchemaFormat(given):
            standard = Constraint("json_schema", msgspec.json.encode(given.schema).decode())
        case _:
            return wanted
    if wanted is not None:
        raise BadRequest(
            "response_format and appliance.constraint are both given.",
            remedy="Give one of them.",
            param="response_format",
        )
    return standard


def _logprobs(asked: ChatRequest) -> int | None:
    if asked.logprobs:
        return asked.top_logprobs or 0
    if asked.top_logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    return None


def _sampling(asked: ChatRequest) -> Sampling:
    given = {name: value for name in SAMPLING if (value := getattr(asked, name)) is not None}
    return Sampling(logit_bias=_bias(asked.logit_bias or {}), logprobs=_logprobs(asked), **given)


def _bias(given: dict[str, float]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for token, value in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10) or abs(value) > MAX_BIAS:
            raise BadRequest("logit_bias maps token ids to numbers from -100 to 100.", param=f"logit_bias.{token[:40]}")
        bias[int(token)] = value
    return bias
