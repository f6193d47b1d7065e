"""Owns the reading of HTML: what a reader of the page sees, without navigation and scripts.

Must not know where the page came from; it fetches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from appliance.documents.decode import decode_labelled
from appliance.documents.losses import image_skipped
from appliance.documents.model import Block, Kind, Parsed, clean, is_cjk, one_line, squeeze, table_blocks
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

if TYPE_CHECKING:
    from lxml.etree import _Element

_DECLARED = re.compile(rb"""<(?:meta[^>]+charset|\?xml[^>]+encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]+)""", re.IGNORECASE)
_PROLOGUE = re.compile(
    r"^\s*(?:<\?xml[^>]*\?>)?(?:\s*<!DOCTYPE[^\[>]{0,1000}\[.*?\]\s{0,20}>)?", re.IGNORECASE | re.DOTALL
)
_SPACES = re.compile(r"\s+")
_SKIPPED_NAMES = "script style template noscript svg math head iframe object embed canvas audio video select button"
_BLOCK_NAMES = (
    "address article aside blockquote body center dd details dialog div dl dt fieldset figcaption figure footer "
    "form header hr html li main ol p section summary ul td th tr tbody thead tfoot caption"
)
_SKIPPED = frozenset(_SKIPPED_NAMES.split())
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_HEADINGS = {f"h{level}": level for level in range(1, 7)}


def parse(data: bytes, stem: str) -> Parsed:
    """Read HTML; the title is that of its head.

    Raises:
        UnreadableDocument: it is not text.
    """
    text, encoding, losses = text_of(data)
    root = _tree(text)
    title = "" if root is None else one_line(str(root.xpath("string(//head/title)")))
    blocks = blocks_of(text, losses)
    if not title:
        title = next((block.text for block in blocks if block.kind == "heading"), stem)
    return Parsed(title, "text/html", tuple(blocks), encoding=encoding, losses=tuple(losses))


def text_of(data: bytes, label: str = "") -> tuple[str, str, list[Loss]]:
    """The text of a page, its encoding and the losses; `label` is the encoding that is named outside of it.

    Raises:
        UnreadableDocument: it is not text.
    """
    declared = _DECLARED.search(data[:4096])
    return decode_labelled(data, label or (declared.group(1).decode("ascii") if declared else ""))


def blocks_of(text: str, losses: list[Loss]) -> list[Block]:
    """The blocks of a page or of a piece of HTML; what is skipped is added to `losses`."""
    root = _tree(text)
    if root is None:
        return []
    reader = _Reader()
    reader.walk(root)
    reader.end_block()
    if reader.navigation:
        losses.append(Loss("navigation_skipped", f"{reader.navigation} navigation menus"))
    if reader.nested:
        losses.append(Loss("table_flattened", f"{reader.nested} tables that hold other tables"))
    losses += image_skipped(reader.images)
    return reader.blocks


def _tree(text: str) -> _Element | None:
    from lxml import etree, html

    # lxml refuses a str with an encoding declaration, and NUL; declarations inside a document type are text to it.
    text = _PROLOGUE.sub("", clean(text), count=1)
    if not text.strip():
        return None
    parser = html.HTMLParser(no_network=True, remove_comments=True, remove_pis=True)
    try:
        root: _Element | None = html.document_fromstring(text, parser=parser)
    except etree.LxmlError as error:
        raise UnreadableDocument(f"It is not HTML: {error}.") from error
    return root


class _Reader:
    """Collects blocks; inline text gathers in `_text` until the block around it ends."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.navigation = 0
        self.images = 0
        self.nested = 0
        self._text: list[str] = []
        self._kind: Kind = "paragraph"

    def walk(self, element: _Element) -> None:
        """Read an element with its children; its tail belongs to the parent."""
        tag = element.tag
        if tag in _SKIPPED:
            return
        if tag == "nav" or element.get("role") == "navigation":
            self.navigation += 1
        elif tag in _HEADINGS:
            self.end_block()
            if text := one_line(str(element.xpath("string()"))):
                self.blocks.append(Block("heading", text, level=_HEADINGS[tag]))
        elif tag == "pre":
            self.end_block()
            if text := str(element.xpath("string()")).strip("\n"):
                self.blocks.append(Block("code", text))
        elif tag == "table" and not element.xpath(".//table"):
            self.end_block()
            for caption in element.iterfind("caption"):
                self._children(caption)
                self.end_block()
            self.blocks += table_blocks(self._rows(element))
        elif tag == "br":
            self._text.append("\n")
        elif tag == "img":
            self.images += 1
            self._text.append(f" {element.get('alt') or ''} ")
        elif tag in _BLOCKS or tag == "table":
            self.end_block()
            self.nested += tag == "table"
            before = self._kind
            self._kind = "list_item" if tag in ("li", "dd", "dt") else "paragraph"
            self._children(element)
            self.end_block()
            self._kind = before
        else:
            self._children(element)

    def end_block(self) -> None:
        """Make a block of the inline text gathered so far."""
        if text := squeeze("".join(self._text)):
            self.blocks.append(Block(self._kind, text))
            self._kind = "paragraph"
        self._text.clear()

    def _children(self, element: _Element) -> None:
        self._add(element.text)
        for child in element:
            self.walk(child)
            self._add(child.tail)

    def _add(self, text: str | None) -> None:
        if text:
            self._text.append(_SPACES.sub(_space, text))

    def _rows(self, table: _Element) -> Iterator[list[str]]:
        spanning: dict[int, tuple[int, str]] = {}  # by column: rows that are left, text
        for row in table.iter("tr"):
            texts: list[str] = []
            cells = [cell for cell in row if cell.tag in ("td", "th")]
            while cells or len(texts) in spanning:
                column = len(texts)
                left, text = spanning.pop(column, (0, ""))
                if not left:
                    cell = cells.pop(0)
                    left, text = _span(cell), self._cell(cell)
                if left > 1:
                    spanning[column] = (left - 1, text)
                texts.append(text)
            yield texts

    def _cell(self, cell: _Element) -> str:
        inner = _Reader()
        inner._children(cell)
        inner.end_block()
        self.images += inner.images
        return " ".join(block.text for block in inner.blocks)


def _space(found: re.Match[str]) -> str:
    """What white space of the source is on the page: nothing, where it wraps Chinese text."""
    text, start, end = found.string, found.start(), found.end()
    wrap = "\n" in found.group() and start > 0 and end < len(text)
    return "" if wrap and is_cjk(text[start - 1]) and is_cjk(text[end]) else " "


def _span(cell: _Element) -> int:
    text = cell.get("rowspan") or "1"
    return min(int(text), 1000) if text.isdigit() else 1
