"""Owns the finding of tables on a page: by their ruled lines, or by columns that stand apart.

Must not know PDF: it works on words and rules with places.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.documents.formats.pdf_page import HYPHEN, WIDE_GAP, Rule, Word
from appliance.documents.model import join_lines

_NEAR = 3.0  # points: rules this close are one
_RULES_MOST = 600
_MARK = re.compile(r"[•▪◦‣●■□○·–—*-]|\(?(?:\d{1,3}|[a-zA-Z])[.)]|\d{1,2}(?:\.\d{1,2})*\.?")


@dataclass(slots=True)
class Table:
    """Rows of cells, and which words of the page stand in them (by index)."""

    rows: list[list[str]]
    words: set[int]


def ruled_tables(words: Sequence[Word], horizontal: Sequence[Rule], vertical: Sequence[Rule]) -> list[Table]:
    """The tables that are drawn as grids, in any order; a box around text is none."""
    flat, tall = _merged(horizontal), _merged(vertical)
    if len(flat) + len(tall) > _RULES_MOST:
        return []
    tables = []
    for rows, columns in _grids(flat, tall):
        xs = _borders(columns, [edge for rule in rows for edge in (rule.start, rule.end)])
        ys = _borders(rows, [edge for rule in columns for edge in (rule.start, rule.end)])
        if len(xs) >= 3 and len(ys) >= 2:
            table = _fill(words, xs, ys, rows)
            if table:
                tables.append(table)
    return tables


def aligned_tables(words: Sequence[Word], free: Sequence[int]) -> list[Table]:
    """Tables without rules: at least three lines whose cells begin at the same places.

    Args:
        free: indexes of the words that stand in no ruled table, in reading order.
    """
    lines = _cells_by_line(words, free)
    tables: list[Table] = []
    run: list[list[list[int]]] = []

    def end() -> None:
        if len(run) >= 3:
            starts = _column_starts(words, run)
            rows = [_in_columns(words, cells, starts) for cells in run]
            tables.append(Table(rows, {i for cells in run for cell in cells for i in cell}))
        run.clear()

    for cells in lines:
        if len(cells) >= 2 and (not run or _aligned(words, run[-1], cells)):
            run.append(cells)
        else:
            end()
            if len(cells) >= 2:
                run.append(cells)
    end()
    return tables


def text_of(words: Sequence[Word]) -> str:
    """Words of one cell or line run, line by line, hyphens at line ends undone."""
    lines: list[str] = []
    floor: Word | None = None
    for word in words:
        if floor is not None and abs(word.y0 - floor.y0) < 0.5 * max(word.height, floor.height):
            lines[-1] += " " + word.text
        else:
            lines.append(word.text)
        floor = word
    return undo_hyphens(lines)


def undo_hyphens(lines: Sequence[str]) -> str:
    """Lines of one paragraph as one, a word that was broken at a line end made whole."""
    parts: list[str] = []
    for line in lines:
        if parts and parts[-1].endswith((HYPHEN, "\u00ad")):
            parts[-1] = parts[-1][:-1] + line
        else:
            parts.append(line)
    return join_lines(part.replace(HYPHEN, "") for part in parts)


def _merged(rules: Sequence[Rule]) -> list[Rule]:
    """Rules along one line that touch, as one."""
    merged: list[Rule] = []
    for rule in sorted(rules, key=lambda r: (round(r.at / _NEAR), r.start)):
        last = merged[-1] if merged else None
        if last and abs(last.at - rule.at) <= _NEAR and rule.start <= last.end + _NEAR:
            merged[-1] = Rule(last.at, last.start, max(last.end, rule.end))
        else:
            merged.append(rule)
    return merged


def _grids(flat: Sequence[Rule], tall: Sequence[Rule]) -> list[tuple[list[Rule], list[Rule]]]:
    """Groups of rules that cross or touch each other."""
    parent = list(range(len(flat) + len(tall)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, across in enumerate(flat):
        for j, down in enumerate(tall):
            if (
                across.start - _NEAR <= down.at <= across.end + _NEAR
                and down.start - _NEAR <= across.at <= down.end + _NEAR
            ):
                parent[root(i)] = root(len(flat) + j)
    groups: dict[int, tuple[list[Rule], list[Rule]]] = {}
    for i, rule in enumerate([*flat, *tall]):
        groups.setdefault(root(i), ([], []))[i >= len(flat)].append(rule)
    return [group for group in groups.values() if group[0] and group[1]]


def _borders(rules: Sequence[Rule], ends: Sequence[float]) -> list[float]:
    """Places of the borders between cells, ascending; an outer border that is not drawn is where rules end."""
    places: list[float] = []
    for at in sorted(rule.at for rule in rules):
        if not places or at - places[-1] > _NEAR:
            places.append(at)
    if ends and min(ends) < places[0] - _NEAR:
        places.insert(0, min(ends))
    if ends and max(ends) > places[-1] + _NEAR:
        places.append(max(ends))
    return places


def _fill(words: Sequence[Word], xs: Sequence[float], ys: Sequence[float], flat: Sequence[Rule]) -> Table | None:
    cells: dict[tuple[int, int], list[int]] = {}
    inside: set[int] = set()
    for i, word in enumerate(words):
        x, y = (word.x0 + word.x1) / 2, (word.y0 + word.y1) / 2
        if xs[0] <= x <= xs[-1] and ys[0] <= y <= ys[-1]:
            column = min(max(bisect.bisect_right(xs, x) - 1, 0), len(xs) - 2)
            row = min(max(bisect.bisect_right(ys, y) - 1, 0), len(ys) - 2)
            cells.setdefault((len(ys) - 2 - row, column), []).append(i)
            inside.add(i)
    if len({column for _, column in cells}) < 2:
        return None
    count = len(ys) - 1
    rows = [[""] * (len(xs) - 1) for _ in range(count)]
    for column in range(len(xs) - 1):
        x = (xs[column] + xs[column + 1]) / 2
        first = 0
        for row in range(count):
            floor = ys[count - 1 - row]
            closed = any(abs(r.at - floor) <= _NEAR and r.start < x < r.end for r in flat)
            if closed or row == count - 1:
                # A cell that spans rows says the same of each of them.
                indexes = [i for r in range(first, row + 1) for i in cells.get((r, column), [])]
                text = text_of(_reading_order(words, indexes))
                for spanned in range(first, row + 1):
                    rows[spanned][column] = text
                first = row + 1
    return Table([row for row in rows if any(row)], inside)


def _reading_order(words: Sequence[Word], indexes: Sequence[int]) -> list[Word]:
    """Words of a cell from its top line to its bottom line, each line from left to right."""
    lines: list[list[Word]] = []
    for word in sorted((words[i] for i in indexes), key=lambda w: -w.y0):
        if lines and abs(lines[-1][0].y0 - word.y0) < 0.5 * max(word.height, lines[-1][0].height):
            lines[-1].append(word)
        else:
            lines.append([word])
    return [word for line in lines for word in sorted(line, key=lambda w: w.x0)]


def _cells_by_line(words: Sequence[Word], free: Sequence[int]) -> list[list[list[int]]]:
    lines: list[list[list[int]]] = []
    last: Word | None = None
    for i in free:
        word = words[i]
        if last is not None and _same_line(last, word):
            apart = word.x0 - last.x1 > WIDE_GAP * max(word.height, last.height)
            # The gap after a bullet or number at the start of a line is no border.
            if apart and not (len(lines[-1]) == 1 and len(lines[-1][0]) == 1 and _MARK.fullmatch(last.text)):
                lines[-1].append([i])
            else:
                lines[-1][-1].append(i)
        else:
            lines.append([[i]])
        last = word
    return lines


def _same_line(left: Word, right: Word) -> bool:
    return right.x0 >= left.x0 and abs(left.y0 - right.y0) < 0.35 * max(left.height, right.height)


def _aligned(words: Sequence[Word], above: list[list[int]], below: list[list[int]]) -> bool:
    """Whether two lines next to each other share at least two left edges."""
    first, second = words[above[0][0]], words[below[0][0]]
    if not 0 < first.y0 - second.y0 < 3 * max(first.height, second.height):
        return False
    edges = [words[cell[0]].x0 for cell in above]
    return sum(any(abs(words[cell[0]].x0 - edge) <= _NEAR for edge in edges) for cell in below) >= 2


def _column_starts(words: Sequence[Word], run: Sequence[list[list[int]]]) -> list[float]:
    starts: list[float] = []
    for x in sorted(words[cell[0]].x0 for cells in run for cell in cells):
        if not starts or x - starts[-1] > 2 * _NEAR:
            starts.append(x)
    return starts


def _in_columns(words: Sequence[Word], cells: list[list[int]], starts: Sequence[float]) -> list[str]:
    row = [""] * len(starts)
    for cell in cells:
        column = max(bisect.bisect_right(starts, words[cell[0]].x0 + _NEAR) - 1, 0)
        text = text_of([words[i] for i in cell])
        row[column] = f"{row[column]} {text}".strip()
    return row
