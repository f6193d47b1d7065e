"""Owns what the readers of documents need of text recognition: a picture goes in, paragraphs come out, or why not.

Must not know the program that does it (`ocr_tesseract`), nor in which files pictures are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from appliance.documents.model import Block
from appliance.store.records import Loss

_DOUBTFUL = 70.0  # percent; a page below is named


class Picture(msgspec.Struct, frozen=True):
    """A page in grey: `width` × `height` bytes, row by row, 0 is black."""

    width: int
    height: int
    pixels: bytes
    dpi: int = 0  # 0: unknown


class Recognised(msgspec.Struct, frozen=True):
    """The text of a picture; no paragraphs: there is none in it."""

    paragraphs: Sequence[str]
    confidence: float  # percent, mean over its words
    languages: str  # as tesseract names them, such as "chi_sim+eng"
    left_out: int = 0  # pieces that are more likely stains than text


class Unrecognised(Exception):
    """A picture was not read; the message says why and what to do, "" where there is nothing to say."""


class Ocr(Protocol):
    """Reads pictures. For one document."""

    def read(self, picture: Callable[[], Picture]) -> Recognised:
        """The text of a picture, which is made only if it will be read.

        Raises:
            Unrecognised: recognition is off, not there, failed, or the document has too many pictures.
        """


class NoOcr:
    """Reads nothing."""

    def __init__(self, why: str = "") -> None:
        self._why = why

    def read(self, picture: Callable[[], Picture]) -> Recognised:
        """Never."""
        raise Unrecognised(self._why)


class Reading:
    """The recognised pages of one document, with what is to be told of them."""

    def __init__(self, ocr: Ocr) -> None:
        self._ocr = ocr
        self._pages: list[Recognised] = []
        self.losses: list[Loss] = []
        self.hint = ""  # what would have made unread pages readable

    def page(self, picture: Callable[[], Picture], number: int) -> list[Block]:
        """The blocks of a page that is a picture; none, and a loss, where it is not read."""
        try:
            found = self._ocr.read(picture)
        except Unrecognised as error:
            self.hint = str(error)
            detail = f"the page is an image, such as a scan. {self.hint}".strip(". ")
            self.losses.append(Loss("page_without_text", detail, number))
            return []
        if not found.paragraphs:
            self.losses.append(Loss("page_without_text", "no text was recognised in the image", number))
            return []
        self._pages.append(found)
        if found.confidence < _DOUBTFUL or found.left_out:
            left_out = f"; {found.left_out} pieces are left out" if found.left_out else ""
            detail = f"recognised with a confidence of {found.confidence:.0f} %{left_out}"
            self.losses.append(Loss("text_doubtful", detail, number))
        return [Block("paragraph", text, page=number) for text in found.paragraphs]

    def summary(self) -> Iterable[Loss]:
        """One line about all recognised pages."""
        if self._pages:
            confidence = sum(page.confidence for page in self._pages) / len(self._pages)
            yield Loss(
                "text_recognised",
                f"{len(self._pages)} pages are images; their text was recognised as {self._pages[0].languages}, "
                f"with a confidence of {confidence:.0f} %",
            )
