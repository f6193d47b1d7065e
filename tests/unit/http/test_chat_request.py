"""What of OpenAI's chat request is understood, refused, or taken without effect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from appliance.answer.types import Message, Question
from appliance.engine.protocol import Constraint, Sampling
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


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"n": 2, **GROUNDED}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
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
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
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
