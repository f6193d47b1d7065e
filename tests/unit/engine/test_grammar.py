"""Owns the proof that a constrained text is what its constraint says, whatever the model would have said.

Texts are drawn by walks that pick any allowed token at each step, over the real vocabulary of the pocket model.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np
import numpy.typing as npt
import pytest

from appliance.config import EngineSettings
from appliance.engine.grammar import Grammars, Matcher, UnsupportedConstraint
from appliance.engine.llama import Llama
from appliance.engine.protocol import Constraint, EngineConfig
from appliance.engine.schema import MAX_NODES, MAX_PROPERTIES
from appliance.engine.tools import Call, CallPiece, CallReader, Tool, Toolset, closed, constraint_of, written
from appliance.packs import ResolvedPack

WALKS = 40  # texts of each schema
END_CHANCE = 0.4  # of the walk where the text may end
CLOSE_CHANCE = 0.3
MOST_TOKENS = 3000
STRING = {"type": "string", "maxLength": 6}
SHORT = {"type": "string", "maxLength": 2}
# These and no others are checked by their sense too; dates are known by their form.
CHECKER = jsonschema.FormatChecker(formats=("email", "ipv4", "ipv6", "uuid"))

SCHEMAS: dict[str, Any] = {
    "object": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/person",
        "title": "Person",
        "type": "object",
        "properties": {"title": {**STRING, "description": "of a person"}, "age": {"type": "integer", "default": 1}},
        "required": ["title", "age"],
        "additionalProperties": False,
    },
    "optional properties": {"type": "object", "properties": {"a": SHORT, "b": SHORT}, "additionalProperties": SHORT},
    "required alone": {"type": "object", "required": ["a"], "additionalProperties": {"type": "boolean"}},
    "enum behind $ref": {
        "$defs": {"colour": {"enum": ["red", "green", 'bl"ue', 7, None, {"x": [1.5]}]}},
        "type": "object",
        "properties": {"c": {"$ref": "#/$defs/colour"}},
        "required": ["c"],
        "additionalProperties": False,
    },
    "$ref into an item": {
        "type": "object",
        "properties": {
            "list": {"type": "array", "prefixItems": [{"type": "integer", "maximum": 9}, SHORT], "items": False},
            "same": {"$ref": "#/properties/list/prefixItems/1"},
        },
        "required": ["list", "same"],
        "additionalProperties": False,
    },
    "several $defs": {
        "definitions": {"a/b": SHORT, "c%d": {"type": "array", "items": {"$ref": "#/definitions/a~1b"}, "maxItems": 2}},
        "type": "array",
        "items": {"anyOf": [{"$ref": "#/definitions/a~1b"}, {"$ref": "#/definitions/c%25d"}]},
        "minItems": 1,
        "maxItems": 3,
    },
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,3}$": {"type": "integer", "minimum": 0}, "^s_": SHORT},
        "additionalProperties": False,
    },
    "recursion": {
        "type": "object",
        "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["v", "next"],
        "additionalProperties": False,
    },
    "anyOf beside properties": {
        "type": "object",
        "properties": {"a": SHORT},
        "required": ["a"],
        "anyOf": [
            {"properties": {"b": {"const": 1}}, "required": ["b"]},
            {"properties": {"c": {"const": True}}, "required": ["c"]},
        ],
        "additionalProperties": {"enum": [1, True]},
    },
    "oneOf of references": {
        "$defs": {
            "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "m": SHORT}, "required": ["kind", "m"]},
            "dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
        },
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}, {"type": "null"}],
        "discriminator": {"propertyName": "kind"},
    },
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": SHORT}, "required": ["a"]},
            {"type": "object", "properties": {"a": {"minLength": 1}, "b": SHORT}, "required": ["b"]},
            {"additionalProperties": SHORT},
        ],
    },
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-\\d{2,3}$"},
    "pattern inside": {"type": "string", "pattern": "a|^b", "maxLength": 5},
    "formats": {
        "type": "array",
        "prefixItems": [{"type": "string", "format": name} for name in ("date", "uuid", "ipv4", "time", "duration")],
        "minItems": 5,
        "items": {"type": "string", "format": "email", "maxLength": 12},
        "maxItems": 6,
    },
    "ipv6": {"type": "string", "format": "ipv6"},
    "integers": {"type": "integer", "minimum": -12, "exclusiveMaximum": 300, "multipleOf": 3},
    "numbers": {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25},
    "parts": {"type": "number", "minimum": -3, "maximum": 3, "multipleOf": 0.25},
    "small numbers": {"type": "number", "minimum": 0.001, "exclusiveMaximum": 0.02},
    "items": {"type": "array", "items": {"type": ["integer", "null"], "minimum": 5}, "minItems": 2, "maxItems": 4},
    "counts": {"type": "object", "additionalProperties": SHORT, "minProperties": 1, "maxProperties": 3},
    "one property": {
        "type": "object",
        "properties": {"a": SHORT, "b": SHORT},
        "minProperties": 1,
        "additionalProperties": False,
    },
    "const": {"const": {"b": [1, "x\n", None, -0.25], "a": {"c": True}}},
    "names to escape": {"type": "object", "properties": {'q"\\\n\t\u4e2d': SHORT}, "additionalProperties": SHORT},
    "not unique": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2, "uniqueItems": False},
}


def inside(reference: str, levels: int) -> dict[str, Any]:
    """A `oneOf` of `reference` and null, in that many arrays in each other."""
    schema: dict[str, Any] = {"oneOf": [{"$ref": reference}, {"type": "null"}]}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED: list[tuple[Any, str]] = [
    *(
        ({"type": "object", "properties": {"a": {key: value}}}, key)
        for key, value in {
            "not": {},
            "if": {},
            "then": {},
            "else": {},
            "contains": {},
            "minContains": 1,
            "uniqueItems": True,
            "propertyNames": {},
            "dependentRequired": {},
            "dependentSchemas": {},
            "dependencies": {},
            "unevaluatedProperties": False,
            "unevaluatedItems": False,
            "additionalItems": False,
            "contentEncoding": "base64",
            "nullable": True,
            "x-guidance": {"whitespace_flexible": True},
            "$dynamicRef": "#x",
            "$id": "inner",
            "typ": "string",
            "format": "unknown",
            "minLength": -1,
            "maxLength": 1.5,
            "maxItems": 10**9,
            "minimum": "1",
            "maximum": 1e300,
            "exclusiveMinimum": True,
            "multipleOf": 1_000_003,
            "pattern": "(?=a)b",
            "enum": [],
            "anyOf": [],
            "prefixItems": [],
            "items": [{}],
            "required": "a",
            "type": "date",
            "$ref": "https://example.org/other",
            "patternProperties": {"[": {}},
            "const": 9007199254740993,
        }.items()
    ),
    ({"type": "integer", "format": "int32"}, "format"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
    ({"$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$ref": "#/$defs/a"}, "oneOf"),
    ({"type": "object", "patternProperties": {"^a": {}, "b$": {}}}, "patternProperties"),
    ({"type": "object", "properties": {"a": {}}, "patternProperties": {"^a$": SHORT}}, "patternProperties"),
    ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "minProperties"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "exclusiveMinimum"),
    ({"type": "number", "minimum": -1.5, "exclusiveMaximum": -1}, "exclusiveMaximum"),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "^\\x01$"}}}, "pattern"),
    ({"enum": ["a\x1b"]}, "enum"),
    ({"$ref": "#/$defs/none"}, "$ref"),
    ({"$ref": "#"}, "$ref"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "$ref"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "$ref"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "$ref"),
    (
        {"$defs": {"a": {"properties": {"c": {"$ref": "#/$defs/a", "minProperties": 1}}}}, "$ref": "#/$defs/a"},
        "defs/a.",
    ),
    (
        {
            "$defs": {name: {"type": "object", "properties": {"c": {"$ref": f"#/$defs/{name}"}}} for name in "ab"},
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        },
        "allOf",
    ),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "'a'"),
    ({"type": "string", "const": 1}, "types"),
    (False, "false"),
    ([], "schema"),
    # Hostile ones: an end, not a hang.
    ({"enum": [str(number) for number in range(MAX_NODES + 1)]}, "values"),
    ({"properties": {str(number): {} for number in range(MAX_PROPERTIES + 1)}}, "properties"),
    ({"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}, "multipleOf"),
    ({"type": "string", "pattern": "(a|b)*a(a|b){20}", "minLength": 500}, "pattern"),
    ({"description": "x" * 300_000}, "KiB"),
    (
        {"allOf": [{"anyOf": [{"required": [f"{a}_{b}"]} for b in range(8)]} for a in range(6)]},
        "too large",
    ),
    (
        {
            "$defs": {f"d{n}": {"oneOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": {}},
            "$ref": "#/$defs/d0",
        },
        "subschemas",
    ),
    (
        {"$defs": {f"d{n}": inside(f"#/$defs/d{n + 1}", 30) for n in range(5)} | {"d5": {}}, "$ref": "#/$defs/d0"},
        "limit",
    ),
    (
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(300)} | {"d300": {}}, "$ref": "#/$defs/d0"},
        "deep",
    ),
]


@pytest.fixture(scope="module")
def llama(pocket: ResolvedPack) -> Iterator[Llama]:
    settings = EngineSettings(kv_tokens=256, max_sequences=1, threads=1)
    path = str(pocket.generator.path)
    model = Llama(EngineConfig(model_path=path, model_name="pocket", device="cpu", settings=settings))
    yield model
    model.close()


@pytest.fixture(scope="module")
def walker(llama: Llama) -> Walker:
    return Walker.of(llama)


@pytest.fixture(scope="module")
def grammars(llama: Llama) -> Grammars:
    return Grammars(llama)


def of_schema(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


def allowed(matcher: Matcher, llama: Llama) -> npt.NDArray[np.bool_]:
    """Of each token, whether it is."""
    logits = np.zeros(llama.n_vocab, np.float32)
    matcher.mask(logits)
    flags: npt.NDArray[np.bool_] = logits == 0.0
    assert (flags | (logits == -np.inf)).all()
    return flags


def tokens_of(flags: npt.NDArray[np.bool_]) -> list[int]:
    return [int(token) for token in np.flatnonzero(flags)]


@dataclass(frozen=True)
class Walker:
    """Makes texts of allowed tokens, any of them. What it asserts at each step holds in all texts."""

    llama: Llama
    ends: npt.NDArray[np.int64]
    closers: npt.NDArray[np.int64]  # tokens that end a string or more; chosen often, or strings would be without end

    @classmethod
    def of(cls, llama: Llama) -> Walker:
        tokens = range(llama.n_vocab)
        closers = [token for token in tokens if llama.piece(token)[:1] in (b'"', b"]", b"}")]
        return cls(llama, np.array([token for token in tokens if llama.is_end(token)]), np.array(closers))

    def walk(self, matcher: Matcher, rng: random.Random) -> str:
        data = b""
        for _ in range(MOST_TOKENS):
            forced = matcher.forced(3)
            flags = allowed(matcher, self.llama)
            if forced:
                assert tokens_of(flags) == forced[:1]
            may_end = bool(flags[self.ends].any())
            assert flags[self.ends].all() or not may_end
            flags[self.ends] = False
            free = np.flatnonzero(flags)
            assert matcher.finished == (may_end and not len(free))
            if may_end and (matcher.finished or rng.random() < END_CHANCE):
                matcher.accept(int(rng.choice(self.ends)))
                assert matcher.finished
                return data.decode()
            closing = self.closers[flags[self.closers]]
            if len(closing) and rng.random() < CLOSE_CHANCE:
                free = closing
            token = int(free[rng.randrange(len(free))])
            assert self.llama.piece(token)  # no control token
            matcher.accept(token)
            data += self.llama.piece(token)
        raise AssertionError(f"no end after {MOST_TOKENS} tokens: {data[:200]!r}")


def spells(matcher: Matcher, llama: Llama, text: str) -> bool:
    """Whether the constraint allows `text`, in the model's own tokens."""
    try:
        for token in llama.tokenize(text, special=False):
            matcher.accept(token)
    except ArithmeticError:
        return False
    return any(map(llama.is_end, tokens_of(allowed(matcher, llama))))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_text_parses_and_is_valid(name: str, grammars: Grammars, walker: Walker) -> None:
    rng = random.Random(name)
    validator = jsonschema.Draft202012Validator(SCHEMAS[name], format_checker=CHECKER)
    texts = [walker.walk(grammars.compile(of_schema(SCHEMAS[name])).matcher(), rng) for _ in range(WALKS)]
    for text in texts:
        validator.validate(json.loads(text))
        outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
        assert not re.search(r"\s{2}|[^,:]\s|[\n\t]", outside), text
    assert len(set(texts)) > 1 or name == "const"


