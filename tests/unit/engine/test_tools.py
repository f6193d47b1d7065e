"""Owns the proof that tool calls are read as they were written, however their text was cut on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine.protocol import Constraint
from appliance.engine.tools import (
    Call,
    CallPiece,
    CallReader,
    Tool,
    Toolset,
    closed,
    constraint_of,
    instructions,
    read_calling,
    results,
    written,
)
from appliance.errors import BadRequest

# A busy machine is no counterexample.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SEARCH = Tool("search", {"type": "object", "properties": {"q": {"type": "string"}}}, "Finds <b>things</b>")

# Pieces that look like the frame, or like the brackets and quotes of JSON.
TRICKY = st.lists(
    st.sampled_from(["<tool_call>", "</tool_call>", "\n", "<", "<tool", '{"name": ', '"', "\\", "{", "}]", "牛", "a "]),
    max_size=6,
).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TRICKY,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TRICKY, inner, max_size=2),
    max_leaves=4,
)
CALLS = st.lists(
    st.builds(
        Call,
        st.from_regex("[A-Za-z0-9_-]{1,8}", fullmatch=True),
        st.dictionaries(TRICKY, VALUES, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False)),
    ),
    max_size=3,
)
TEXTS = TRICKY.map(lambda text: text.replace("<tool_call>", "<tool_call"))


def read(pieces: Iterable[str]) -> tuple[str, list[Call]]:
    """What a reader gives."""
    reader = CallReader()
    text = ""
    calls: list[Call] = []
    for piece in (found for cut in pieces for found in reader.feed(cut)):
        if isinstance(piece, str):
            assert piece and not calls, "text is text, and comes before calls"
            text += piece
        elif piece.name:
            assert piece == CallPiece(len(calls), piece.name), "a call is named once, in order, without arguments"
            calls.append(Call(piece.name, ""))
        else:
            assert piece.arguments and piece.number == len(calls) - 1
            calls[-1] = Call(calls[-1].name, calls[-1].arguments + piece.arguments)
    assert reader.called == bool(calls)
    return text + reader.finish(), calls


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@UNHURRIED
@given(TEXTS, CALLS, st.lists(st.integers(0, 1000), max_size=8))
def test_however_a_text_is_cut_the_same_is_read(text: str, calls: list[Call], places: list[int]) -> None:
    answer = written(text, calls)
    assert read(cut(answer, places)) == (text, calls)
    assert read(answer) == (text, calls)  # a character at a time


@UNHURRIED
@given(TEXTS, CALLS, st.lists(st.integers(0, 1000), max_size=8), st.integers(0, 1000))
def test_what_ends_early_gives_the_beginning_of_the_same(
    text: str, calls: list[Call], places: list[int], end: int
) -> None:
    answer = written(text, calls)
    answer = answer[: end % (len(answer) + 1)]
    begun, found = read(cut(answer, places))
    assert (begun, found) == read([answer])
    assert text.startswith(begun) or begun.startswith(text)  # of a frame's beginning nobody knows that it is none
    for number, call in enumerate(found):
        assert call.name == calls[number].name and calls[number].arguments.startswith(call.arguments)
        assert number == len(found) - 1 or call == calls[number]


def test_text_is_given_as_soon_as_it_cannot_be_a_call() -> None:
    reader = CallReader()
    assert reader.feed("Let me see <") == ["Let me see "]
    assert reader.feed("tool_c") == []
    assert reader.feed("ase>\n") == ["<tool_case>"]
    assert reader.feed("<tool_call>\n{") == []
    assert reader.feed('"name": "search", "arguments": {"q"') == [
        CallPiece(0, "search"),
        CallPiece(0, arguments='{"q"'),
    ]
    assert reader.feed(': "}"}}\n</tool') == [CallPiece(0, arguments=': "}"}')]
    assert reader.finish() == ""


def test_calls_are_told_as_they_are_made() -> None:
    calls = [Call("a", '{"x": 1}'), Call("b", "")]
    assert written("Well.", calls) == (
        'Well.\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>'
    )


@given(st.lists(TRICKY | st.just("x</tool_response>\n<tool_response>"), min_size=1, max_size=3))
def test_no_result_gets_out_of_its_frame(texts: list[str]) -> None:
    assert results(texts).count("</tool_response>") == len(texts)


def test_tools_are_told_with_what_describes_them() -> None:
    told = instructions([SEARCH, Tool("now")])
    lines = told.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line)["function"] for line in lines] == [
        {"name": "search", "description": "Finds <b>things</b>", "parameters": SEARCH.parameters},
        {"name": "now", "parameters": {}},
    ]


def test_descriptions_make_no_other_constraint() -> None:
    bare = Toolset((Tool(SEARCH.name, SEARCH.parameters),), required=True, most=1)
    constraint = constraint_of(Toolset((SEARCH,), required=True, most=1), None)
    assert constraint == constraint_of(bare, None)
    assert read_calling(constraint.source).toolset == bare
    assert read_calling(constraint_of(bare, Constraint("json_object")).source).answer == '{"type": "object"}'
    with pytest.raises(ValueError, match="regex"):
        constraint_of(bare, Constraint("regex", "x"))


@pytest.mark.parametrize("source", ["", "[]", "{}", '{"toolset": {"tools": []}}', " " * (1 << 19)])
def test_a_source_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(BadRequest, match="tools are"):
        read_calling(source)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": ()},
        {"tools": (SEARCH, SEARCH)},
        {"tools": (SEARCH,), "only": ("open",)},
        {"tools": (SEARCH,), "most": 0},
    ],
)
def test_toolsets_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tools|most"):
        Toolset(**wrong)


OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({}, {"type": "object", "properties": {}, "additionalProperties": False}),
        (OBJECT, {**OBJECT, "additionalProperties": False}),
        ({**OBJECT, "additionalProperties": True}, None),
        ({**OBJECT, "required": ["b"]}, None),
        ({**OBJECT, "anyOf": [{"properties": {"b": {}}}, {}]}, None),
        ({"type": "object"}, None),
    ],
)
def test_arguments_that_are_not_listed_are_not_given(schema: dict[str, Any], kept: dict[str, Any] | None) -> None:
    assert closed(schema) == (schema if kept is None else kept)


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": ["object", "null"]}, {"properties": {}}])
def test_arguments_are_an_object(schema: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="type must be object"):
        closed(schema)
