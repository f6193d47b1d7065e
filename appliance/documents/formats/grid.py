"""Owns how a grid of cells (a sheet, a CSV file) becomes titles and tables whose rows know their header.

Must not know file formats.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from appliance.documents.model import Block, join_lines, one_line, squeeze, table_blocks, table_row

_VALUE = re.compile(r"[-+(]?[^\w\s]{0,3}\d[\d\s.,:/%°()+\-]*(?:[A-Za-z%°€$¥£µ]{1,3})?\)?")
_HEADER_ROWS_MOST = 4
# A header of more bytes takes too much of a chunk to be repeated above its rows (a third of it, at some three bytes
# a token): then each cell is written with the name of its column.
_HEADER_MOST_BYTES = 240
_PROSE_CHARACTERS = 120  # a column of cells that are as long on average is running text

Row = Sequence[str]


class _Table(msgspec.Struct):
    titles: list[str]  # rows of a single cell above the header
    rows: list[Row]
    header_rows: int


def grid_blocks(rows: Sequence[Row], spanned: Collection[int] = (), page: int | None = None) -> list[Block]:
    """The blocks of a grid; no text of a cell is left out.

    Args:
        rows: the texts of the cells; a merged cell's text stands in each cell that it covers.
        spanned: rows with a cell that is merged over columns. Where a table begins with such rows, they and the
            one below them are its header together.
        page: of the blocks.
    """
    blocks: list[Block] = []
    for table in _tables(rows, spanned):
        blocks += [Block("paragraph", title, page=page) for title in table.titles]
        blocks += _blocks(table, page)
    return blocks


def _tables(rows: Sequence[Row], spanned: Collection[int]) -> list[_Table]:
    """The tables of a grid: what empty rows set apart, unless it only goes on with the table above."""
    tables: list[_Table] = []
    columns: range | None = None  # of the table that may go on
    for group in _groups(rows):
        own = [rows[number] for number in group]
        width = _columns(own)
        title_rows = 0
        while title_rows < len(group) and _is_title(own[title_rows], width, group[title_rows] in spanned):
            title_rows += 1
        if len(width) == 1 and len(group) > 1:
            title_rows = 0
        if columns is not None and columns.start == width.start and not title_rows and not _begins_table(own):
            tables[-1].rows += own
            continue
        titles = [_first(row) for row in own[:title_rows]]
        body, columns = own[title_rows:], width if own[title_rows:] else columns
        depth = 1
        while depth < min(len(body), _HEADER_ROWS_MOST) and group[title_rows + depth - 1] in spanned:
            depth += 1
        tables.append(_Table(titles, body, depth))
    return tables


def _groups(rows: Sequence[Row]) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    for number, row in enumerate(rows):
        if any(cell.strip() for cell in row):
            groups[-1].append(number)
        elif groups[-1]:
            groups.append([])
    return [group for group in groups if group]


def _columns(rows: Sequence[Row]) -> range:
    used = [place for row in rows for place, cell in enumerate(row) if cell.strip()]
    return range(min(used), max(used) + 1)


def _is_title(row: Row, width: range, merged: bool) -> bool:
    texts = [cell for cell in row if cell.strip()]
    return len(texts) == 1 or (merged and len(set(texts)) == 1 and len(texts) == len(width))


def _first(row: Row) -> str:
    return squeeze(next(cell for cell in row if cell.strip()))


def _begins_table(rows: Sequence[Row]) -> bool:
    """Whether the first of `rows`, which stand below an empty row, names columns of its own."""
    return not any(map(_is_value, rows[0])) and any(_is_value(cell) for row in rows[1:] for cell in row)


def _is_value(cell: str) -> bool:
    return bool(_VALUE.fullmatch(cell.strip()))


def _blocks(table: _Table, page: int | None) -> list[Block]:
    if not table.rows:
        return []
    width = _columns(table.rows)
    if len(width) == 1:
        texts = [_first(row) for row in table.rows]
        if sum(map(len, texts)) > _PROSE_CHARACTERS * len(texts):
            return [Block("paragraph", text, page=page) for text in texts]
    names = _header(table.rows[: table.header_rows])
    rows = table.rows[table.header_rows :]
    if len(table_row(names).encode("utf-8", "replace")) <= _HEADER_MOST_BYTES:
        return table_blocks([names, *rows], page)
    named = (_named(names, row) for row in rows)
    return [Block("table_row", text, page=page) for text in (table_row(names), *named) if text.strip(" |")]


def _header(rows: Sequence[Row]) -> list[str]:
    """One row of column names, each from the outermost name to the innermost."""
    names: list[str] = []
    for column in range(max(map(len, rows))):
        parts: dict[str, None] = {}
        for row in rows:
            if column < len(row) and (text := one_line(row[column])):
                parts[text] = None
        names.append(join_lines(parts))
    return names


def _named(names: Sequence[str], row: Row) -> str:
    cells = []
    for place, cell in enumerate(row):
        if cell.strip():
            name = names[place] if place < len(names) else ""
            cells.append(f"{name}: {cell}" if name else cell)
    return table_row(cells)