@pytest.mark.parametrize(("schema", "named"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_enforced_is_refused_by_name(schema: Any, named: str, grammars: Grammars) -> None:
    with pytest.raises(UnsupportedConstraint) as caught:
        grammars.compile(of_schema(schema))
    assert named in caught.value.message


@pytest.mark.parametrize(
    "source", ["", "{", "NaN", '{"const": Infinity}', "[" * 100_000, '{"const": "\\ud800"}', '{"a\ud800": 1}']
)
def test_a_schema_that_is_none_is_refused(source: str, grammars: Grammars) -> None:
    with pytest.raises(UnsupportedConstraint):
        grammars.compile(Constraint("json_schema", source))


def test_bounds_are_kept_on_every_side(grammars: Grammars, llama: Llama) -> None:
    bounds = [-1.5, -1, -0.25, 0, 0.5, 1, 1.25, 2, 10]
    texts = sorted({spelled for bound in bounds for spelled in (f"{bound:.2f}", f"{bound:.0f}", f"{bound:.3f}1")})
    tokens = {text: llama.tokenize(text, special=False) for text in texts}
    taken = 0
    for low, high, below, above in itertools.product(
        bounds, bounds, ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
    ):
        if low > high:
            continue
        schema = {"type": "number", below: low, above: high}
        try:
            grammars.compile(of_schema(schema)).matcher()
        except UnsupportedConstraint:
            continue
        taken += 1
        validator = jsonschema.Draft202012Validator(schema)
        for text in tokens:
            if not validator.is_valid(json.loads(text)):
                assert not spells(grammars.compile(of_schema(schema)).matcher(), llama, text), (schema, text)
    assert taken > 100


def test_a_key_cannot_hide_behind_an_escape(grammars: Grammars, llama: Llama) -> None:
    constraint = of_schema({"type": "object", "properties": {"a": {"type": "string"}}})
    assert spells(grammars.compile(constraint).matcher(), llama, '{"a": "x", "b": 1}')
    for text in ('{"\\u0061": 1}', '{"b": 1, "a": 1}', '{"a": "x", "a": 1}', '{"a":"x"}', '{"a": "x" }'):
        assert not spells(grammars.compile(constraint).matcher(), llama, text)


def test_a_json_object_is_any_object(grammars: Grammars, llama: Llama) -> None:
    constraint = Constraint("json_object")
    for text in ("{}", '{"a": [1, {"b": null}], "c": "\u4e2d"}'):
        assert spells(grammars.compile(constraint).matcher(), llama, text)
    for text in ("[]", "1", '"a"', "{", "{ }", "{\n}", " {}", "{} "):
        assert not spells(grammars.compile(constraint).matcher(), llama, text)


CHOICES = ["a", "ab", "a.b*", "x y\nz", '\u00e9"\\', "<|im_end|>", "/+-&~#@^$(){}[]|?!%='`:;,", "\x01\x7f", "\u4e2d"]


def test_a_choice_is_one_of_the_strings(grammars: Grammars, llama: Llama, walker: Walker) -> None:
    constraint = Constraint("choice", json.dumps(CHOICES))
    for text in CHOICES:
        assert spells(grammars.compile(constraint).matcher(), llama, text)
    for text in ("", "abc", "b", "aab", "axb", "x y", "a|ab"):
        assert not spells(grammars.compile(constraint).matcher(), llama, text)
    rng = random.Random(1)
    assert {walker.walk(grammars.compile(constraint).matcher(), rng) for _ in range(300)} == set(CHOICES)


def test_the_empty_choice_ends_at_once(grammars: Grammars, walker: Walker) -> None:
    matcher = grammars.compile(Constraint("choice", '[""]')).matcher()
    assert matcher.finished
    assert walker.walk(matcher, random.Random(1)) == ""


@pytest.mark.parametrize("pattern", ["a|ab", "^[a-c]{2,5}$", "(yes|no), \\d{1,3}%", "[\u4e00-\u9fff]{1,4}", "(?i)ok/?"])
def test_a_regex_holds_for_the_whole_text(pattern: str, grammars: Grammars, walker: Walker) -> None:
    rng = random.Random(pattern)
    for _ in range(20):
        text = walker.walk(grammars.compile(Constraint("regex", pattern)).matcher(), rng)
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        (Constraint("regex", "[a-z"), "regex"),
        (Constraint("regex", "\\bfoo"), "regex"),
        (Constraint("regex", "(a)\\1"), "regex"),
        (Constraint("regex", "[^\\s\\S]"), "regex"),
        (Constraint("regex", "a" * 20_000), "regex"),
        (Constraint("regex", "\ud800"), "regex"),
        (Constraint("choice", "[]"), "choice"),
        (Constraint("choice", "[1]"), "choice"),
        (Constraint("choice", '"a"'), "choice"),
        (Constraint("choice", '["\\ud800"]'), "choice"),
    ],
)
def test_a_regex_or_choice_that_cannot_be_is_refused(constraint: Constraint, named: str, grammars: Grammars) -> None:
    with pytest.raises(UnsupportedConstraint, match=named):
        grammars.compile(constraint)


