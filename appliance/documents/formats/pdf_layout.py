"""Owns the making of blocks from a page's lines: headings, paragraphs, lists, code; running lines left out.

Must not know PDF: it works on lines with places and sizes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from appliance.documents.formats.pdf_page import WIDE_GAP, Word
from appliance.documents.formats.pdf_tables import Table, undo_hyphens
from appliance.documents.model import Block, Kind, is_cjk, table_blocks

_MARGIN = 0.11  # of the page's height, at the top and at the bottom, where running lines stand
_LARGER = 1.12  # a line this much larger than the body is a heading
_HEADING_LONGEST = 150  # characters
_BULLET = re.compile(r"^(?:[•▪◦‣●■□○·–—*-]|\(?(?:\d{1,2}|[a-zA-Z])[.)]|[（(][一二三四五六七八九十\d]+[)）])\s*\S")
_NUMBER = re.compile(r"^(\d{1,2}(?:\.\d{1,2}){0,5})\.?\s+\S")
_CHAPTER = re.compile(r"^(?:第\s*[一二三四五六七八九十百\d]+\s*[章节篇]|chapter\s+\w+|appendix\s+\w+)", re.IGNORECASE)
_LEADERS = re.compile(r"(?:\.\s?){4,}\s*[\divxlc]+$|…{2,}\s*[\divxlc]+$", re.IGNORECASE)
_CONTENTS = re.compile(r"^(?:table of contents|contents|目\s*录)$", re.IGNORECASE)
_ENDS_WITH_PAGE = re.compile(r"\S\s+\d{1,4}$")
_LABEL = re.compile(r"^(?:warning|caution|danger|notice|note|tip|警告|注意|危险|小心|提示|说明)\W*$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?:;。！？：；…][\"'”’）)』」]*$")


@dataclass(slots=True)
class Line:
    """Words side by side."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float  # of the font, in points
    parts: tuple[str, ...] = ()  # `text` cut at gaps wider than a space
    mono: bool = False
    bold: bool = False


@dataclass(slots=True)
class PageLayout:
    """A page as lines and tables in reading order."""

    number: int
    width: float
    height: float
    items: list[Line | Table] = field(default_factory=list)

    def lines(self) -> list[Line]:
        """The lines outside tables."""
        return [item for item in self.items if isinstance(item, Line)]


@dataclass(slots=True)
class Outline:
    """The document's own list of headings: per page number, its normalized titles and their levels."""

    levels: Mapping[int, Mapping[str, int]]

    def level(self, page: int, line: Line, body: float) -> int:
        """Level of a line that is a heading of the outline on that page; 0: it is none.

        Args:
            body: size of the body's text: the last line of a paragraph may read like a heading.
        """
        if line.size <= body and not line.bold and not _NUMBER.match(line.text):
            return 0
        return self.levels.get(page, {}).get(normalized(line.text), 0)


def normalized(text: str) -> str:
    """A heading without its number, spaces and case, for comparison."""
    text = _CHAPTER.sub("", text.strip())
    return re.sub(r"^[\d.]+(?=\D)|[\W_]+", "", text.casefold()) or text.casefold()


def same_line(left: Word, right: Word) -> bool:
    """Whether `right` goes on in the line of `left`."""
    return right.x0 >= left.x0 and abs(left.y0 - right.y0) < 0.35 * max(left.height, right.height)


def parts_of(words: Sequence[Word]) -> tuple[str, ...]:
    """The text of a line, cut where a gap is wider than a space."""
    parts = [words[0].text]
    for left, right in pairwise(words):
        if right.x0 - left.x1 > WIDE_GAP * max(left.height, right.height):
            parts.append(right.text)
        else:
            parts[-1] += f" {right.text}"
    return tuple(parts)


