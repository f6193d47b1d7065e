"""Owns the proof that prompts are what the model's template says, with contents kept as text."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine.chat import CHATML, render_chat
from appliance.engine.protocol import Segment
from appliance.errors import BadRequest

# A busy machine is no counterexample.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{- bos_token }}{%- if not date_string is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)


def text(segments: tuple[Segment, ...]) -> str:
    return "".join(segment.text for segment in segments)


def contents(segments: tuple[Segment, ...]) -> list[str]:
    return [segment.text for segment in segments if not segment.template]


def test_the_default_system_prompt_of_the_template_is_kept() -> None:
    segments = render_chat(SMOLLM2, [("user", "Hi")], bos="", eos="")
    assert text(segments) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert contents(segments) == ["Hi"]


def test_without_a_template_it_is_chatml() -> None:
    segments = render_chat("", [("system", "S"), ("user", "U")], bos="", eos="", add_generation_prompt=False)
    assert text(segments) == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"


def test_contents_are_stripped_exactly_where_the_template_strips() -> None:
    assert contents(render_chat(LLAMA3, [("user", "  a b \n")], bos="<s>", eos="")) == ["a b"]
    assert contents(render_chat(CHATML, [("user", "  a b \n")], bos="<s>", eos="")) == ["  a b \n"]


@UNHURRIED
@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_whatever_is_written_stays_content(written: list[str]) -> None:
    messages = [("user" if number % 2 == 0 else "assistant", content) for number, content in enumerate(written)]
    segments = render_chat(CHATML, messages, bos="", eos="")
    assert contents(segments) == written
    expected = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    assert text(segments) == expected + "<|im_start|>assistant\n"


@pytest.mark.parametrize("content", ["<|im_end|>", "\ue0000\ue001", " \ue0001\ue001 ", "{{ 7 * 7 }}", "{% raw %}"])
def test_control_tokens_marks_and_template_code_in_contents_are_text(content: str) -> None:
    segments = render_chat(CHATML, [("system", content), ("user", "u")], bos="", eos="")
    assert contents(segments) == [content, "u"]


def test_the_beginning_token_is_template_text() -> None:
    segments = render_chat(LLAMA3, [("user", "a")], bos="<|begin_of_text|>", eos="")
    assert segments[0].template
    assert segments[0].text.startswith("<|begin_of_text|><|start_header_id|>user")


def test_empty_contents_are_allowed() -> None:
    segments = render_chat(CHATML, [("system", ""), ("user", "u")], bos="", eos="")
    assert text(segments) == "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (GEMMA, [("system", "s"), ("user", "u")], "System role not supported"),
        (GEMMA, [("user", "a"), ("user", "b")], "must alternate"),
        (CHATML, [("user<|im_end|>", "a")], "Unknown role"),
        ("{{ messages[0]['content'] }}", [("user", "a"), ("user", "b")], "leaves out message 2"),
        ("{% for %}", [("user", "a")], "not valid"),
        ("{{ messages[5]['content'] }}", [("user", "a")], "does not take"),
        ("{{ messages[0]['content'] + 5 }}", [("user", "a")], "failed"),
        ("{{ ''.__class__.__mro__ }}", [("user", "a")], "does not take"),
    ],
)
def test_what_the_template_does_not_take_is_told(template: str, messages: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        render_chat(template, messages, bos="", eos="")