TOOLS = (
    Tool("search", {"type": "object", "properties": {"q": SHORT}, "required": ["q"]}),
    Tool("search_all", {"$defs": {"s": SHORT}, "type": "object", "additionalProperties": {"$ref": "#/$defs/s"}}),
    Tool("now"),
)
ANSWER = Constraint("json_schema", '{"enum": ["yes", {"no": "<tool_call>"}]}')


def calls_in(text: str) -> list[Call]:
    """The calls that a text is, and nothing else."""
    reader = CallReader()
    pieces = [piece for piece in [*reader.feed(text), reader.finish()] if piece]
    assert all(isinstance(piece, CallPiece) for piece in pieces)
    found = [piece for piece in pieces if isinstance(piece, CallPiece)]
    calls = [Call(one.name, "".join(p.arguments for p in found if p.number == one.number)) for one in found if one.name]
    assert written("", calls) == text
    return calls


@pytest.mark.parametrize("answer", [None, ANSWER], ids=["text", "json"])
@pytest.mark.parametrize(
    "changes",
    [{"required": True}, {"required": True, "most": 1}, {"only": ("search", "now"), "required": True}, {}],
    ids=["required", "one", "some", "auto"],
)
def test_every_answer_is_calls_or_what_stands_beside_them(
    changes: dict[str, Any], answer: Constraint | None, grammars: Grammars, walker: Walker
) -> None:
    toolset = Toolset(TOOLS, **changes)
    grammar = grammars.compile(constraint_of(toolset, answer))
    schemas = {tool.name: closed(tool.parameters) for tool in TOOLS}
    rng = random.Random(str((changes, answer)))
    for _ in range(10):
        text = walker.walk(grammar.matcher(), rng)
        if not toolset.required and not text.startswith("<tool_call>"):
            assert answer is None or json.loads(text) in json.loads(answer.source)["enum"]
            continue
        calls = calls_in(text)
        assert 1 <= len(calls) <= toolset.most
        for call in calls:
            assert call.name in (toolset.only or schemas)
            jsonschema.Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))


