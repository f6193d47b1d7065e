"""Owns what attributes of documents may be, and filters over them: their shape, their faults, their SQL.

Must not know requests: it is given what was decoded from JSON, and the name of the parameter it stood in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, get_args

import msgspec

from appliance.errors import BadRequest

Value = str | float | bool  # numbers are int or float
Attributes = dict[str, Value]
T = TypeVar("T")
Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
Junction = Literal["and", "or"]

FILE_NAME = "filename"  # every document has it, unless an attribute of that name was given
# OpenAI's limits.
MOST_PAIRS, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
MOST_DEPTH, MOST_VALUES = 8, 1000  # of a filter: levels, and values in all comparisons together

_LARGEST_EXACT = 2**53  # integers beyond are numbers like others: JSON readers do not keep their last digits
_WITH_KEY = "SELECT document_id FROM attributes WHERE collection_id = ? AND key = ?"
_ORDERED = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_SHAPE = (
    'A filter is {"type": "eq", "key": "…", "value": …} (eq, ne, gt, gte, lt, lte, in, nin) '
    'or {"type": "and", "filters": […]} (and, or).'
)


class Comparison(msgspec.Struct, frozen=True):
    """A test of one attribute. `ne` and `nin` also hold for documents without it, the others do not.

    Values of different kinds (text, number, boolean) are never equal, and none is before another.
    """

    type: Operator
    key: str
    value: Value | tuple[Value, ...]  # several for `in` and `nin`, else one


class Compound(msgspec.Struct, frozen=True):
    """Filters that must hold all (`and`) or of which one must (`or`)."""

    type: Junction
    filters: tuple[Filter, ...]


Filter = Comparison | Compound


def check_attributes(given: Any, param: str = "attributes") -> Attributes:
    """`given` as attributes: at most 16, keys up to 64 characters, values text up to 512, numbers or booleans.

    Raises:
        BadRequest: names the key.
    """
    if not isinstance(given, dict):
        raise BadRequest(f"{param} must be an object of keys and values.", param=param)
    if len(given) > MOST_PAIRS:
        raise BadRequest(f"{param} has {len(given)} pairs; at most {MOST_PAIRS} are allowed.", param=param)
    return {_key(key, param): _value(value, f"{param}.{key}") for key, value in given.items()}


def parse_filter(given: Any, param: str = "filters") -> Filter:
    """A filter in OpenAI's shape.

    Raises:
        BadRequest: names the part that is wrong, as in `filters.filters[1].value`.
    """
    parsed = _parse(given, param, 1)
    count = sum(len(one.value) if isinstance(one.value, tuple) else 1 for one in _comparisons(parsed))
    if count > MOST_VALUES:
        raise BadRequest(f"{param} compares with {count} values; at most {MOST_VALUES} are allowed.", param=param)
    return parsed


def matching_documents(wanted: Filter, collection_id: int) -> tuple[str, list[object]]:
    """A query for the ids of the documents of a collection that `wanted` lets through, and its parameters.

    It reads the index of the attributes alone.
    """
    match wanted:
        case Compound():
            parts = [matching_documents(one, collection_id) for one in wanted.filters]
            joiner = " INTERSECT " if wanted.type == "and" else " UNION "
            sql = joiner.join(f"SELECT * FROM ({part})" for part, _ in parts)  # noqa: S608 - constants and "?"
            return sql, [value for _, values in parts for value in values]
        case Comparison("ne" | "nin"):
            opposite = Comparison("eq" if wanted.type == "ne" else "in", wanted.key, wanted.value)
            without, values = matching_documents(opposite, collection_id)
            sql = f"{_WITH_KEY} EXCEPT SELECT * FROM ({without})"  # noqa: S608 - constants and "?"
            return sql, [collection_id, FILE_NAME, *values]
        case Comparison():
            condition, values = _condition(wanted)
            return f"{_WITH_KEY} AND {condition}", [collection_id, wanted.key, *values]


def _condition(one: Comparison) -> tuple[str, list[object]]:
    """Booleans are stored as blobs: numbers, texts and blobs stand in this order in the index and never mix."""
    if isinstance(one.value, tuple):
        return f"value IN ({', '.join('?' * len(one.value))})", [_stored(value) for value in one.value]
    if one.type == "eq":
        return "value = ?", [_stored(one.value)]
    same_kind = "value < ''" if not isinstance(one.value, str) else "value >= '' AND value < x''"
    return f"value {_ORDERED[one.type]} ? AND {same_kind}", [one.value]


def _stored(value: Value) -> object:
    return (b"\x00", b"\x01")[value] if isinstance(value, bool) else value


def _comparisons(parsed: Filter) -> Iterator[Comparison]:
    if isinstance(parsed, Comparison):
        yield parsed
    else:
        for part in parsed.filters:
            yield from _comparisons(part)


def _parse(given: Any, at: str, depth: int) -> Filter:
    if not isinstance(given, dict):
        raise BadRequest(f"{at} must be an object.", remedy=_SHAPE, param=at)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in (*get_args(Operator), *get_args(Junction)):
        shown = msgspec.json.encode(kind).decode()[:40] if "type" in given else "missing"
        raise BadRequest(f"{at}.type is {shown}.", remedy=_SHAPE, param=f"{at}.type")
    fields = {"type", "filters"} if kind in get_args(Junction) else {"type", "key", "value"}
    for name in given:
        if name not in fields:
            raise BadRequest(f"Unknown field {at}.{name}.", remedy=_SHAPE, param=f"{at}.{name}")
    for name in sorted(fields):
        if name not in given:
            raise BadRequest(f"{at}.{name} is missing.", remedy=_SHAPE, param=f"{at}.{name}")
    if kind in get_args(Operator):
        value = _compared(kind, given["value"], f"{at}.value")
        return Comparison(msgspec.convert(kind, Operator), _key(given["key"], f"{at}.key"), value)
    if depth == MOST_DEPTH:
        raise BadRequest(f"{at} is nested too deeply: at most {MOST_DEPTH} levels are allowed.", param=at)
    parts = _several(given["filters"], f"{at}.filters", lambda part, place: _parse(part, place, depth + 1))
    return Compound(msgspec.convert(kind, Junction), parts)


def _compared(kind: str, given: Any, at: str) -> Value | tuple[Value, ...]:
    if kind in ("in", "nin"):
        return _several(given, at, _value)
    value = _value(given, at)
    if kind in _ORDERED and isinstance(value, bool):
        raise BadRequest(f"{at} is a boolean, which {kind} cannot compare.", remedy="Use eq or ne.", param=at)
    return value


def _several(given: Any, at: str, each: Callable[[Any, str], T]) -> tuple[T, ...]:
    if not isinstance(given, list) or not given:
        raise BadRequest(f"{at} must be a list with at least one entry.", param=at)
    return tuple(each(part, f"{at}[{number}]") for number, part in enumerate(given))


def _key(given: Any, at: str) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST_KEY or not _is_text(given):
        raise BadRequest(f"{at}: a key must be a text of 1 to {LONGEST_KEY} characters.", param=at)
    return given


def _value(given: Any, at: str) -> Value:
    if isinstance(given, str):
        if len(given) > LONGEST_VALUE:
            raise BadRequest(f"{at} has {len(given)} characters; at most {LONGEST_VALUE} are allowed.", param=at)
        if not _is_text(given):
            raise BadRequest(f"{at} is not a text that can be stored.", param=at)
        return given
    if isinstance(given, bool):
        return given
    if isinstance(given, int | float):
        number = given if abs(given) <= _LARGEST_EXACT or isinstance(given, float) else _wide(given)
        if math.isfinite(number):
            return number
    raise BadRequest(f"{at} must be a text, a number or a boolean.", param=at)


def _wide(given: int) -> float:
    try:
        return float(given)
    except OverflowError:
        return math.inf


def _is_text(given: str) -> bool:
    # SQLite ends a text at a NUL here and there, and takes no lone surrogate.
    try:
        return b"\x00" not in given.encode()
    except UnicodeEncodeError:
        return False