def drop_running_lines(pages: Sequence[PageLayout]) -> dict[str, int]:
    """Take out lines at the top and bottom that repeat from page to page, numbers aside.

    A line goes when one part of it repeats: the name of the chapter beside the manual's changes.

    Returns:
        Each such text (a sample of it) and on how many pages it was.
    """
    seen: dict[tuple[str, int], list[tuple[PageLayout, Line]]] = defaultdict(list)
    for page in pages:
        for line in page.lines():
            if line.y0 > page.height * (1 - _MARGIN) or line.y1 < page.height * _MARGIN:
                for pattern in {re.sub(r"\d+|\b[ivxl]+\b", "#", part.casefold()) for part in line.parts}:
                    # Lines of left and right pages stand at the same height, but not at the same side.
                    seen[pattern, round(line.y0 / 4)].append((page, line))
    removed: dict[str, int] = {}
    gone: set[int] = set()
    for (pattern, _), places in seen.items():
        # A bare number may be anything; one that is at the same place of every other page is the page's.
        share, most = (0.5, len(pages)) if pattern == "#" else (0.3, 8)
        if len({page.number for page, _ in places}) >= max(3, min(round(len(pages) * share), most)):
            removed[places[0][1].text] = len(places)
            gone |= {id(line) for _, line in places}
    for page in pages:
        page.items = [item for item in page.items if id(item) not in gone]
    return removed


def drop_contents_lists(pages: Sequence[PageLayout]) -> list[int]:
    """Take out lists of contents: a question would find the list instead of the place it points to.

    Returns:
        Numbers of the pages they were on.
    """
    found = []
    inside = False
    for page in pages:
        texts = [_item_texts(item) for item in page.items]
        every = [text for lines in texts for text in lines]
        titled = any(_CONTENTS.match(text.strip()) for text in every[:4])
        pattern = _LEADERS if sum(bool(_LEADERS.search(text[-200:])) for text in every) >= 3 else None
        numbered = sum(bool(_ENDS_WITH_PAGE.search(text)) for text in every)
        if (titled or inside) and numbered >= max(3, 0.6 * (len(every) - titled)):
            pattern = _ENDS_WITH_PAGE
        inside = pattern is not None
        if pattern:
            found.append(page.number)
            page.items = [
                item
                for item, lines in zip(page.items, texts, strict=True)
                if sum(bool(pattern.search(text)) for text in lines) < 0.5 * len(lines)
            ]
    return found


def _item_texts(item: Line | Table) -> list[str]:
    if isinstance(item, Line):
        return [item.text]
    return [" ".join(cell for cell in row if cell) for row in item.rows]


class Typography:
    """Which sizes are body and which are headings, over the whole document."""

    def __init__(self, pages: Sequence[PageLayout], outline: Outline) -> None:
        sizes: Counter[float] = Counter()
        for page in pages:
            for line in page.lines():
                sizes[line.size] += len(line.text)
        self._outline = outline
        self.body = max(sizes, key=lambda size: (sizes[size], -size)) if sizes else 1.0
        large = sorted(
            {
                line.size
                for page in pages
                for line in page.lines()
                if self._large(line) and not outline.level(page.number, line, self.body)
            },
            reverse=True,
        )
        # Sizes that the outline speaks for keep its levels; the others rank among themselves.
        known: dict[float, list[int]] = defaultdict(list)
        for page in pages:
            for line in page.lines():
                if level := outline.level(page.number, line, self.body):
                    known[line.size].append(level)
        self._levels = {size: rank for rank, size in enumerate(large[:5], 1)}
        self._levels |= {size: round(median(levels)) for size, levels in known.items() if size > self.body}
        self._deepest = max(self._levels.values(), default=0)

    def _large(self, line: Line) -> bool:
        return line.size >= self.body * _LARGER and len(line.text) <= _HEADING_LONGEST and not line.mono

    def heading_level(self, page: int, line: Line) -> int:
        """Level of a line that is a heading, from 1; 0: it is none."""
        if not any(c.isalpha() for c in line.text):
            return 0
        if level := self._outline.level(page, line, self.body):
            return level
        if self._large(line):
            return self._levels.get(line.size, self._deepest + 1)
        numbered = _NUMBER.match(line.text)
        if line.bold and line.size >= self.body * 0.95 and len(line.text) < 100:
            if numbered:
                return self._deepest + 1 + numbered.group(1).count(".")
            if _CHAPTER.match(line.text):
                return self._deepest + 1
        return 0


def blocks_of(page: PageLayout, typography: Typography) -> list[Block]:
    """The blocks of one page, in reading order."""
    return _Builder(page, typography).build()


