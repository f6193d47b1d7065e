"""What of OpenAI's chat request is understood, refused, or taken without effect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from appliance.answer.types import Message, Question
from appliance.engine.protocol import Sampling
from appliance.errors import ApplianceError, BadRequest
from appliance.http.body import decode
from appliance.http.chat_request import ChatRequest, check_model, question

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
        temperature=0.7, top_p=0.9, seed=7, frequency_penalty=1, presence_penalty=-1, logit_bias={5: -100}
    )
    assert (made.stop, made.max_tokens) == (("END",), 9)
    assert (made.collection, made.top_k, made.deadline_ms) == ("manuals", 3, 500)
    assert (made.priority, made.effort) == ("batch", "fast")


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
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
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
