"""Owns the reading of JSON and of JSON lines: each record a unit, its values with their paths.

Must not know how records are laid out: `formats.records` does that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from appliance.documents.decode import decode
from appliance.documents.formats.records import Value, blocks_of
from appliance.documents.formats.text import paragraphs
from appliance.documents.model import Block, Parsed, clean, one_line
from appliance.store.records import Loss


def parse(data: bytes, stem: str) -> Parsed:
    """Read JSON, or one JSON value a line; what is neither is read as text, and that is told.

    Raises:
        UnreadableDocument: it is not text.
    """
    text, encoding, losses = decode(data)
    media_type = "application/json"
    blocks: list[Block]
    try:
        blocks = list(blocks_of(_loads(text)))
    except json.JSONDecodeError:
        media_type = "application/jsonl"
        blocks = list(_of_lines(text, losses))
        if not any(block.kind == "table_row" for block in blocks):
            media_type = "text/plain"
            losses[:] = [loss for loss in losses if loss.kind != "record_unreadable"]
            losses.append(Loss("record_unreadable", "the file is not valid JSON; it is read as plain text"))
            blocks = [Block("paragraph", body) for body in paragraphs(clean(text))]
    return Parsed(stem, media_type, tuple(blocks), encoding=encoding, losses=tuple(losses))


def _of_lines(text: str, losses: list[Loss]) -> Iterator[Block]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = _loads(line)
        except json.JSONDecodeError:
            losses.append(Loss("record_unreadable", f"line {number} is not valid JSON; it is read as plain text"))
            yield Block("paragraph", one_line(line))
        else:
            long = blocks_of(value, f"record {number}")
            short = list(blocks_of(value))
            yield from short if len(short) == 1 and short[0].kind == "table_row" else long


def _loads(text: str) -> Value:
    # Numbers stay as they are written: a part number with 5,000 digits or a trailing zero, too.
    return _value(json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=tuple, strict=False))


def _value(found: Any) -> Value:
    if isinstance(found, tuple):
        return tuple((one_line(name), _value(inner)) for name, inner in found)
    if isinstance(found, list):
        return tuple((f"[{place}]", _value(inner)) for place, inner in enumerate(found))
    if isinstance(found, str):
        return found
    return {None: "", True: "true", False: "false"}.get(found, str(found))
