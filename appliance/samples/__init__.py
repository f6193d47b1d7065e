"""Owns the sample manuals that ship with the appliance, and the questions that they answer.

Must not know how a document is parsed or a question answered.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent
SUFFIXES = (".pdf", ".docx", ".html", ".md")


class SampleQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One question about the sample manuals, as a technician would put it.

    Attributes:
        id: stable name, `en-01`, `zh-u1`.
        lang: `en` or `zh`.
        question: the question.
        answerable: whether a sample manual answers it; if not, the fields below are empty.
        answer: a short text that occurs literally at that place of the document.
        document: the file name in this folder.
        page: page of the PDF, counted from 1; None for formats without pages.
        heading: the heading that the answer stands under, without the headings above it.
    """

    id: str
    lang: str
    question: str
    answerable: bool
    answer: str = ""
    document: str = ""
    page: int | None = None
    heading: str = ""


class _Questions(msgspec.Struct, forbid_unknown_fields=True):
    questions: list[SampleQuestion]


def manuals() -> list[Path]:
    """The sample manuals, by name."""
    return sorted(path for path in FOLDER.iterdir() if path.suffix in SUFFIXES)


def questions() -> list[SampleQuestion]:
    """The questions of `questions.toml`, in the file's order."""
    text = (FOLDER / "questions.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Questions).questions
