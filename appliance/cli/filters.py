"""Owns how attributes and filters are written on a command line.

Must not know what they are matched with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from appliance.cli.given import TEXT
from appliance.store.attributes import Attributes, Filter, check_attributes, parse_filter
from appliance.store.records import RECALL_TARGETS, RecallTarget

_COMPARED = re.compile(r"(?P<key>[^=!<>]+)(?P<sign>!=|>=|<=|=|>|<)(?P<value>.*)", re.DOTALL)
_SIGNS = {"=": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}

filter_option = click.option(
    "--filter",
    "filters",
    type=TEXT,
    multiple=True,
    metavar="FILTER",
    help="Only documents with this attribute: year>=2020, lang=de, or a filter in JSON. All that are given must hold.",
)
recall_option = click.option(
    "--recall",
    type=click.Choice([str(target) for target in RECALL_TARGETS]),
    help="Share of the nearest passages that must be found.",
)


def filter_of(given: Sequence[str]) -> Filter | None:
    """What all of `given` say together; raises BadRequest or click.BadParameter."""
    parts = [_one(text) for text in given]
    if not parts:
        return None
    return parse_filter(parts[0] if len(parts) == 1 else {"type": "and", "filters": parts}, "--filter")


def attributes_of(given: Sequence[str]) -> Attributes | None:
    """`KEY=VALUE` of each; None when there is none. Raises BadRequest or click.BadParameter."""
    pairs: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE.", param_hint="--attribute")
        pairs[key.strip()] = _value(value.strip())
    return check_attributes(pairs, "--attribute") if pairs else None


def target_of(given: str | None) -> RecallTarget | None:
    """The recall target that an option names."""
    return next((target for target in RECALL_TARGETS if str(target) == given), None)


def _one(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"it is no JSON: {error}", param_hint="--filter") from error
    found = _COMPARED.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE, KEY>=VALUE or JSON.", param_hint="--filter")
    return {"type": _SIGNS[found["sign"]], "key": found["key"].strip(), "value": _value(found["value"].strip())}


def _value(text: str) -> Any:
    """A number, true, false or a "text" in quotes as JSON has them; everything else is the text itself."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, str | int | float) else text
