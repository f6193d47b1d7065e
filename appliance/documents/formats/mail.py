"""Owns what a message becomes, whatever file it was in: its head as text, its body, its attachments as sections.

Must not know EML or MSG. Attachments are read by the readers of their own formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath

import msgspec

from appliance.documents.decode import decode_labelled
from appliance.documents.formats import parse
from appliance.documents.formats.detect import by_name
from appliance.documents.formats.html import blocks_of, text_of
from appliance.documents.formats.text import paragraphs
from appliance.documents.losses import image_skipped, inside
from appliance.documents.model import Block, clean, one_line
from appliance.documents.ocr import Ocr
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

FIELDS = ("From", "To", "Cc", "Date", "Subject")
# Extension for an attachment whose name has none.
_EXTENSIONS = {
    "application/pdf": ".pdf",
    "application/json": ".json",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "message/rfc822": ".eml",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
}
_LETTERS = re.compile(r"\w")
_SAYS_THE_SAME = 0.8  # of the plain body's letters: an HTML body with fewer leaves something out


class Text(msgspec.Struct, frozen=True):
    """A body as it came; `label` is the encoding that the message names."""

    data: bytes
    label: str = ""


class Attachment(msgspec.Struct, frozen=True):
    """A file that came with a message."""

    name: str
    media_type: str
    data: bytes


class Body(msgspec.Struct, frozen=True):
    """A text that the message shows, in plain text, in HTML or in both; several pieces follow each other."""

    plain: Sequence[Text] = ()
    html: Sequence[Text] = ()


class Message(msgspec.Struct):
    """A message; `parts` are in its order."""

    head: dict[str, str]  # of `FIELDS`, those that it has
    bodies: list[Body] = []
    parts: list[Attachment | Message] = []
    unread: list[Loss] = []  # parts that could not be taken out
    images: int = 0  # that its text shows

    @property
    def title(self) -> str:
        """Its subject."""
        return self.head.get("Subject", "")


class Reading:
    """Turns a message into blocks, and gathers what it lost. The first body's encoding is the document's."""

    def __init__(self, ocr: Ocr) -> None:
        """`ocr` reads the scanned pages of attachments."""
        self._ocr = ocr
        self.losses: list[Loss] = []
        self.encoding: str | None = None

    def blocks(self, message: Message, level: int = 1) -> list[Block]:
        """The blocks of a message whose attachments are headings of that level."""
        lines = [f"{name}: {message.head[name]}" for name in FIELDS if message.head.get(name)]
        blocks = [Block("paragraph", "\n".join(lines))] if lines else []
        for body in message.bodies:
            blocks += deeper(self._body(body), level - 1)
        self.losses += [*image_skipped(message.images), *message.unread]
        for part in message.parts:
            blocks += self._attached(part, level) if isinstance(part, Attachment) else self._forwarded(part, level)
        return blocks

    def _body(self, body: Body) -> list[Block]:
        """The HTML form, which has tables and headings, unless it says less than the plain one."""
        plain, html = _read(body.plain, _of_plain), _read(body.html, _of_html)
        taken = html if html.blocks and _letters(html.blocks) >= _letters(plain.blocks) * _SAYS_THE_SAME else plain
        self.encoding = self.encoding or taken.encoding
        self.losses += taken.losses
        return taken.blocks

    def _attached(self, part: Attachment, level: int) -> list[Block]:
        name = one_line(part.name) or "attachment"
        typed = name if by_name(name) else name + _EXTENSIONS.get(part.media_type, "")
        if by_name(typed) is None:
            self.losses.append(Loss("attachment_unread", f"{name}: files of this kind are not read"))
            return []
        try:
            parsed = parse(typed, part.data, self._ocr)
        except UnreadableDocument as error:
            self.losses.append(Loss("attachment_unread", f"{name}: {error.message}"))
            return []
        except RecursionError:
            self.losses.append(Loss("attachment_unread", f"{name}: It is nested too deeply."))
            return []
        self.losses += inside(name, parsed.losses)
        heading = name if parsed.title in ("", PurePath(name).stem) else f"{name}: {parsed.title}"
        return [Block("heading", heading, level=level), *deeper(parsed.blocks, level)]

    def _forwarded(self, part: Message, level: int) -> list[Block]:
        blocks = self.blocks(part, level + 1)
        return [Block("heading", part.title or "message", level=level), *blocks] if blocks else []


class _Read(msgspec.Struct):
    blocks: list[Block] = []
    encoding: str | None = None
    losses: list[Loss] = []


def _read(texts: Iterable[Text], reader: Callable[[Text, _Read], None]) -> _Read:
    read = _Read()
    for text in texts:
        if text.data.strip():
            try:
                reader(text, read)
            except UnreadableDocument as error:
                read.losses.append(Loss("attachment_unread", f"a text of the message: {error.message}"))
    return read


def _of_plain(body: Text, into: _Read) -> None:
    text, into.encoding, losses = decode_labelled(body.data, body.label)
    into.losses += losses
    into.blocks += [Block("paragraph", paragraph) for paragraph in paragraphs(clean(text))]


def _of_html(body: Text, into: _Read) -> None:
    text, into.encoding, losses = text_of(body.data, body.label)
    into.losses += losses
    into.blocks += blocks_of(text, into.losses)


def deeper(blocks: Iterable[Block], levels: int) -> list[Block]:
    """`blocks` with their headings so many levels deeper."""
    if not levels:
        return list(blocks)
    return [
        msgspec.structs.replace(block, level=block.level + levels) if block.kind == "heading" else block
        for block in blocks
    ]


def _letters(blocks: Sequence[Block]) -> int:
    return sum(len(_LETTERS.findall(block.text)) for block in blocks)
