"""Owns what measurements leave behind: a JSON file of each kind of result, and a section of RESULTS.md.

Must not know what is measured.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.errors import BadRequest

BENCH = Path(__file__).parents[1]
RESULTS = BENCH / "results"
DOCUMENT = BENCH / "RESULTS.md"
_HEAD = """# Measured

Written by the commands of this folder with `--record`; what is measured and how is in [README.md](README.md). Figures
are medians over rounds with the least and the most in brackets; ratios are of ours to the other, taken in each round.
"""

T = TypeVar("T")


def read(path: Path, kind: type[T]) -> T | None:
    """The results in a file; None where there is none.

    Raises:
        BadRequest: it holds something else.
    """
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{path} holds no results of this version: {error}.", remedy="Remove it.") from error


def write(path: Path, results: msgspec.Struct) -> None:
    """Write `results` for people to read changes in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def put_section(document: str, title: str, text: str) -> str:
    """`document` with the section `title` holding `text`; other sections stay as they are and where they are."""
    _, *sections = re.split(r"^## ", document, flags=re.MULTILINE)
    found = dict(section.split("\n", 1) for section in sections)
    found[title] = f"\n{text.strip()}\n"
    return "\n".join([_HEAD, *(f"## {name}\n\n{body.strip()}\n" for name, body in found.items())])


def write_section(title: str, text: str) -> None:
    """Put the section into RESULTS.md."""
    before = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    DOCUMENT.write_text(put_section(before, title, text), encoding="utf-8")
