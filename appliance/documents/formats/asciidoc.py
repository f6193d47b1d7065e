"""Owns the reading of AsciiDoc: headings, lists, tables, listings and paragraphs, line by line.

Must not know macros or conditions: includes are not followed, attributes are put in where the file sets them.
No library for Python is kept up; this covers what manuals are written in, and what it does not know stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.documents.decode import decode
from appliance.documents.losses import image_skipped
from appliance.documents.model import Block, Parsed, clean, join_lines, table_blocks
from appliance.store.records import Loss

_HEADING = re.compile(r"(={1,6}|#{1,6})[ \t]+(\S.*?)(?:[ \t]+\1)?[ \t]*$")
_ATTRIBUTE = re.compile(r":([\w-]+):(?:[ \t]+(.*))?$")
_ITEM = re.compile(r"[ \t]*(?:[*.-]{1,6}|\d+\.|<\d+>|[a-z]\.)[ \t]+(?:\[[ xX*]\][ \t]+)?(\S.*)$")
_TERM = re.compile(r"(\S.*?)(?:::|:::|;;)(?:[ \t]+(.*))?$")
_BLOCK_LINE = re.compile(r"\[[^\]]*\]$")
_CODE_FENCE = re.compile(r"(-{4,}|\.{4,}|\+{4,}|`{3,})(?:\w*)$")
_SKIPPED_FENCE = re.compile(r"/{4,}$")
_OPEN_FENCE = re.compile(r"(?:={4,}|\*{4,}|_{4,}|--)$")
_TABLE_FENCE = re.compile(r"[|!,:]={3,}$")
_IMAGE = re.compile(r"image::?[^\s\[]*\[([^\],]*)[^\]]*\]")
_INCLUDE = re.compile(r"include::([^\[]*)\[[^\]]*\]$")
_CONDITION = re.compile(r"(?:ifdef|ifndef|ifeval|endif)::")
_LINK = re.compile(r"(?:link:|xref:|mailto:)[^\s\[]*\[([^\]]*)\]|(https?://[^\s\[]+)\[([^\]]*)\]|<<[^,>]*,([^>]*)>>")
_MARKS = re.compile(r"(?<![\w\\])(\*\*?|__?|``?|##?|\+)(?=\S)([^\n]*?\S)\1(?!\w)")
_REFERENCE = re.compile(r"\{([\w-]+)\}")
_CELL = re.compile(r"(?:(?<=\s)|^)(?:(\d+)(?:\.\d+)?\+|\d+\*|\.\d+\+)?[<^>.]*[aehlmsvd]?\|")
_NUMBER_OF_COLUMNS = re.compile(r"""cols\s*=\s*(?:"([^"]*)"|([\d*]+))""")


