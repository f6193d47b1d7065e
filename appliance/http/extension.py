"""Owns the `appliance` object of requests, the headers of replies, and how both routes of questions use them.

Must not know either route's own fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from appliance.answer.types import CacheUse, Effort
from appliance.engine.protocol import Constraint, Priority
from appliance.errors import BadRequest
from appliance.store.attributes import Filter, parse_filter
from appliance.store.records import RecallTarget
from appliance.store.rows import check_recall

TopK = Annotated[int, Meta(ge=1, le=50)]
Tokens = Annotated[int, Meta(ge=1, le=1 << 20)]

_TOKEN = re.compile(r"[^A-Za-z0-9_-]")


class Regex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="regex"):
    """The whole answer matches `pattern`."""

    pattern: Annotated[str, Meta(min_length=1)]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="choice"):
    """The answer is one of `choices`."""

    choices: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)]


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What OpenAI's requests have no field for."""

    collection: str | None = None
    top_k: TopK | None = None
    deadline_ms: Annotated[float, Meta(gt=0)] | None = None
    priority: Priority = "interactive"
    effort: Effort = "full"
    cache: CacheUse = "default"
    constraint: Regex | Choice | None = None
    filters: Any = None  # see `store.attributes`
    recall: Any = None  # 0.9, 0.95, 0.99 or "exact"; None: the collection's


def check(extension: Extension, *, grounded: bool) -> None:
    """Refuse what an answer cannot have that is, or is not, `grounded` in documents.

    Raises:
        BadRequest: names the field.
    """
    for name in ("filters", "recall"):
        if not grounded and getattr(extension, name) is not None:
            param = f"appliance.{name}"
            raise BadRequest(f"{param} needs documents.", remedy="Name a collection, or leave it out.", param=param)
    if grounded and extension.constraint is not None:
        raise not_grounded("appliance.constraint")


def not_grounded(param: str) -> BadRequest:
    """The error about a field that an answer from documents cannot have."""
    return BadRequest(
        f"An answer from documents cannot have {param}: it is one text with numbered sources and quotations.",
        remedy="Leave it out, or leave the collection out.",
        param=param,
    )


def constraint_of(extension: Extension) -> Constraint | None:
    """The constraint as the engine takes it."""
    match extension.constraint:
        case Regex():
            return Constraint("regex", extension.constraint.pattern)
        case Choice():
            return Constraint("choice", msgspec.json.encode(extension.constraint.choices).decode())
        case None:
            return None


def filters_of(extension: Extension) -> Filter | None:
    """The filters; raises BadRequest that names what is wrong with them."""
    return None if extension.filters is None else parse_filter(extension.filters, "appliance.filters")


def recall_of(extension: Extension) -> RecallTarget | None:
    """The recall target; raises BadRequest for what is none."""
    return None if extension.recall is None else check_recall(extension.recall, "appliance.recall")


def server_timing(timings_ms: Mapping[str, float]) -> str:
    """The `Server-Timing` header: `name;dur=milliseconds` of each stage."""
    return ", ".join(f"{_TOKEN.sub('_', name)};dur={ms:.2f}" for name, ms in timings_ms.items())
