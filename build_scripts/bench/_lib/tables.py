"""Owns how figures are written: Markdown tables that a terminal shows as well.

Must not know what the figures are of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .figures import Spread


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first row being its head; columns are padded."""
    widths = [max(3, *(len(row[place]) for row in rows)) for place in range(len(rows[0]))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Three digits, or as many as stand before the point."""
    if math.isnan(value):
        return "–"
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{min(3, max(0, 2 - magnitude))}f}"


def spread_text(value: Spread) -> str:
    """A median with its spread, if there is one."""
    if value.least == value.most or math.isnan(value.median):
        return number(value.median)
    return f"{number(value.median)} ({number(value.least)}–{number(value.most)})"


def rounds_text(count: int) -> str:
    """How many rounds there were."""
    return f"{count} round{'s' if count > 1 else ''}"