def parse(data: bytes, stem: str) -> Parsed:
    """Read AsciiDoc; the title is that of its head.

    Raises:
        UnreadableDocument: it is not text.
    """
    text, encoding, losses = decode(data)
    reader = _Reader(clean(text).split("\n"))
    blocks = tuple(block for block in reader.read() if block.text.strip())
    losses += image_skipped(reader.images)
    losses += [Loss("directive_unread", f"include of {name}: not followed") for name in reader.includes]
    title = next((block.text for block in blocks if block.kind == "heading"), stem)
    return Parsed(title, "text/asciidoc", blocks, encoding=encoding, losses=tuple(losses))


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._place = 0
        self._attributes: dict[str, str] = {}
        self._columns = 0  # of the table that comes next
        self.images = 0
        self.includes: list[str] = []

    def read(self) -> Iterator[Block]:
        """All blocks, in order."""
        while self._place < len(self._lines):
            line = self._lines[self._place].rstrip()
            self._place += 1
            if not line or line == "+" or (line.startswith("//") and not _SKIPPED_FENCE.match(line)):
                continue
            if _SKIPPED_FENCE.match(line):
                self._until(line)
            elif found := _CODE_FENCE.match(line):
                yield Block("code", "\n".join(self._until(found[1] if line.startswith("`") else line)))
            elif _TABLE_FENCE.match(line):
                yield from self._table(line)
            elif found := _HEADING.match(line):
                yield Block("heading", self._inline(found[2]), level=len(found[1]))
            elif found := _ATTRIBUTE.match(line):
                self._attributes[found[1].lower()] = self._inline(found[2] or "")
            elif found := _INCLUDE.match(line):
                self.includes.append(found[1])
            elif _BLOCK_LINE.match(line):
                self._columns = _columns(line)
            elif _OPEN_FENCE.match(line) or _CONDITION.match(line):
                continue
            elif found := _ITEM.match(line):
                yield Block("list_item", self._paragraph(found[1]))
            elif found := _TERM.match(line):
                yield Block("list_item", self._inline(found[1]))
                if found[2]:
                    yield Block("paragraph", self._paragraph(found[2]))
            elif line.startswith(".") and len(line) > 1 and line[1] not in ". ":
                yield Block("paragraph", self._inline(line[1:]))  # a block's title
            else:
                yield Block("paragraph", self._paragraph(line))

    def _until(self, fence: str) -> list[str]:
        start = self._place
        while self._place < len(self._lines) and self._lines[self._place].rstrip() != fence:
            self._place += 1
        self._place += 1
        return self._lines[start : self._place - 1]

    def _paragraph(self, first: str) -> str:
        """The lines of a paragraph, up to an empty one or one that begins something else."""
        lines = [first]
        while self._place < len(self._lines):
            line = self._lines[self._place].rstrip()
            if not line or line == "+" or _begins(line):
                break
            lines.append(line)
            self._place += 1
        return self._inline(join_lines(line.strip() for line in lines))

    def _inline(self, text: str) -> str:
        text = _REFERENCE.sub(lambda found: self._attributes.get(found[1].lower(), found[0]), text)
        self.images += len(_IMAGE.findall(text))
        text = _IMAGE.sub(r"\1", text)
        text = _LINK.sub(lambda found: found[1] or found[3] or found[4] or found[2] or "", text)
        return _MARKS.sub(r"\2", text).removesuffix(" +")

    def _table(self, fence: str) -> list[Block]:
        rows: list[list[str]] = []
        open_row: list[str] = []
        columns, self._columns = self._columns, 0
        for line in self._until(fence):
            cells = list(_CELL.finditer(line)) if fence.startswith("|") else []
            if not cells:
                separated = line.split(fence[0]) if line.strip() and not fence.startswith("|") else []
                if separated:
                    rows.append([self._inline(cell.strip().strip('"')) for cell in separated])
                elif line.strip() and open_row:
                    open_row[-1] += "\n" + self._inline(line.strip())
                continue
            if before := line[: cells[0].start()].strip():  # the cell of the line above goes on
                if open_row:
                    open_row[-1] += "\n" + self._inline(before)
                else:
                    open_row.append(self._inline(before))
            if not columns:
                # The first line tells how many cells a row has.
                columns = sum(int(cell[1] or 1) for cell in cells)
            for cell, following in zip(cells, [*cells[1:], None], strict=True):
                if len(open_row) >= columns:
                    rows.append(open_row)
                    open_row = []
                text = line[cell.end() : following.start() if following else len(line)]
                open_row += [self._inline(text.strip()), *[""] * (min(int(cell[1] or 1), 1000) - 1)]
        return table_blocks([*rows, open_row] if open_row else rows)


def _begins(line: str) -> bool:
    """Whether a line inside a paragraph begins something else."""
    fences = (
        _CODE_FENCE,
        _OPEN_FENCE,
        _TABLE_FENCE,
        _SKIPPED_FENCE,
        _BLOCK_LINE,
        _ATTRIBUTE,
        _ITEM,
        _INCLUDE,
        _CONDITION,
    )
    return any(pattern.match(line) for pattern in fences)


def _columns(line: str) -> int:
    found = _NUMBER_OF_COLUMNS.search(line)
    if not found:
        return 0
    count = 0
    for part in (found[1] or found[2]).split(","):
        times, star, _ = part.partition("*")
        count += min(int(times), 1000) if star and times.strip().isdigit() else 1
    return count
