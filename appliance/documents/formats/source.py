"""Owns the reading of source code: functions and classes as sections, each with its lines' numbers.

Must not know any language's grammar: a definition is a line that looks like one, not indented by more than a class's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.documents.decode import decode
from appliance.documents.model import Block, Parsed, clean

_MODIFIERS = (
    "export default abstract final sealed static public private protected internal async unsafe extern inline partial "
    "virtual override pub const constexpr open data local"
)
_WORDS = "class interface struct enum trait impl fn func function fun def defp defmodule module namespace sub proc type"
_STATEMENTS = "if else for while switch return do try catch with match case new throw await yield"
_NAMED = re.compile(
    rf"(?P<indent>[ \t]*)(?:(?:{'|'.join(_MODIFIERS.split())})(?:\([^)]*\))?\s+)*"
    rf"(?:{'|'.join(_WORDS.split())})\b\s*(?:\([^)]*\)\s*|<[^>]*>\s*)?(?P<name>[A-Za-z_][\w.:$]*)"
    r"(?=\s*(?:[({<:=\[,;!]|$|(?:extends|implements|for|where|is|as|does|do)\b))"
)
# C and its kin: at the margin, a type, a name, an opening bracket, and no semicolon at the end.
_BY_FORM = re.compile(r"(?P<indent>)[A-Za-z_][\w:<>,*&\s]*?[\s*&](?P<name>~?[A-Za-z_][\w:~]*)\s*\([^;]*$")
_NOT_NAMES = frozenset(_STATEMENTS.split())
_LABEL_SPACES = 4  # a definition indented further is inside another one
_LINE_LONGEST = 300  # of a definition
_SECTION_LINES = 120  # of what holds no definition


def parse(data: bytes, stem: str) -> Parsed:
    """Read source code; the title is the file's name.

    Raises:
        UnreadableDocument: it is not text.
    """
    text, encoding, losses = decode(data)
    lines = clean(text).split("\n")
    return Parsed(stem, "text/x-source", tuple(_blocks(lines)), encoding=encoding, losses=tuple(losses))


def _blocks(lines: list[str]) -> Iterator[Block]:
    borders = [(0, "", 1)]
    for number, line in enumerate(lines):
        found = _definition(line)
        if found:
            start = _with_comment(lines, number, borders[-1][0])
            if start == borders[-1][0]:
                borders.pop()
            borders.append((start, *found))
        elif number - borders[-1][0] >= _SECTION_LINES:
            borders.append((number, borders[-1][1], borders[-1][2]))
    for place, (start, name, level) in enumerate(borders):
        end = borders[place + 1][0] if place + 1 < len(borders) else len(lines)
        if not any(line.strip() for line in lines[start:end]):
            continue
        yield Block("heading", f"{name} (lines {start + 1}–{end})".strip(), level=level)
        yield Block("code", "\n".join(lines[start:end]).strip("\n"))


def _definition(line: str) -> tuple[str, int] | None:
    if len(line) > _LINE_LONGEST:
        return None
    found = _NAMED.match(line) or _BY_FORM.match(line)
    if not found or found["name"] in _NOT_NAMES or line.split(None, 1)[0] in _NOT_NAMES:
        return None
    indent = len(found["indent"].expandtabs(_LABEL_SPACES))
    return (found["name"].rstrip(":."), 1 if not indent else 2) if indent <= _LABEL_SPACES else None


def _with_comment(lines: list[str], number: int, floor: int) -> int:
    """Where what belongs to a definition begins: comments, decorators and attributes stand right above it."""
    while number > floor and lines[number - 1].lstrip().startswith(("#", "//", "/*", "*", "@", "--", ";;", "[")):
        number -= 1
    return number
