"""The campaign of constrained output: that it sees faults, and that its pieces add up."""

from __future__ import annotations

import json

import pytest

from appliance.engine.schema import enforceable
from appliance.engine.tools import Call, Tool, Toolset, written
from build_scripts.bench._lib.conditions import Conditions
from build_scripts.bench.constrained_bench.__main__ import Piece, Results, merged, results_text
from build_scripts.bench.constrained_bench.campaign import Outcome, faults_of, wanted

CONDITIONS = Conditions("2026-01-01", "constrained", "", "a processor", 2, 2, 8, "Linux", "abc", {"llguidance": "1"})
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}


def piece(first: int, end: int, *faults: str) -> Piece:
    return Piece(CONDITIONS, Outcome(first, end, (end - first) // 2, 30 * (end - first), faults))


@pytest.mark.parametrize("text", ["", '{"a": 1', '{"a": 2}', '{"a": 1, "b": 2}', "{}", '{"a": 1} and more'])
def test_what_is_not_the_schemas_is_a_fault(text: str) -> None:
    assert faults_of(SCHEMA, text)


CALL = Call("f", '{"a": 1}')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a text",
        '{"a": 1}',
        written("a text", [CALL]),
        written("", [CALL, CALL]),
        written("", [Call("g", '{"a": 1}')]),
        written("", [Call("f", '{"a": 2}')]),
        written("", [CALL])[:40],
    ],
)
def test_what_is_not_one_call_is_a_fault(text: str) -> None:
    assert faults_of(Toolset((Tool("f", SCHEMA),)), text)


def test_what_is_asked_for_is_none() -> None:
    assert faults_of(SCHEMA, '{"a": 1}') == ""
    assert faults_of(Toolset((Tool("f", SCHEMA),)), written("", [CALL])) == ""


def test_the_same_is_asked_for_each_time_half_of_it_tool_calls_and_all_enforceable() -> None:
    drawn = [wanted(number) for number in range(1000)]
    assert drawn == [wanted(number) for number in range(1000)]
    assert sum(isinstance(asked, Toolset) for asked in drawn) == 500
    assert len({str(asked) for asked in drawn}) > 900
    for asked in drawn:
        schemas = [tool.parameters for tool in asked.tools] if isinstance(asked, Toolset) else [asked]
        for schema in schemas:
            enforceable(json.dumps(schema))


def test_a_piece_takes_the_place_of_those_that_it_repeats() -> None:
    pieces: list[Piece] = []
    for new in (piece(50, 100), piece(0, 50, "bad"), piece(100, 150), piece(0, 50)):
        pieces = merged(pieces, new)
    assert [(p.outcome.first, p.outcome.end, p.outcome.faults) for p in pieces] == [
        (0, 50, ()),
        (50, 100, ()),
        (100, 150, ()),
    ]


def test_the_table_has_every_fault() -> None:
    text = results_text(Results({"pocket, f16": [piece(0, 50), piece(50, 100, "7: it ended by length: ''")]}))
    assert "| pocket, f16     | 100   | 50                 | 3000   | 1       |" in text
    assert "- pocket, f16: 7: it ended by length: ''" in text
    assert text.count("revision abc") == 1
