"""Owns the reading of plain text: paragraphs between empty lines.

Must not know other formats.
"""

from __future__ import annotations

import re
from itertools import pairwise

from appliance.documents.decode import decode
from appliance.documents.model import Block, Parsed, clean, is_cjk

_PARAGRAPHS = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")


def parse(data: bytes, stem: str) -> Parsed:
    """Read plain text; the title is the file's name.

    Raises:
        UnreadableDocument: it is not text.
    """
    text, encoding, losses = decode(data)
    blocks = tuple(Block("paragraph", body) for body in paragraphs(clean(text)))
    return Parsed(stem, "text/plain", blocks, encoding=encoding, losses=tuple(losses))


def paragraphs(text: str) -> list[str]:
    """The paragraphs of `text`, lines of them stripped at the end; Chinese line wraps are undone."""
    found = []
    for body in _PARAGRAPHS.split(text.strip("\n")):
        lines = [line.rstrip() for line in body.split("\n")]
        if any(lines):
            found.append(_unwrap(lines))
    return found


def _unwrap(lines: list[str]) -> str:
    # A line break inside a wrapped Chinese text may cut a word; between short lines (a list) it means something.
    width = max(map(len, lines)) * 0.8
    parts = [lines[0]]
    for before, line in pairwise(lines):
        wrapped = len(before) >= width and before and line and is_cjk(before[-1]) and is_cjk(line[0])
        parts.append(line if wrapped and before[-1] not in "。！？；：" else f"\n{line}")
    return "".join(parts).strip("\n")
