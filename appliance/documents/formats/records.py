"""Owns how data of named values (JSON, XML) becomes text: small values together, large ones below headings.

Must not know the syntax that the data came in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from appliance.documents.model import Block, clean, one_line
from appliance.sentences import CELL_JOINER

# A text, or names with their values; an item of a list is named by its number, such as "[0]".
Value: TypeAlias = "str | tuple[tuple[str, Value], ...]"
_TOGETHER = 800  # characters of a value that is written in one line
_HEADINGS_MOST = 8  # levels; below, a value's whole path is in its name
_NAMING = frozenset(("title", "name", "id", "key", "label"))
_NAME_LONGEST = 80


def blocks_of(value: Value, name: str = "", level: int = 1) -> Iterator[Block]:
    """The blocks of a value called `name`.

    What is short is one line, `name: value | name: value`, which is never cut; what is longer has a heading, and what
    it holds stands below. Time is linear in the size of the data and its depth.
    """
    if (line := _line(value, "" if name.startswith("[") else name)) is not None:
        if line:
            yield Block("table_row", line)
    elif isinstance(value, str):
        yield from _long(value, name)
    elif not name:
        for child, inner in value:
            yield from blocks_of(inner, child, level)
    elif level > _HEADINGS_MOST:
        for child, inner in value:
            yield from blocks_of(inner, _path(name, child), level)
    else:
        yield Block("heading", _heading(name, value), level=level)
        for child, inner in value:
            yield from blocks_of(inner, child, level + 1)


def _long(text: str, name: str) -> Iterator[Block]:
    if name:
        yield Block("paragraph", f"{name}:")
    for paragraph in clean(text).split("\n\n"):
        if paragraph.strip():
            yield Block("paragraph", paragraph.strip("\n"))


def _line(value: Value, name: str) -> str | None:
    """All of it in one line; None if that would be too long."""
    parts: list[str] = []
    room = _TOGETHER
    for path, text in _leaves(value, name):
        part = f"{path}: {one_line(text[: _TOGETHER + 1])}" if path else one_line(text[: _TOGETHER + 1])
        room -= len(part) + len(CELL_JOINER)
        if room < 0 or len(text) > _TOGETHER:
            return None
        if text.strip():
            parts.append(part)
    return CELL_JOINER.join(parts)


def _leaves(value: Value, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
        return
    for name, inner in value:
        yield from _leaves(inner, _path(path, name))


def _path(outer: str, name: str) -> str:
    if not outer or not name:
        return outer or name
    return f"{outer}{name}" if name.startswith("[") else f"{outer}.{name}"


def _heading(name: str, value: tuple[tuple[str, Value], ...]) -> str:
    for child, inner in value:
        if child.lower() in _NAMING and isinstance(inner, str) and inner.strip() and len(inner) <= _NAME_LONGEST:
            return f"{name}: {one_line(inner)}"
    return name