def test_a_text_may_come_before_calls_but_holds_none(grammars: Grammars, llama: Llama) -> None:
    auto, required = (grammars.compile(constraint_of(Toolset(TOOLS, required=r), None)) for r in (False, True))
    beside = grammars.compile(constraint_of(Toolset(TOOLS), ANSWER))
    call, now = Call("search", '{"q": "a"}'), Call("now", "{}")
    for text, *allowed_by in [
        ("", True, False, False),
        ("Some <tool> text,\n\n<tool_call", True, False, False),
        ("牛\n<tool_call>", False, False, False),
        ("<tool_call>\nsearch\n</tool_call>", False, False, False),
        (written("", [call]), True, True, True),
        (written("Well:", [call, now]), True, False, False),
        (written("", [now] * 8), True, True, True),
        (written("", [now] * 9), False, False, False),
        (written("", [call]) + "\nWell.", False, False, False),
        (written("", [Call("search", "{}")]), False, False, False),
        (written("", [Call("search", '{"q": "a", "r": 1}')]), False, False, False),
        (written("", [Call("find", "{}")]), False, False, False),
        ('"yes"', True, False, True),
        ('{"no": "<tool_call>"}', False, False, True),
    ]:
        found = [spells(grammar.matcher(), llama, text) for grammar in (auto, required, beside)]
        assert found == allowed_by, text


