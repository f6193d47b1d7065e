"""Owns the reading of Markdown (CommonMark with tables).

Must not know how HTML inside it is read: `formats.html` does that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from appliance.documents.decode import decode
from appliance.documents.formats.html import blocks_of
from appliance.documents.losses import image_skipped
from appliance.documents.model import Block, Kind, Parsed, clean, join_lines, squeeze, table_blocks
from appliance.store.records import Loss

if TYPE_CHECKING:
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(r"\A---[^\S\n]*\n(.{0,20000}?\n)(?:---|\.\.\.)[^\S\n]*(?:\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title:\s*(.+?)\s*$", re.MULTILINE)
_TAG = re.compile(r"<[^>]*>")


def parse(data: bytes, stem: str) -> Parsed:
    """Read Markdown; the title is that of its front matter or its first heading of level 1."""
    from markdown_it import MarkdownIt

    text, encoding, losses = decode(data)
    text = clean(text)
    title = ""
    if front := _FRONT_MATTER.match(text):
        named = _TITLE.search(front.group(1))
        title = named.group(1).strip("\"'") if named else ""
        text = text[front.end() :]
        losses.append(Loss("front_matter_skipped", "the header between --- lines is not searched"))
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    blocks = _Reader(tokens, losses).read()
    if not title:
        title = next((b.text for b in blocks if b.kind == "heading" and b.level == 1), stem)
    return Parsed(title, "text/markdown", tuple(blocks), encoding=encoding, losses=tuple(losses))


class _Reader:
    def __init__(self, tokens: Sequence[Token], losses: list[Loss]) -> None:
        self._tokens = tokens
        self._losses = losses
        self._images = 0

    def read(self) -> list[Block]:
        blocks: list[Block] = []
        rows: list[list[str]] = []
        lists = 0
        first_of_item = False
        opened = ""
        level = 0
        for token in self._tokens:
            kind = token.type
            if kind in ("heading_open", "paragraph_open", "th_open", "td_open"):
                opened, level = kind, int(token.tag[1]) if kind == "heading_open" else 0
            elif kind == "inline":
                text = self._inline(token.children or [])
                if opened in ("th_open", "td_open"):
                    rows[-1].append(text)
                elif opened == "heading_open":
                    blocks.append(Block("heading", " ".join(text.split()), level=level))
                else:
                    is_item: Kind = "list_item" if lists and first_of_item else "paragraph"
                    blocks.append(Block(is_item, text))
                    first_of_item = False
            elif kind in ("bullet_list_open", "ordered_list_open"):
                lists += 1
            elif kind in ("bullet_list_close", "ordered_list_close"):
                lists -= 1
            elif kind == "list_item_open":
                first_of_item = True
            elif kind in ("fence", "code_block"):
                blocks.append(Block("code", token.content.strip("\n")))
            elif kind == "html_block":
                blocks += blocks_of(token.content, self._losses)
            elif kind == "table_open":
                rows = []
            elif kind == "tr_open":
                rows.append([])
            elif kind == "table_close":
                blocks += table_blocks(rows)
        self._losses += image_skipped(self._images)
        return [block for block in blocks if block.text.strip()]

    def _inline(self, children: Sequence[Token]) -> str:
        lines = [""]
        for child in children:
            if child.type == "softbreak":
                lines.append("")
            elif child.type == "hardbreak":
                lines[-1] += "\n"
            elif child.type == "image":
                self._images += 1
                lines[-1] += child.content
            elif child.type == "html_inline":
                lines[-1] += _TAG.sub("", child.content)
            else:
                lines[-1] += child.content
        return squeeze(join_lines(line.strip(" ") for line in lines))
