"""Owns which JSON schemas can be enforced token by token, and brings them into the form that the compiler takes.

Must not know the compiler, tokens or the model.

A keyword is enforced, an annotation, or refused by name; nothing is passed on unread. Where the compiler was found to
take a schema and let through what it forbids, or to lead into a text that cannot be ended, it is refused here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

from appliance.errors import BadRequest

MAX_SOURCE_BYTES = 256 << 10
MAX_NODES = 5000  # subschemas, and values of enum and const
MAX_DEFINITIONS = 256
MAX_PROPERTIES = 512  # of one object; the grammar grows with their square
MAX_PATTERNS = 100
MAX_COUNT = 1_000_000  # of characters, items, properties
MAX_DIVISOR = 10_000  # multipleOf without its decimal point: the automaton has as many states
MAX_NESTING = 40  # the compiler's JSON reader allows 128 levels, a subschema takes two
MAX_DEPTH = 200  # along references: the compiler follows them by recursion
_CONTAINER_NODES = 10  # what an object or array in enum or const costs, in scalar values
_EXACT = 1 << 53  # larger integers are not exact as the 64-bit floats that the compiler calculates with
_MAX_DECIMALS = 15

# Constrain nothing. `discriminator` is OpenAPI's hint which branch of a `oneOf` is meant; the `oneOf` decides.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$comment", "$anchor", "discriminator"}
)
# Known by their form, not their sense: 2023-02-29 is a date. Others are refused, as OpenAI's strict mode does.
FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
_TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_BRANCHES = ("allOf", "anyOf", "oneOf")
# Strings are written without \u escapes (a key could hide behind one): these characters can't be in one.
_UNWRITABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")


class UnsupportedConstraint(BadRequest):
    """The constraint can't be enforced; the message names the keyword or the fault."""


class Enforceable(NamedTuple):
    """A schema that holds enforced keywords alone.

    Attributes:
        schema: references point into `$defs`, whose names are numbers.
        patterns: all regular expressions in it, each with the keyword it stands at.
        references: what the request calls the definitions, in order of their numbers.
    """

    schema: dict[str, Any]
    patterns: dict[str, str]
    references: tuple[str, ...]