def test_the_tool_at_fault_is_named(grammars: Grammars) -> None:
    wrong: dict[str, Any] = {"type": "object", "properties": {"a": {"not": {}}}}
    for parameters, fault in [
        (wrong, "keyword not"),
        ({"type": "array"}, "object"),
        ({"type": "object", "enum": [1]}, ""),
    ]:
        toolset = Toolset((*TOOLS, Tool("open", parameters)), only=("now",))
        with pytest.raises(UnsupportedConstraint, match=f"The tool open: .*{fault}") as caught:
            grammars.compile(constraint_of(toolset, None))
        assert caught.value.param == "tools[3].function.parameters"
    with pytest.raises(UnsupportedConstraint, match="keyword not") as caught:
        grammars.compile(constraint_of(Toolset(TOOLS), Constraint("json_schema", '{"not": {}}')))
    assert caught.value.param == "response_format"
    with pytest.raises(UnsupportedConstraint, match="tools are"):
        grammars.compile(Constraint("tools", "[]"))


def test_a_token_that_is_not_allowed_changes_nothing(grammars: Grammars, llama: Llama) -> None:
    matcher = grammars.compile(of_schema({"enum": ["aa", "ab"]})).matcher()
    end = next(token for token in range(llama.n_vocab) if llama.is_end(token))
    before = tokens_of(allowed(matcher, llama))
    for token in (-1, llama.n_vocab, end, *llama.tokenize("zz", special=False)):
        with pytest.raises(ArithmeticError):
            matcher.accept(token)
    assert tokens_of(allowed(matcher, llama)) == before
    assert spells(matcher, llama, '"ab"')
    matcher.accept(end)
    with pytest.raises(ArithmeticError):
        matcher.accept(before[0])


