"""Owns the reading of PDF: text with its pages, headings from the outline or the type, tables as rows.

Must not know how chunks are cut.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from appliance.documents.formats.pdf_layout import (
    Line,
    Outline,
    PageLayout,
    Typography,
    blocks_of,
    drop_contents_lists,
    drop_running_lines,
    joined_over_pages,
    normalized,
    parts_of,
    same_line,
)
from appliance.documents.formats.pdf_page import Page, Word
from appliance.documents.formats.pdf_tables import aligned_tables, ruled_tables
from appliance.documents.model import REPLACEMENT, Block, Parsed, clean, one_line
from appliance.documents.ocr import NoOcr, Ocr, Reading
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

_NO_PAGES = re.compile(rb"/Count\s+0\b")
_PAGES_MOST = 20_000
_STAMP_LETTERS = 80  # a page number or an archive's stamp on a scan; a page with more has its text
_SCAN_SHARE = 0.5  # of the page, that its images cover when they are the page


def parse(data: bytes, stem: str, ocr: Ocr = NoOcr()) -> Parsed:  # noqa: B008 - has no state
    """Read a PDF.

    Raises:
        UnreadableDocument: it is damaged, encrypted with a password, without pages or without any text.
    """
    document = _open(data)
    try:
        count = len(document)
        if count == 0:
            raise UnreadableDocument("It has no pages.")
        if count > _PAGES_MOST:
            raise UnreadableDocument(f"It has {count} pages; at most {_PAGES_MOST} are read.")
        losses: list[Loss] = []
        scans: dict[int, list[Block]] = {}  # by the number of the page
        reading = Reading(ocr)
        layouts = [_read_page(document, index, losses, scans, reading) for index in range(count)]
        if not any(layout.items for layout in layouts) and not any(scans.values()):
            raise UnreadableDocument(f"None of its pages holds text; it may be a scan. {reading.hint}".strip())
        losses += [*reading.losses, *reading.summary()]
        losses += [
            Loss("running_header_removed", f"{text!r} on {pages} pages")
            for text, pages in drop_running_lines(layouts).items()
        ]
        losses += [
            Loss("contents_list_removed", "a list of contents is not searched", number)
            for number in drop_contents_lists(layouts)
        ]
        typography = Typography(layouts, _outline(document))
        blocks = joined_over_pages([scans.get(own.number) or blocks_of(own, typography) for own in layouts])
        cleaned = [_cleaned(block, losses) for block in blocks]
        title = _title(document)
    finally:
        document.close()
    if not title or title.casefold() in ("untitled", "(anonymous)") or title.startswith("Microsoft Word"):
        title = next((b.text for b in cleaned if b.kind == "heading" and b.page == 1), stem)
    return Parsed(title, "application/pdf", tuple(cleaned), pages=count, losses=tuple(losses))


def _open(data: bytes) -> PdfDocument:
    import pypdfium2 as pdfium

    try:
        return pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        # The error's code may be that of an earlier document: pdfium sets none for a file without pages.
        if b"/Encrypt" in data:
            reason = "It is encrypted; remove its password first."
        elif _NO_PAGES.search(data):
            reason = "It has no pages."
        else:
            reason = "It is damaged or not a PDF file."
        raise UnreadableDocument(reason) from error


def _read_page(
    document: PdfDocument, index: int, losses: list[Loss], scans: dict[int, list[Block]], reading: Reading
) -> PageLayout:
    import pypdfium2 as pdfium

    number = index + 1
    try:
        page = Page(document, index)
    except pdfium.PdfiumError:
        losses.append(Loss("page_unreadable", "the page is damaged", number))
        return PageLayout(number, 1.0, 1.0)
    try:
        words = page.words()
        layout = PageLayout(number, page.width, page.height)
        stamp = sum(len(word.text) for word in words) < _STAMP_LETTERS
        if (stamp and page.image_share() > _SCAN_SHARE) or (not words and page.shows_anything()):
            scans[number] = reading.page(page.picture, number)
        if words and not scans.get(number):
            _arrange(page, words, layout)
        elif not words and number not in scans:
            losses.append(Loss("page_without_text", "the page is empty", number))
        return layout
    finally:
        page.close()


def _arrange(page: Page, words: Sequence[Word], layout: PageLayout) -> None:
    """Put lines and tables into `layout`; a table stands where its first word does."""
    tables = ruled_tables(words, *page.rules())
    taken = {i: table for table in tables for i in table.words}
    free = [i for i in range(len(words)) if i not in taken]
    taken |= {i: table for table in aligned_tables(words, free) for i in table.words}
    placed: set[int] = set()
    run: list[Word] = []

    def end() -> None:
        if run:
            font = page.font(run[0])
            last = page.font(run[-1])
            layout.items.append(
                Line(
                    " ".join(word.text for word in run),
                    run[0].x0,
                    min(word.y0 for word in run),
                    max(word.x1 for word in run),
                    max(word.y1 for word in run),
                    max(font.size, last.size),
                    parts_of(run),
                    mono=font.mono and last.mono,
                    bold=font.bold and last.bold,
                )
            )
            run.clear()

    for i, word in enumerate(words):
        table = taken.get(i)
        if table is not None:
            end()
            if id(table) not in placed:
                placed.add(id(table))
                layout.items.append(table)
            continue
        if run and not same_line(run[-1], word):
            end()
        run.append(word)
    end()


def _title(document: PdfDocument) -> str:
    try:
        return one_line(document.get_metadata_value("Title"))
    except UnicodeDecodeError:  # a damaged entry; the text may be whole
        return ""


def _outline(document: PdfDocument) -> Outline:
    import pypdfium2 as pdfium

    levels: dict[int, dict[str, int]] = defaultdict(dict)
    try:
        for bookmark in document.get_toc(max_depth=8):
            target = bookmark.get_dest()
            index = target.get_index() if target else None
            if index is not None:
                levels[index + 1].setdefault(normalized(clean(bookmark.get_title())), bookmark.level + 1)
    except (pdfium.PdfiumError, UnicodeDecodeError):
        pass  # what was read up to the damage is of use
    return Outline(levels)


def _cleaned(block: Block, losses: list[Loss]) -> Block:
    text, header = clean(block.text), clean(block.header)
    if count := text.count(REPLACEMENT):
        losses.append(Loss("characters_replaced", f"{count} characters have no readable code", block.page))
    return Block(block.kind, text, block.level, block.page, header, block.joined)