def enforceable(source: str) -> Enforceable:
    """Read a JSON schema (draft 2020-12; `definitions` of older ones is known).

    Enforced: `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `patternProperties` (patterns
    disjoint, of each other and of `properties`), `minProperties`, `maxProperties`, `items`, `prefixItems`,
    `minItems`, `maxItems`, `minLength`, `maxLength`, `pattern`, `format`, `minimum`, `maximum`, `exclusiveMinimum`,
    `exclusiveMaximum`, `multipleOf`, `anyOf`, `allOf`, `oneOf` (branches provably disjoint), `$ref` to anywhere in
    the schema, also recursive. Everything else but annotations is refused.

    Raises:
        UnsupportedConstraint: it can't be enforced.
    """
    if len(source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
        refuse(f"the schema is over {MAX_SOURCE_BYTES >> 10} KiB")
    try:
        root = json.loads(source, parse_constant=_no_number)
        return _Reader(root).read()
    except RecursionError:
        refuse("the schema is nested too deeply")
    except ValueError as error:
        refuse(f"the schema is not JSON: {error}")


def refuse(fault: str) -> NoReturn:
    """Raise `UnsupportedConstraint`."""
    raise UnsupportedConstraint(f"The constraint can't be enforced: {fault}.")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class _Reader:
    """Reads one schema, depth first as the compiler does, so that its depth of recursion is known here."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._nodes = 0
        self._numbers: dict[tuple[str, ...], str] = {}  # where a definition is, to its name
        self._references: list[str] = []
        self._definitions: dict[str, Any] = {}
        self._patterns: dict[str, str] = {}
        self._exclusive: dict[str, set[float]] = {"exclusiveMinimum": set(), "exclusiveMaximum": set()}
        self._fractions: set[float] = set()  # bounds that are no integers
        self._divisors: set[tuple[int, int]] = set()  # without their decimal point, and its place
        self._merges = False  # whether keywords of several subschemas may hold for one value
        self._keywords: dict[str, Callable[[str, Any, int, int], Any]] = {
            "type": self._type,
            "enum": self._enum,
            "const": self._const,
            "properties": self._properties,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._schema,
            "required": self._names,
            "items": self._schema,
            "prefixItems": self._schemas,
            "pattern": self._pattern,
            "format": self._format,
            "multipleOf": self._divisor,
            "$ref": self._reference,
            **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), self._count),
            **dict.fromkeys(("minProperties", "maxProperties"), self._count),
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), self._bound),
            **dict.fromkeys(_BRANCHES, self._schemas),
        }

    def read(self) -> Enforceable:
        schema = self._schema("schema", self._root, 0, 0)
        if schema is False:
            refuse("the schema is false, so that no text fits")
        schema = {} if schema is True else schema
        self._check_bounds()
        self._check_ends(schema)
        if self._definitions:
            schema = {**schema, "$defs": self._definitions}
        try:
            json.dumps(schema, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            refuse("a string in the schema holds half a surrogate pair")
        return Enforceable(schema, self._patterns, tuple(self._references))

    def _schema(self, keyword: str, node: Any, depth: int, nesting: int) -> Any:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            refuse(f"{keyword} must be a schema, an object or true or false")
        self._spend(1)
        if depth > MAX_DEPTH or nesting > MAX_NESTING:
            refuse(f"the schema is nested too deeply, at {keyword}")
        result: dict[str, Any] = {}
        for name, value in node.items():
            if name in ANNOTATIONS or name in ("$defs", "definitions") or (name == "$id" and node is self._root):
                continue
            if name == "uniqueItems" and value is False:
                continue
            read = self._keywords.get(name)
            if read is None:
                refuse(f"the keyword {name} is not supported" + (" below the top" if name == "$id" else ""))
            result[name] = read(name, value, depth + 1, nesting + 1)
        if "oneOf" in result:  # the compiler tells branches apart by what they hold, not by what they refer to
            result["oneOf"] = [self._resolved(branch) for branch in result["oneOf"]]
        self._check_object(result)
        return result

    def _spend(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            refuse(f"the schema has more than {MAX_NODES} subschemas and values")

    def _schemas(self, keyword: str, value: Any, depth: int, nesting: int) -> list[Any]:
        if not isinstance(value, list) or not value:
            refuse(f"{keyword} must be a list of schemas, not an empty one")
        return [self._schema(keyword, item, depth, nesting) for item in value]

    def _properties(self, keyword: str, value: Any, depth: int, nesting: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            refuse(f"{keyword} must be an object of schemas")
        if len(value) > MAX_PROPERTIES:
            refuse(f"{keyword} has {len(value)} entries, more than {MAX_PROPERTIES}")
        return {name: self._schema(keyword, item, depth, nesting) for name, item in value.items()}

    def _pattern_properties(self, keyword: str, value: Any, depth: int, nesting: int) -> dict[str, Any]:
        result = self._properties(keyword, value, depth, nesting)
        for pattern in result:
            self._pattern(keyword, pattern, depth, nesting)
        return result

    def _pattern(self, keyword: str, value: Any, depth: int, nesting: int) -> str:
        if not isinstance(value, str):
            refuse(f"{keyword} must be a string")
        self._patterns.setdefault(value, keyword)
        if len(self._patterns) > MAX_PATTERNS:
            refuse(f"{keyword}: more than {MAX_PATTERNS} different patterns")
        return value

    def _type(self, keyword: str, value: Any, depth: int, nesting: int) -> Any:
        types = value if isinstance(value, list) else [value]
        if not types or not all(isinstance(one, str) and one in _TYPES for one in types):
            refuse(f"type must be of {', '.join(sorted(_TYPES))}, not {_short(value)}")
        return value

    def _enum(self, keyword: str, value: Any, depth: int, nesting: int) -> Any:
        if not isinstance(value, list) or not value:
            refuse("enum must be a list of values, not an empty one")
        return [self._const(keyword, item, depth, nesting) for item in value]

    def _const(self, keyword: str, value: Any, depth: int, nesting: int) -> Any:
        self._spend(_CONTAINER_NODES if isinstance(value, list | dict) else 1)
        if nesting > MAX_NESTING:
            refuse(f"{keyword} is nested too deeply")
        if isinstance(value, str) and _UNWRITABLE.search(value):
            refuse(f"{keyword} holds a control character: {_short(value)}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            _exact(keyword, value)
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for child in children:
            self._const(keyword, child, depth + 1, nesting + 1)
        return value

    def _names(self, keyword: str, value: Any, depth: int, nesting: int) -> Any:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            refuse(f"{keyword} must be a list of strings")
        if len(value) > MAX_PROPERTIES:
            refuse(f"{keyword} has {len(value)} entries, more than {MAX_PROPERTIES}")
        return value

    def _count(self, keyword: str, value: Any, depth: int, nesting: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
            refuse(f"{keyword} must be an integer, 0 or more, not {_short(value)}")
        if value > MAX_COUNT:
            refuse(f"{keyword} is over {MAX_COUNT}")
        return int(value)

    def _bound(self, keyword: str, value: Any, depth: int, nesting: int) -> Any:
        _exact(keyword, value)
        if value != int(value):
            self._fractions.add(value)
        elif keyword in self._exclusive:
            self._exclusive[keyword].add(value)
        return value

    def _divisor(self, keyword: str, value: Any, depth: int, nesting: int) -> Any:
        _exact(keyword, value)
        decimals = max(0, -int(Decimal(repr(value)).normalize().as_tuple().exponent))
        self._divisors.add((int(Decimal(repr(value)).scaleb(decimals)), decimals))
        if value <= 0 or max(whole for whole, _ in self._divisors) > MAX_DIVISOR:
            refuse(f"{keyword} must be over 0 and, without its decimal point, at most {MAX_DIVISOR}")
        return value

    def _format(self, keyword: str, value: Any, depth: int, nesting: int) -> Any:
        if not isinstance(value, str) or value not in FORMATS:
            refuse(f"the format {_short(value)} is not supported")
        return value

    def _reference(self, keyword: str, value: Any, depth: int, nesting: int) -> str:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            refuse(f"$ref must point into the schema itself with #/…, not to {_short(value)}")
        steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in unquote(value[1:]).split("/")[1:])
        name = self._numbers.get(steps)
        if name is None:
            name = self._numbers[steps] = str(len(self._numbers))
            self._references.append(value)
            if len(self._numbers) > MAX_DEFINITIONS:
                refuse(f"$ref: more than {MAX_DEFINITIONS} definitions")
            self._definitions[name] = None  # in the order of the numbers
            self._definitions[name] = self._schema("$ref", self._at(value, steps), depth, 0)
        return f"#/$defs/{name}"

    def _at(self, reference: str, steps: Iterable[str]) -> Any:
        node = self._root
        for step in steps:
            if isinstance(node, list) and re.fullmatch("0|[1-9][0-9]{0,6}", step) and int(step) < len(node):
                node = node[int(step)]
            elif isinstance(node, dict) and step in node:
                node = node[step]
            else:
                refuse(f"$ref points to {_short(reference)}, which is not there")
        return node

    def _resolved(self, schema: Any) -> Any:
        for _ in range(MAX_DEFINITIONS):
            if not isinstance(schema, dict) or set(schema) != {"$ref"}:
                return schema
            target = self._definitions[schema["$ref"].rpartition("/")[2]]
            if target is None:  # it is being read: a branch of its own
                return schema
            self._spend(_size(target))
            schema = target
        refuse("$ref leads to itself")

    def _check_object(self, schema: dict[str, Any]) -> None:
        self._merges |= "allOf" in schema or (len(schema) > 1 and not {"$ref", *_BRANCHES}.isdisjoint(schema))
        required = set(schema.get("required", ()))
        if schema.get("minProperties", 0) > len(required) + 1:
            # Names that no schema lists may come twice: a count of them means nothing.
            refuse("minProperties over the number of required properties and one is not supported")
        for pattern in schema.get("patternProperties", ()):
            for name in {*schema.get("properties", ()), *required}:
                if _may_match(pattern, name):
                    refuse(f"patternProperties matches the property {_short(name)}, which is listed besides")

    def _check_bounds(self) -> None:
        """Of 0 < x <= 0.5 the compiler lets 0 through: an exclusive whole bound beside a fraction less than 1 away."""
        for keyword, step in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
            for bound in self._exclusive[keyword]:
                if any(0 < (other - bound) * step < 1 for other in self._fractions):
                    refuse(f"{keyword} {_short(bound)} and another bound less than 1 away are not supported together")

        if self._merges and self._divisors:
            places = max(place for _, place in self._divisors)
            if math.lcm(*(whole * 10 ** (places - place) for whole, place in self._divisors)) > MAX_DIVISOR:
                refuse(f"multipleOf has values whose common multiple is over {MAX_DIVISOR}")

    def _check_ends(self, schema: Any) -> None:
        """Refuse what only an endless text fits, such as an object that must hold one like itself."""
        ending: set[str] = set()
        while True:
            more = {
                name
                for name in reversed(self._definitions)
                if name not in ending and _can_end(self._definitions[name], ending)
            }
            if not more:
                break
            ending |= more
        for name in self._definitions:
            if name not in ending:
                refuse(f"$ref to {self._references[int(name)]} leads to itself without an end")


def _can_end(schema: Any, ending: set[str]) -> bool:
    """Whether some finite text fits, the definitions named in `ending` being known to have one."""
    if isinstance(schema, bool):
        return True  # what nothing fits is the compiler's to refuse
    if "$ref" in schema and schema["$ref"].rpartition("/")[2] not in ending:
        return False
    for keyword, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        if keyword in schema and not enough(_can_end(branch, ending) for branch in schema[keyword]):
            return False
    types = schema.get("type", "null")
    if not set([types] if isinstance(types, str) else types) <= {"object", "array"} or {"enum", "const"} & set(schema):
        return True
    if "object" in types:
        properties, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        if all(_can_end(properties.get(name, other), ending) for name in schema.get("required", ())):
            return True
    if "array" in types:
        first, count = schema.get("prefixItems", []), schema.get("minItems", 0)
        needed = [*first[:count], *([schema.get("items", True)] if count > len(first) else [])]
        return all(_can_end(item, ending) for item in needed)
    return False


def _size(schema: Any) -> int:
    children = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return 1 + sum(map(_size, children))


def _may_match(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True  # of another dialect


def _exact(keyword: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(f"{keyword} must be a number, not {_short(value)}")
    if not abs(value) <= _EXACT or (value and not math.isfinite(1 / value)):
        refuse(f"{keyword}: {_short(value)} is beyond the integers that are exact, {_EXACT}")
    exponent = Decimal(repr(value)).as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > _MAX_DECIMALS:
        refuse(f"{keyword}: {_short(value)} has more than {_MAX_DECIMALS} decimals")


def _short(value: object) -> str:
    text = json.dumps(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "…"
