"""Owns the small markup that the sample texts are written in, and its blocks.

Must not know which file format the blocks become.

A text is a TOML head between `+++` lines, then blocks parted by blank lines::

    # 3 Installation            chapter (starts a page)
    ## 3.1 Siting               section
    WARNING: text               or CAUTION, NOTE, 警告, 注意, 提示 (a full-width colon there)
    1. text                     step; one a line
    - text                      bullet; one a line
    [Table 3: Limits | 30 70]   caption and column widths in percent, above the rows
    | a | b |                   table row; the first is the header
    <<<                         page break
    anything else               paragraph; its lines are joined
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ADMONITIONS = {
    "WARNING": "danger",
    "CAUTION": "care",
    "NOTE": "hint",
    "警告": "danger",
    "注意": "care",
    "提示": "hint",
}
_ADMONITION = re.compile(rf"({'|'.join(ADMONITIONS)})[:\uff1a]\s*(.*)", re.DOTALL)
_CAPTION = re.compile(r"\[(.+?)\s*\|\s*([\d ]+)\]")
_STEP = re.compile(r"(\d+)\.\s+(.*)")


@dataclass(frozen=True)
class Head:
    """What the title page and the running lines show."""

    title: str
    product: str
    subtitle: str
    number: str
    revision: str
    date: str
    serials: str
    maker: str
    language: str
    contents: str
    page: str
    """Footer with `{page}` and `{total}`."""
    labels: tuple[str, str, str]
    """Names of document number, revision and validity on the title page."""
    front: str
    disclaimer: str


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Para:
    text: str


@dataclass(frozen=True)
class Admonition:
    kind: str
    label: str
    text: str


@dataclass(frozen=True)
class Item:
    """A step (`mark` is its number and a point) or a bullet (`mark` is empty)."""

    mark: str
    text: str


@dataclass(frozen=True)
class Table:
    caption: str
    widths: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if sum(self.widths) != 100:
            raise ValueError(f"{self.caption}: the widths sum to {sum(self.widths)}, not 100")
        for row in self.rows:
            if len(row) != len(self.widths):
                raise ValueError(f"{self.caption}: {len(self.widths)} columns, but this row differs: {row}")


@dataclass(frozen=True)
class PageBreak:
    pass


Block = Heading | Para | Admonition | Item | Table | PageBreak


def load(path: Path) -> tuple[Head, list[Block]]:
    """Read one text. Raises ValueError for a table whose rows and widths disagree."""
    _, head, body = path.read_text(encoding="utf-8").split("+++\n", 2)
    fields = tomllib.loads(head)
    fields["labels"] = tuple(fields["labels"])
    made = Head(**fields)
    blocks: list[Block] = []
    # Lines of a Chinese paragraph join without a space, as the script has none.
    joint = "" if made.language.startswith("zh") else " "
    for part in re.split(r"\n\s*\n", body.strip()):
        blocks.extend(_blocks(part.splitlines(), joint))
    return made, blocks


def _blocks(lines: list[str], joint: str) -> list[Block]:
    first = lines[0]
    if first == "<<<":
        return [PageBreak()]
    if first.startswith("#"):
        marks, _, text = first.partition(" ")
        return [Heading(len(marks), text)]
    if first.startswith("["):
        return [_table(lines)]
    if first.startswith("- "):
        return [Item("", line[2:]) for line in lines]
    if _STEP.match(first):
        steps = [_STEP.match(line) for line in lines]
        return [Item(f"{step[1]}.", step[2]) for step in steps if step]
    text = joint.join(lines)
    found = _ADMONITION.fullmatch(text)
    if found:
        return [Admonition(ADMONITIONS[found[1]], found[1], found[2])]
    return [Para(text)]


def _table(lines: list[str]) -> Table:
    found = _CAPTION.fullmatch(lines[0])
    if found is None:
        raise ValueError(f"not a table caption: {lines[0]}")
    rows = tuple(tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[1:])
    return Table(found[1], tuple(int(width) for width in found[2].split()), rows)
