"""JSON bodies: what is wrong with one is said in terms of its fields."""

from __future__ import annotations

import pytest

from appliance.errors import BadRequest
from appliance.http.ask import AskRequest
from appliance.http.body import decode
from appliance.http.chat_request import ChatRequest


@pytest.mark.parametrize(
    ("data", "param", "says"),
    [
        (b"", None, "empty"),
        (b"{", None, "not valid JSON"),
        (b"[1]", None, "Expected `object`"),
        (b'{"question": "\xff"}', None, "UTF-8"),
        ('{"question": "x"}'.encode("utf-16"), None, "not valid JSON"),
        (b'{"question": "x", "top_k": NaN}', None, "not valid JSON"),
        (b'{"question": "x", "appliance": {"deadline_ms": 1e999}}', "appliance.deadline_ms", "out of range"),
        (b'{"question": "x", "top_k": "3"}', "top_k", "Expected `int"),
        (b'{"question": "x", "top_k": 3.5}', "top_k", "Expected `int"),
        (b'{"question": "x", "top_k": 0}', "top_k", ">= 1"),
        (b'{"question": "x", "max_tokens": 99999999999999999999}', "max_tokens", "<="),
        (b'{"question": 1}', "question", "Expected `str`"),
        (b'{"collection": "x"}', "question", "missing"),
        (b'{"question": "x", "qestion": 1}', "qestion", "Did you mean question?"),
        (b'{"question": "x", "appliance": {"topk": 1}}', "appliance.topk", "Did you mean top_k?"),
        (b'{"question": "x", "zzzz": 1}', "zzzz", "/openapi.json"),
        (b'{"question": "x", "appliance": {"priority": "high"}}', "appliance.priority", "Invalid enum value"),
        (b'{"question": ' + b"[" * 10_000, "question", "Expected `str`"),
        (b'{"question": "x", "appliance": {"filters": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}", None, "deep"),
        (b'{"zzzz": ' + b'{"a":' * 10_000, "zzzz", "Unknown field"),
    ],
)
def test_a_wrong_ask_names_its_field(data: bytes, param: str | None, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(data, AskRequest)
    assert caught.value.param == param
    assert says in caught.value.text


@pytest.mark.parametrize(
    ("data", "param", "says"),
    [
        (b'{"messages": [{"role": "user", "contents": "x"}]}', "messages[0].contents", "Did you mean content?"),
        (b'{"messages": [{"content": "x"}]}', "messages[0].role", "missing"),
        (b'{"messages": [], "max_completion_token": 3}', "max_completion_token", "max_completion_tokens?"),
        (b'{"messages": [], "stream_options": {"include_use": true}}', "stream_options.include_use", "include_usage?"),
        (b'{"messages": [], "temperature": 2.5}', "temperature", "<= 2"),
        (b'{"messages": [], "logit_bias": {"5": "x"}}', "logit_bias[]", "Expected `float`"),
    ],
)
def test_a_wrong_chat_names_its_field(data: bytes, param: str, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(data, ChatRequest)
    assert caught.value.param == param
    assert says in caught.value.text
