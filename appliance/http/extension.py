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
    filters: Any = None


def check(extension: Extension, *, grounded: bool) -> None:
    """Refuse what is not supported yet, or not for an answer that is `grounded` in documents.

    Raises:
        BadRequest: names the field.
    """
    if extension.filters is not None:
        raise BadRequest("appliance.filters is not supported yet.", remedy="Leave it out.", param="appliance.filters")
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


def server_timing(timings_ms: Mapping[str, float]) -> str:
    """The `Server-Timing` header: `name;dur=milliseconds` of each stage."""
    return ", ".join(f"{_TOKEN.sub('_', name)};dur={ms:.2f}" for name, ms in timings_ms.items())