class _Builder:
    def __init__(self, page: PageLayout, typography: Typography) -> None:
        self._page = page
        self._typography = typography
        self._blocks: list[Block] = []
        self._open: list[Line] = []
        self._kind: Kind = "paragraph"
        lines = page.lines()
        self._right = max((line.x1 for line in lines), default=0.0)

    def build(self) -> list[Block]:
        for item in self._page.items:
            if isinstance(item, Table):
                self._close()
                self._blocks += table_blocks(item.rows, self._page.number)
            else:
                self._add(item)
        self._close()
        return self._blocks

    def _add(self, line: Line) -> None:
        level = self._typography.heading_level(self._page.number, line)
        if level:
            self._heading(line, level)
        elif line.mono:
            self._start("code", line, fresh=self._kind != "code" or self._far(line))
        elif _BULLET.match(line.text):
            self._start("list_item", line, fresh=True)
        else:
            self._start(self._kind if self._kind == "list_item" else "paragraph", line, fresh=self._parted(line))

    def _heading(self, line: Line, level: int) -> None:
        last = self._blocks[-1] if self._blocks and not self._open else None
        if last and last.kind == "heading" and last.level == level and self._goes_on(line):
            self._blocks[-1] = Block("heading", undo_hyphens([last.text, line.text]), level, self._page.number)
        else:
            self._close()
            self._blocks.append(Block("heading", line.text.strip(), level, self._page.number))
        self._last_heading = line

    def _goes_on(self, line: Line) -> bool:
        """Whether a heading's line is the second line of the heading before."""
        above = self._last_heading
        close = 0 < above.y0 - line.y0 < 1.6 * (above.y1 - above.y0)
        own_number = _NUMBER.match(line.text) or _CHAPTER.match(line.text)
        return close and above.size == line.size and not own_number

    def _start(self, kind: Kind, line: Line, *, fresh: bool) -> None:
        if fresh:
            self._close()
            # A list item ends with its own lines: what follows apart from it is a paragraph.
            self._kind = kind if kind != "list_item" or _BULLET.match(line.text) else "paragraph"
        self._open.append(line)

    def _far(self, line: Line) -> bool:
        if not self._open:
            return True
        above = self._open[-1]
        return not 0 < above.y0 - line.y0 < 1.75 * max(above.y1 - above.y0, line.y1 - line.y0)

    def _parted(self, line: Line) -> bool:
        """Whether a new paragraph begins with `line`."""
        if not self._open or self._kind == "code" or self._far(line):
            return True
        above = self._open[-1]
        if _is_label(above, line):
            return False
        if abs(above.size - line.size) > 1:
            return True
        ended = bool(_SENTENCE_END.search(above.text)) or len(self._open) == 1
        short = above.x1 < self._right - 0.15 * self._page.width
        indented = line.x0 > above.x0 + 0.8 * (line.y1 - line.y0) and self._kind != "list_item"
        return (short and bool(_SENTENCE_END.search(above.text))) or (indented and ended)

    def _close(self) -> None:
        if self._open:
            texts = [line.text for line in self._open]
            if len(texts) > 1 and self._kind == "paragraph" and _is_label(*self._open[:2]):
                texts[0] = texts[0].rstrip(":： ") + ("：" if is_cjk(texts[0][0]) else ":")
            text = "\n".join(texts) if self._kind == "code" else undo_hyphens(texts)
            self._blocks.append(Block(self._kind, text, page=self._page.number))
            self._open = []
        self._kind = "paragraph"


def _is_label(above: Line, line: Line) -> bool:
    """Whether `above` is a word such as "WARNING" over the text that it stands for."""
    return bool(_LABEL.match(above.text)) or (above.bold and not line.bold and len(above.text) < 30)


def joined_over_pages(pages: Iterable[list[Block]]) -> list[Block]:
    """All blocks; a paragraph that goes on after a page break is marked so."""
    blocks: list[Block] = []
    for page in pages:
        if page and blocks and page[0].kind == "paragraph" and blocks[-1].kind in ("paragraph", "list_item"):
            before, after = blocks[-1].text, page[0].text
            goes_on = not _SENTENCE_END.search(before) and (after[:1].islower() or is_cjk(after[:1] or " "))
            if goes_on:
                page = [Block("paragraph", after, page=page[0].page, joined=True), *page[1:]]
        blocks += page
    return blocks
