"""Owns the form between reading a document and cutting it: blocks in reading order, and what was lost.

Must not know file formats or embedders.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal

import msgspec

from appliance.sentences import CELL_JOINER
from appliance.store.records import Loss

Kind = Literal["heading", "paragraph", "list_item", "table_row", "code"]


class Block(msgspec.Struct, frozen=True):
    """A piece of a document that its author set apart."""

    kind: Kind
    text: str
    level: int = 0  # of a heading, from 1
    page: int | None = None  # from 1
    header: str = ""  # of a table row: the table's first row, "" for that row itself
    joined: bool = False  # goes on where the block before it stopped (a paragraph over a page break)


class Parsed(msgspec.Struct, frozen=True):
    """A document as read."""

    title: str
    media_type: str
    blocks: tuple[Block, ...]
    encoding: str | None = None
    pages: int | None = None
    losses: tuple[Loss, ...] = ()


# Some fonts name ligatures by private code points; these two are Adobe's.
_PRIVATE = {0xF001: "fi", 0xF002: "fl"}
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u00ad\u200b\u2060\ufeff\ufffe\uffff]")
_SURROGATES = re.compile("[\ud800-\udfff]")
# Presentation forms of Latin ligatures, and radicals that stand for the character itself.
_COMPATIBLE = re.compile("[\ufb00-\ufb06\u2e80-\u2fdf]")
_SPACES = re.compile(r"[^\S\n]+")
_CJK = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003ffff]")
REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """`text` as it may be stored and shown: no control or invisible characters, ligatures written out."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_PRIVATE)
    text = _SURROGATES.sub(REPLACEMENT, _CONTROLS.sub("", text))
    return _COMPATIBLE.sub(lambda found: unicodedata.normalize("NFKC", found.group()), text)


def one_line(text: str) -> str:
    """`text` cleaned, with runs of white space as one space."""
    return " ".join(clean(text).split())


def squeeze(text: str) -> str:
    """`text` with runs of spaces as one space; line breaks stay."""
    return "\n".join(line.strip() for line in _SPACES.sub(" ", text).split("\n")).strip("\n")


def is_cjk(character: str) -> bool:
    """Whether a character is written without spaces around it (Chinese, kana, full-width forms)."""
    return bool(_CJK.match(character))


def join_lines(lines: Iterable[str]) -> str:
    """Lines of one paragraph as one line: a space between them, none between two CJK characters."""
    text = ""
    for line in lines:
        if text and line:
            text += "" if is_cjk(text[-1]) and is_cjk(line[0]) else " "
        text += line
    return text


def table_row(cells: Iterable[str]) -> str:
    """A row's text: cells apart, empty ones at its end left out."""
    # A word may be broken over lines inside a cell; in Chinese that leaves no space.
    texts = [join_lines(one_line(line) for line in cell.split("\n")) for cell in cells]
    while texts and not texts[-1]:
        texts.pop()
    return CELL_JOINER.join(texts)


def table_blocks(rows: Iterable[Iterable[str]], page: int | None = None) -> list[Block]:
    """Rows of one table; each but the first names the first as its header."""
    blocks: list[Block] = []
    for cells in rows:
        text = table_row(cells)
        if text.strip(" |"):
            blocks.append(Block("table_row", text, page=page, header=blocks[0].text if blocks else ""))
    return blocks