def test_forced_tokens_are_a_look_ahead(grammars: Grammars, llama: Llama) -> None:
    schema = {"type": "object", "properties": {"first name": STRING}, "required": ["first name"]}
    matcher = grammars.compile(of_schema(schema)).matcher()
    forced = matcher.forced(100)
    assert b"".join(map(llama.piece, forced)).startswith(b'{"first name":')
    assert (matcher.forced(2), matcher.forced(0), matcher.forced(100)) == (forced[:2], [], forced)
    for token in forced:
        assert tokens_of(allowed(matcher, llama)) == [token]
        matcher.accept(token)
    assert len(tokens_of(allowed(matcher, llama))) > 1


def test_texts_under_one_constraint_do_not_meet(grammars: Grammars, llama: Llama) -> None:
    constraint = of_schema({"enum": ["first one", "second one"]})
    one, other = grammars.compile(constraint).matcher(), grammars.compile(constraint).matcher()
    assert spells(one, llama, '"first one"')
    assert spells(other, llama, '"second one"')


def test_threads_compile_at_once(llama: Llama) -> None:
    grammars = Grammars(llama)  # its table of tokens is not made yet
    patterns = [f"text {number}" for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda pattern: grammars.compile(Constraint("regex", pattern)), patterns))
    for grammar, pattern in zip(made, patterns, strict=True):
        assert spells(grammar.matcher(), llama, pattern)


def test_a_grammar_is_worn_after_so_many_texts(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.engine.grammar.MAX_USES", 2)
    grammar = grammars.compile(Constraint("regex", "a"))
    worn = []
    for _ in range(3):
        worn.append(grammar.worn)
        grammar.matcher()
    assert worn == [False, False, True]
