"""Owns the reading of one document: finds the format's module, and checks what it made of the document.

Must not know workers or limits. The readers are imported when they are needed.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import PurePath

import msgspec

from appliance.documents.formats.detect import by_content, by_name, why_not
from appliance.documents.losses import bounded, characters_replaced
from appliance.documents.model import Parsed
from appliance.documents.ocr import NoOcr, Ocr
from appliance.errors import UnreadableDocument

_WITH_PICTURES = frozenset(("pdf", "image", "eml", "msg"))  # their readers take the text recognition, too


def parse(name: str, data: bytes, ocr: Ocr = NoOcr()) -> Parsed:  # noqa: B008 - has no state
    """Read a document; `ocr` reads its scanned pages.

    Raises:
        UnreadableDocument: it is empty, damaged, encrypted or of a kind that is not read.
    """
    module = by_name(name)
    if module is None:
        raise UnreadableDocument(why_not(name) or "It is of an unknown kind.")
    if not data.strip(b"\x00 \t\r\n") and len(data) < 1 << 20:
        raise UnreadableDocument("It is empty.")
    module = by_content(module, data)
    reader = import_module(f"{__name__}.{module}")
    stem = PurePath(name).stem
    parsed: Parsed = reader.parse(data, stem, ocr) if module in _WITH_PICTURES else reader.parse(data, stem)
    blocks = tuple(block for block in parsed.blocks if block.text.strip())
    if not blocks:
        raise UnreadableDocument("It holds no text.")
    losses = bounded([*parsed.losses, *characters_replaced(blocks, parsed.losses)])
    return msgspec.structs.replace(parsed, blocks=blocks, losses=losses)
