"""Owns the reading of DOCX: paragraphs, headings, lists and tables in document order.

Must not know how a page would be laid out: Word files have no pages until they are printed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from appliance.documents.formats.package import DAMAGED, local, open_zip, xml
from appliance.documents.losses import image_skipped
from appliance.documents.model import Block, Parsed, clean, one_line, squeeze, table_blocks
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

if TYPE_CHECKING:
    from docx.document import Document as DocxDocument
    from lxml.etree import _Element

MEDIA_TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_HEADING = re.compile(r"heading\s*(\d)", re.IGNORECASE)
# Elements that only wrap others: content controls, insertions, links, fields, alternatives.
_WRAPPERS = frozenset(
    _W + name for name in ("sdt", "sdtContent", "ins", "moveTo", "hyperlink", "smartTag", "fldSimple", "customXml")
)
_ALTERNATIVES = "{http://schemas.openxmlformats.org/markup-compatibility/2006}AlternateContent"


def parse(data: bytes, stem: str) -> Parsed:
    """Read DOCX; the title is that of its properties, of its title paragraph or its first heading.

    Raises:
        UnreadableDocument: it is damaged, encrypted, or unpacks to too much.
    """
    document = _open(data)
    try:
        reader = _Reader(document)
        blocks = [block for block in reader.read() if block.text.strip()]
        title = one_line(document.core_properties.title or "") or reader.title
        losses = tuple(reader.losses())
    except (AttributeError, TypeError, IndexError, KeyError, ValueError) as error:  # parts that are not what they say
        raise UnreadableDocument(f"It is damaged: {error}.") from error
    if not title:
        title = next((block.text for block in blocks if block.kind == "heading"), stem)
    return Parsed(title, MEDIA_TYPE, tuple(blocks), losses=losses)


def _open(data: bytes) -> DocxDocument:
    from docx import Document
    from lxml.etree import XMLSyntaxError

    with open_zip(data, "DOCX") as archive:
        names = set(archive.namelist())
    if "word/document.xml" not in names:
        raise UnreadableDocument("It is a ZIP file, but not a Word document.")
    try:
        return Document(io.BytesIO(data))
    except (XMLSyntaxError, AttributeError, TypeError, IndexError, *DAMAGED) as error:
        raise UnreadableDocument(f"It is damaged: {error}.") from error


class _Reader:
    def __init__(self, document: DocxDocument) -> None:
        self._document = document
        self._levels: dict[str, int] = {}
        self._title_styles: set[str] = set()
        self._code_styles: set[str] = set()
        self._list_styles: set[str] = set()
        self.title = ""
        self._images = 0
        self._deleted = 0
        self._nested = 0
        self._read_styles()

    def _read_styles(self) -> None:
        for style in self._document.styles.element.iter(_W + "style"):
            identity = style.get(_W + "styleId") or ""
            named = style.find(_W + "name")
            name = (named.get(_W + "val") or "").lower() if named is not None else ""
            outline = style.find(f"{_W}pPr/{_W}outlineLvl")
            if found := _HEADING.fullmatch(name):
                self._levels[identity] = int(found.group(1))
            elif name == "title":
                self._title_styles.add(identity)
            elif outline is not None and (outline.get(_W + "val") or "9").isdigit():
                level = int(outline.get(_W + "val") or 9)
                if level < 9:
                    self._levels[identity] = level + 1
            if name.startswith("list"):
                self._list_styles.add(identity)
            if any(word in name for word in ("code", "preformatted", "source")):
                self._code_styles.add(identity)

    def read(self) -> list[Block]:
        blocks = list(self._blocks(self._document.element.body))
        for kind in ("footnotes", "endnotes"):
            blocks += self._notes(kind)
        return blocks

    def losses(self) -> Iterator[Loss]:
        yield from image_skipped(self._images)
        if self._nested:
            yield Loss("table_flattened", f"{self._nested} tables that stand in cells of other tables")
        if self._deleted:
            yield Loss("deleted_text_skipped", f"{self._deleted} passages that are marked as deleted")
        if any(section.header.paragraphs or section.footer.paragraphs for section in self._document.sections):
            texts = {
                one_line(p.text)
                for section in self._document.sections
                for part in (section.header, section.footer)
                for p in part.paragraphs
            } - {""}
            if texts:
                yield Loss("running_header_removed", "; ".join(sorted(texts))[:200])

    def _blocks(self, parent: _Element) -> Iterator[Block]:
        code: list[str] = []
        for element in parent:
            if element.tag == _W + "p":
                style, text = self._style(element), self._text(element)
                if style in self._code_styles:
                    code.append(text)
                    continue
                yield from _code_block(code)
                yield self._paragraph(element, style, text)
                for box in element.iter(_W + "txbxContent"):
                    if _is_first_alternative(box):
                        yield from self._blocks(box)
            elif element.tag == _W + "tbl":
                yield from _code_block(code)
                self._nested += next(element.iterancestors(_W + "tbl"), None) is not None
                yield from table_blocks(self._rows(element))
            elif element.tag in _WRAPPERS:
                yield from _code_block(code)
                yield from self._blocks(element)
        yield from _code_block(code)

    def _paragraph(self, element: _Element, style: str, text: str) -> Block:
        level = self._levels.get(style, 0)
        own = element.find(f"{_W}pPr/{_W}outlineLvl")
        if own is not None and (own.get(_W + "val") or "").isdigit() and int(own.get(_W + "val") or 9) < 9:
            level = int(own.get(_W + "val") or 0) + 1
        if style in self._title_styles:
            self.title = self.title or one_line(text)
            level = 1
        if level:
            return Block("heading", one_line(text), level=level)
        numbered = element.find(f"{_W}pPr/{_W}numPr") is not None
        return Block("list_item" if numbered or style in self._list_styles else "paragraph", squeeze(text))

    @staticmethod
    def _style(element: _Element) -> str:
        named = element.find(f"{_W}pPr/{_W}pStyle")
        return (named.get(_W + "val") or "") if named is not None else ""

    def _rows(self, table: _Element) -> Iterator[list[str]]:
        above: dict[int, str] = {}  # text by column, for cells that go on from the row above
        for row in table.iter(_W + "tr"):
            if next(row.iterancestors(_W + "tbl")) is not table:
                continue  # of a table inside a cell: that cell holds its text
            cells = []
            column = 0
            for cell in row.iter(_W + "tc"):
                if next(cell.iterancestors(_W + "tbl")) is not table:
                    continue
                merged = cell.find(f"{_W}tcPr/{_W}vMerge")
                if merged is None or merged.get(_W + "val", "continue") != "continue":
                    above[column] = "\n".join(block.text for block in self._blocks(cell))
                cells.append(above.get(column, ""))
                span = cell.find(f"{_W}tcPr/{_W}gridSpan")
                column += int(span.get(_W + "val") or 1) if span is not None else 1
            yield cells

    def _text(self, parent: _Element) -> str:
        parts: list[str] = []
        self._gather(parent, parts)
        return clean("".join(parts))

    def _gather(self, parent: _Element, parts: list[str]) -> None:
        for element in parent:
            tag = element.tag
            if tag == _W + "t":
                parts.append(element.text or "")
            elif tag in (_W + "tab", _W + "ptab"):
                parts.append("\t")
            elif tag in (_W + "br", _W + "cr"):
                parts.append("\n")
            elif tag == _W + "noBreakHyphen":
                parts.append("-")
            elif tag in (_W + "del", _W + "moveFrom"):
                self._deleted += 1
            elif tag == _W + "drawing":
                self._drawing(element, parts)
            elif tag in _WRAPPERS or tag in (_W + "r", _ALTERNATIVES) or local(element) == "Choice":
                self._gather(element, parts)

    def _drawing(self, element: _Element, parts: list[str]) -> None:
        if next(element.iter(_W + "txbxContent"), None) is not None:
            return  # a text box: read as blocks after its paragraph
        self._images += 1
        for properties in element.iter("*"):
            if local(properties) == "docPr":
                if description := properties.get("descr"):
                    parts.append(f" {description} ")
                return

    def _notes(self, kind: str) -> Iterable[Block]:
        for relation in self._document.part.rels.values():
            if relation.reltype.endswith(f"/{kind}") and not relation.is_external:
                for note in xml(relation.target_part.blob):
                    if note.get(_W + "type") in (None, "normal"):
                        yield from self._blocks(note)


def _code_block(lines: list[str]) -> Iterator[Block]:
    if lines:
        yield Block("code", "\n".join(lines).strip("\n"))
        lines.clear()


def _is_first_alternative(box: _Element) -> bool:
    # Word writes a text box twice: in a Choice for new readers and in a Fallback for old ones.
    return all(local(around) != "Fallback" for around in box.iterancestors())
