"""Owns the reading of CSV and TSV: which character separates cells, and rows that go over several lines.

Must not know encodings (`decode`) or what makes a table of rows (`formats.grid`).
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from appliance.documents.decode import decode
from appliance.documents.formats.grid import grid_blocks
from appliance.documents.model import Parsed, clean
from appliance.store.records import Loss

_DELIMITERS = "\t,;|"
_SAMPLE_ROWS = 100
_SAMPLE_CHARACTERS = 64 << 10


def parse(data: bytes, stem: str) -> Parsed:
    """Read CSV, whatever separates its cells; the title is the file's name.

    Raises:
        UnreadableDocument: it is not text.
    """
    text, encoding, losses = decode(data)
    text = clean(text)
    delimiter, text = _delimiter(text)
    rows, unclosed = _rows(text, delimiter)
    if unclosed:
        losses.append(Loss("rows_guessed", f"from line {unclosed} on, a quotation mark is not closed: read as written"))
    blocks = grid_blocks(rows)
    if uneven := _uneven(rows):
        losses.append(Loss("rows_guessed", f"{uneven} rows have more cells than most rows of the file"))
    media_type = "text/tab-separated-values" if delimiter == "\t" else "text/csv"
    return Parsed(stem, media_type, tuple(blocks), encoding=encoding, losses=tuple(losses))


def _delimiter(text: str) -> tuple[str, str]:
    """The character between cells, and the text without the line in which Excel names it."""
    first, _, rest = text.partition("\n")
    if first.startswith("sep=") and len(first) == 5:
        return first[4], rest
    return max(_DELIMITERS, key=lambda delimiter: _fits(text[:_SAMPLE_CHARACTERS], delimiter)), text


def _fits(sample: str, delimiter: str) -> tuple[float, int]:
    """How well a delimiter explains the rows: the share of them that have the same number of cells, that number."""
    rows = itertools.islice(_reader(io.StringIO(sample), delimiter), _SAMPLE_ROWS)
    widths = [len(row) for row in rows if len(row) > 1 or "".join(row).strip()]
    several = Counter(width for width in widths if width > 1)
    if not several:
        return 0.0, 0
    width, count = max(several.items(), key=lambda item: (item[1], item[0]))
    return round(count / len(widths), 1), width


def _reader(lines: Iterator[str], delimiter: str, quoting: Literal[0, 3] = csv.QUOTE_MINIMAL) -> Iterator[list[str]]:
    return csv.reader(lines, delimiter=delimiter, quoting=quoting, skipinitialspace=delimiter != "\t")


def _rows(text: str, delimiter: str) -> tuple[list[list[str]], int]:
    """All rows, and the number of the line from which on quotation marks were read as written; 0: none was.

    A mark that is not closed would make one cell of the rest of the file.
    """
    csv.field_size_limit(max(len(text), 1 << 17))
    rows: list[list[str]] = []
    source = io.StringIO(text)
    taken: list[str] = []  # lines of the row that is being read
    line = 1
    for row in _reader(_noted(source, taken), delimiter):
        if len(taken) > 1 and source.tell() == len(text) and sum(part.count('"') for part in taken) % 2:
            return [*rows, *_reader(iter(taken), delimiter, csv.QUOTE_NONE)], line
        rows.append(row)
        line += len(taken)
        taken.clear()
    return rows, 0


def _noted(lines: Iterator[str], taken: list[str]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line


def _uneven(rows: list[list[str]]) -> int:
    widths = Counter(len(row) for row in rows if len(row) > 1)
    if not widths:
        return 0
    usual = widths.most_common(1)[0][0]
    return sum(any(cell.strip() for cell in row[usual:]) for row in rows)
