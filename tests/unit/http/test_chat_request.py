"""What of OpenAI's chat request is understood, refused, or taken without effect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from appliance.answer.types import Message, Question
from appliance.engine.protocol import Constraint, Sampling
from appliance.engine.tools import Call, Tool, Toolset
from appliance.errors import ApplianceError, BadRequest
from appliance.http.body import decode
from appliance.http.chat_request import ChatRequest, check_model, question

GROUNDED = {"appliance": {"collection": "manuals"}}
USER = {"role": "user", "content": "hi"}


def asked(messages: list[Any] | None = None, **fields: Any) -> Question:
    body = msgspec.json.encode({"messages": messages or [USER], **fields})
    return question(decode(body, ChatRequest), "id")


def test_what_is_left_out_means_plain_generation_of_the_likeliest_words() -> None:
    assert asked() == Question(messages=(Message("user", "hi"),), collection=None, request_id="id")


def test_parameters_reach_the_engine() -> None:
    made = asked(
        temperature=0.7,
        top_p=0.9,
        seed=7,
        frequency_penalty=1,
        presence_penalty=-1,
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=3,
        top_k=40,
        min_p=0.05,
        repeat_penalty=1.1,
        dry_multiplier=0.8,
        dry_base=2,
        dry_allowed_length=3,
        dry_penalty_last_n=100,
        stop="END",
        max_completion_tokens=9,
        appliance={
            "collection": "manuals",
            "top_k": 3,
            "deadline_ms": 500,
            "priority": "batch",
            "effort": "fast",
            "cache": "bypass",
        },
    )
    assert made.sampling == Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repeat_penalty=1.1,
        frequency_penalty=1,
        presence_penalty=-1,
        logit_bias={5: -100},
        dry_multiplier=0.8,
        dry_base=2,
        dry_allowed_length=3,
        dry_penalty_last_n=100,
        seed=7,
        logprobs=3,
    )
    assert (made.stop, made.max_tokens) == (("END",), 9)
    assert (made.collection, made.top_k, made.deadline_ms) == ("manuals", 3, 500)
    assert (made.priority, made.effort) == ("batch", "fast")


SCHEMA = {"type": "object", "properties": {"b": {"enum": [1]}, "a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, Constraint("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            Constraint("json_schema", msgspec.json.encode(SCHEMA).decode()),
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, Constraint("json_schema", "{}")),
        ({"appliance": {"constraint": {"kind": "regex", "pattern": "[0-9]+"}}}, Constraint("regex", "[0-9]+")),
        (
            {"appliance": {"constraint": {"kind": "choice", "choices": ["ja", "nein\n"]}}},
            Constraint("choice", '["ja","nein\\n"]'),
        ),
    ],
)
def test_constraints(fields: dict[str, Any], constraint: Constraint) -> None:
    assert asked(**fields).constraint == constraint


def test_several_choices_and_logprobs_alone() -> None:
    assert asked(n=8).n == 8
    assert asked(logprobs=True).sampling == Sampling(logprobs=0)


def test_roles_and_text_parts() -> None:
    made = asked(
        [
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": None},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        ]
    )
    assert made.messages == (Message("system", "be brief"), Message("assistant", ""), Message("user", "one\ntwo"))


@pytest.mark.parametrize(
    "field",
    [
        {"n": 1},
        {"n": None},
        {"tools": []},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False},
        {"tools": [{"type": "function", "function": {"name": "now"}}], "tool_choice": "none"},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"logprobs": False},
        {"top_logprobs": 0},
        {"top_k": 0, "min_p": 0, "repeat_penalty": 1},
        {"store": False},
        {"metadata": {"a": "b"}},
        {"user": "someone"},
        {"service_tier": "auto"},
        {"parallel_tool_calls": True},
        {"modalities": ["text"]},
        {"stream_options": None},
    ],
)
def test_what_asks_for_nothing_is_taken(field: dict[str, Any]) -> None:
    assert asked(**field) == asked()


SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        "strict": True,
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS = (Tool("search", SEARCH["function"]["parameters"], "Finds"), Tool("now"))


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


@pytest.mark.parametrize(
    ("fields", "toolset"),
    [
        ({}, Toolset(TOOLS)),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, Toolset(TOOLS)),
        ({"tool_choice": "none"}, None),
        ({"tool_choice": "required"}, Toolset(TOOLS, required=True)),
        ({"tool_choice": "required", "parallel_tool_calls": False}, Toolset(TOOLS, required=True, most=1)),
        ({"tool_choice": named("now")}, Toolset(TOOLS, ("now",), required=True, most=1)),
        ({"tool_choice": allowed("auto", "now")}, Toolset(TOOLS, ("now",))),
        ({"tool_choice": allowed("required", "now", "search")}, Toolset(TOOLS, ("now", "search"), required=True)),
    ],
)
def test_tools_and_which_may_be_called(fields: dict[str, Any], toolset: Toolset | None) -> None:
    assert asked(tools=[SEARCH, NOW], **fields).tools == toolset


def test_tools_may_be_given_beside_a_form_of_the_answer() -> None:
    made = asked(tools=[NOW], response_format={"type": "json_object"}, n=2, stop="END")
    assert (made.tools, made.constraint, made.n) == (Toolset((Tool("now"),)), Constraint("json_object"), 2)


def called(*ids: str, name: str = "search") -> dict[str, Any]:
    calls = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, content: Any = "found", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def test_results_come_in_the_order_of_their_calls() -> None:
    parts = [{"type": "text", "text": "two"}]
    made = asked(
        [USER, called("a", "b"), result("b", parts, name="search"), result("a", ""), USER, called("c"), result("c")]
    )
    calls = (Call("search", "{}"),)
    assert made.messages == (
        Message("user", "hi"),
        Message("assistant", "", calls * 2),
        Message("tool", ""),
        Message("tool", "two"),
        Message("user", "hi"),
        Message("assistant", "", calls),
        Message("tool", "found"),
    )


def test_calls_come_back_as_the_sdk_has_them() -> None:
    call = {"id": "a", "index": 0, "type": "function"}
    function = {"name": "search", "arguments": '{"q": 1}', "parsed_arguments": {"q": 1}}
    turn = {"role": "assistant", "content": "Well.", "tool_calls": [{**call, "function": function}]}
    assert asked([USER, turn, result("a")]).messages[1] == Message("assistant", "Well.", (Call("search", '{"q": 1}'),))


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"n": 2, **GROUNDED}, "n"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [NOW, named("no space")]}, "tools[1].function.name"),
        ({"tools": [named("line\n")]}, "tools[0].function.name"),
        ({"tools": [named("x" * 65)]}, "tools[0].function.name"),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        ({"tools": [named(f"t{number}") for number in range(129)]}, "tools"),
        ({"tools": [NOW], **GROUNDED}, "tools"),
        ({"tools": [NOW], "logprobs": True}, "logprobs"),
        (
            {"tools": [NOW], "appliance": {"constraint": {"kind": "regex", "pattern": "x"}}},
            "appliance.constraint",
        ),
        ({"tool_choice": named("now")}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": named("later")}, "tool_choice.function.name"),
        ({"tools": [NOW], "tool_choice": allowed("auto", "now", "x")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [NOW], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [NOW], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}, **GROUNDED}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {
                "response_format": {"type": "json_object"},
                "appliance": {"constraint": {"kind": "regex", "pattern": "x"}},
            },
            "response_format",
        ),
        ({"appliance": {"constraint": {"kind": "regex"}}}, "appliance.constraint.pattern"),
        ({"appliance": {"constraint": {"kind": "choice", "choices": []}}}, "appliance.constraint.choices"),
        (
            {"appliance": {"collection": "m", "constraint": {"kind": "regex", "pattern": "x"}}},
            "appliance.constraint",
        ),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"store": True}, "store"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"appliance": {"filters": {"a": 1}}}, "appliance.filters"),
        ({"messages": []}, "messages"),
        ({"messages": [result("1")]}, "messages[0].tool_call_id"),
        ({"messages": [USER, called("a"), {"role": "tool", "content": "x"}]}, "messages[2].tool_call_id"),
        ({"messages": [USER, called("a"), result("b")]}, "messages[2].tool_call_id"),
        ({"messages": [USER, called("a"), result("a"), result("a")]}, "messages[3].tool_call_id"),
        ({"messages": [USER, called("a"), result("a"), USER, result("a")]}, "messages[4].tool_call_id"),
        ({"messages": [USER, called("a"), result("a", name="open")]}, "messages[2].name"),
        ({"messages": [USER, called("a"), result("a", None)]}, "messages[2].content"),
        ({"messages": [USER, called("a", "b"), result("a"), USER]}, "messages[1].tool_calls"),
        ({"messages": [USER, called("a")]}, "messages[1].tool_calls"),
        ({"messages": [USER, called("a", "a"), result("a")]}, "messages[1].tool_calls"),
        ({"messages": [{**USER, "tool_calls": called("a")["tool_calls"]}]}, "messages[0].tool_calls"),
        ({"messages": [{**USER, "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
        ({"messages": [USER, {**called("a"), "tool_calls": [{"id": "a"}]}]}, "messages[1].tool_calls[0].function"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{**USER, "name": "Ann"}]}, "messages[0].name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
            "messages[0].content[1].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "messages[0].content[0].type"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(field: dict[str, Any], param: str) -> None:
    body = msgspec.json.encode({"messages": [USER], **field})
    with pytest.raises(BadRequest) as caught:
        question(decode(body, ChatRequest), "id")
    assert caught.value.param == param


@pytest.mark.parametrize("name", [None, "", "default", "appliance", "smol"])
def test_the_generator_answers_under_its_name(name: str | None) -> None:
    check_model(name, "smol")


def test_another_model_is_not_found() -> None:
    with pytest.raises(ApplianceError, match="smol") as caught:
        check_model("gpt-4o", "smol")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
