"""Owns the proof that the real model, always taking its likeliest token, writes what a constraint demands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from appliance.config import EngineSettings
from appliance.engine.grammar import Grammars
from appliance.engine.llama import Llama
from appliance.engine.protocol import Constraint, EngineConfig, Segment
from appliance.packs import ResolvedPack

MOST_TOKENS = 120
QUESTION = (
    "The pump P-101 is driven at 1450 rpm and its casing bolts are tightened to 45 Nm. Describe the pump as JSON."
)
PUMP = {
    "$defs": {"unit": {"enum": ["Nm", "rpm"]}},
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "figures": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "value": {"type": "number", "minimum": 0, "maximum": 5000},
                    "unit": {"$ref": "#/$defs/unit"},
                },
                "required": ["value", "unit"],
                "additionalProperties": False,
            },
            "minItems": 1,
            "maxItems": 2,
        },
        "running": {"type": "boolean"},
    },
    "required": ["name", "figures", "running"],
    "additionalProperties": False,
}
CALL = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "arguments": {
                    "type": "object",
                    "properties": {"query": {"type": "string", "maxLength": 40}},
                    "required": ["query"],
                    "additionalProperties": False,
                },
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name in ("search", "open")
    ]
}


@pytest.fixture(scope="module")
def llama(pocket: ResolvedPack) -> Iterator[Llama]:
    settings = EngineSettings(kv_tokens=512, max_sequences=1, threads=1)
    path = str(pocket.generator.path)
    model = Llama(EngineConfig(model_path=path, model_name="pocket", device="cpu", settings=settings))
    yield model
    model.close()


def written(llama: Llama, constraint: Constraint) -> str:
    """The greedy answer to `QUESTION`; must end before `MOST_TOKENS`."""
    matcher = Grammars(llama).compile(constraint).matcher()
    prompt = Segment(f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n", template=True)
    tokens = llama.tokenize_prompt([prompt])
    llama.remove(0, 0, -1)
    position, data = 0, b""
    for _ in range(MOST_TOKENS):
        llama.batch.clear()
        llama.batch.add(tokens, position, 0, outputs=1)
        assert llama.decode() == 0
        position += len(tokens)
        logits = llama.logits()[-1].copy()
        matcher.mask(logits)
        token = int(logits.argmax())
        matcher.accept(token)
        if llama.is_end(token):
            assert matcher.finished
            return data.decode()
        data += llama.piece(token)
        tokens = [token]
    raise AssertionError(f"no end: {data!r}")


@pytest.mark.parametrize("schema", [PUMP, CALL], ids=["object", "tool call"])
def test_greedy_json_is_valid(schema: dict[str, Any], llama: Llama) -> None:
    answer = json.loads(written(llama, Constraint("json_schema", json.dumps(schema))))
    jsonschema.Draft202012Validator(schema).validate(answer)


def test_a_greedy_choice_is_one_of_them(llama: Llama) -> None:
    choices = ["a pump", "a valve", "no machine"]
    assert written(llama, Constraint("choice", json.dumps(choices))) in choices


def test_a_greedy_text_matches_the_regex(llama: Llama) -> None:
    pattern = r"P-\d{3}: \d{2,4} (rpm|Nm)"
    assert re.fullmatch(pattern, written(llama, Constraint("regex", pattern)))
