"""Owns the reading of MSG, Outlook's file of a message: the properties that hold its head, texts and attachments.

Must not know what becomes of these: `formats.mail` does that. Source of the numbers: Microsoft's [MS-OXMSG] and
[MS-OXPROPS].
"""

from __future__ import annotations

import email
import io
import struct
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from appliance.documents.decode import decode_labelled
from appliance.documents.formats.eml import head_of
from appliance.documents.formats.mail import Attachment, Body, Message, Reading, Text
from appliance.documents.model import Parsed, one_line
from appliance.documents.ocr import NoOcr, Ocr
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

if TYPE_CHECKING:
    from olefile import OleFileIO

MEDIA_TYPE = "application/vnd.ms-outlook"
PROPERTIES = "__properties_version1.0"
_INTEGER, _UNICODE, _BYTES, _BINARY, _OBJECT = 0x03, 0x1F, 0x1E, 0x102, 0x0D  # types of properties
_CLASS, _SUBJECT, _SENT, _HEADERS = 0x1A, 0x37, 0x39, 0x7D
_FROM_NAME, _FROM_ADDRESS, _FROM_SMTP, _CC, _TO, _DELIVERED = 0xC1A, 0xC1F, 0x5D01, 0xE03, 0xE04, 0xE06
_PLAIN, _RTF, _HTML = 0x1000, 0x1009, 0x1013
_DATA, _LABEL, _SHORT_NAME, _METHOD, _NAME, _MEDIA_TYPE, _CONTENT_ID = (
    0x3701, 0x3001, 0x3704, 0x3705, 0x3707, 0x370E, 0x3712,
)  # fmt: skip
_CODE_PAGE, _BODY_CODE_PAGE = 0x3FFD, 0x3FDE
_PAGES = {65001: "utf-8", 20127: "", 28591: "iso-8859-1", 54936: "gb18030", 20866: "koi8-r", 50220: "iso2022_jp"}
_BY_REFERENCE = range(2, 5)
_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)
_HEADER_BYTES = {"message": 32, "forwarded": 24, "attachment": 8}  # of the properties, before the first of them
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error)
Path = tuple[str, ...]


def parse(data: bytes, stem: str, ocr: Ocr = NoOcr()) -> Parsed:  # noqa: B008 - has no state
    """Read a message; the title is its subject, each attachment a section.

    Raises:
        UnreadableDocument: it is damaged, no message, or encrypted.
    """
    from olefile import OleFileIO

    try:
        with OleFileIO(io.BytesIO(data)) as file:
            message = _Folder(_File(file, len(data)), ()).message("message")
    except _DAMAGED as error:
        raise UnreadableDocument(f"It is damaged: {one_line(str(error))}.") from error
    reading = Reading(ocr)
    blocks = reading.blocks(message)
    return Parsed(
        message.title or stem, MEDIA_TYPE, tuple(blocks), encoding=reading.encoding, losses=tuple(reading.losses)
    )


class _File:
    """The compound file: which streams are in which folder of it."""

    def __init__(self, file: OleFileIO, size_bytes: int) -> None:
        self._file = file
        self._left = 2 * size_bytes
        self.streams: dict[Path, set[str]] = defaultdict(set)
        self.folders: dict[Path, dict[str, None]] = defaultdict(dict)
        for entry in file.listdir(streams=True, storages=False):
            self.streams[tuple(entry[:-1])].add(entry[-1])
            for depth in range(len(entry) - 1):
                self.folders[tuple(entry[:depth])][entry[depth]] = None

    def read(self, path: Path) -> bytes:
        data: bytes = self._file.openstream(list(path)).read()
        self._left -= len(data)
        if self._left < 0:
            raise UnreadableDocument("It is damaged: its parts lie over each other.")
        return data


class _Folder:
    """A message or an attachment: a folder with a stream for each long property, and one for all short ones."""

    def __init__(self, file: _File, path: Path) -> None:
        self._file = file
        self._path = path
        self._numbers: dict[int, int] = {}
        self._page = ""

    def message(self, place: str) -> Message:
        """The message that it holds; `place` is one of `_HEADER_BYTES`."""
        self._read_numbers(place)
        if self._text(_CLASS).upper().startswith("IPM.NOTE.SMIME"):
            raise UnreadableDocument("It is encrypted or signed as a whole (S/MIME); save it from Outlook as text.")
        found = Message(self._head())
        plain, html = self._body(_PLAIN), self._body(_HTML)
        if plain or html:
            found.bodies.append(Body(plain, html))
        elif self._has(_RTF, _BINARY):
            found.unread.append(Loss("attachment_unread", "the text of the message, which is saved as RTF alone"))
        for name in sorted(self._file.folders[self._path]):
            if name.startswith("__attach_version1.0_#"):
                _Folder(self._file, (*self._path, name)).attach(found, self._page)
        return found

    def attach(self, message: Message, page: str) -> None:
        """Add what is attached to `message`."""
        self._page = page
        self._read_numbers("attachment")
        name = next((text for pid in (_NAME, _SHORT_NAME, _LABEL) if (text := one_line(self._text(pid)))), "attachment")
        media_type = self._text(_MEDIA_TYPE).lower()
        inner = f"__substg1.0_{_DATA:04X}{_OBJECT:04X}"
        if PROPERTIES in self._file.streams[(*self._path, inner)]:
            try:
                message.parts.append(_Folder(self._file, (*self._path, inner)).message("forwarded"))
            except UnreadableDocument as error:
                message.unread.append(Loss("attachment_unread", f"{name}: {error.message}"))
        elif media_type.startswith("image/") and self._text(_CONTENT_ID):
            message.images += 1
        elif self._has(_DATA, _BINARY):
            message.parts.append(Attachment(name, media_type, self._property(_DATA, _BINARY)))
        else:
            linked = self._numbers.get(_METHOD, 0) in _BY_REFERENCE
            why = "the message has only a link to it" if linked else "it is an object of another program"
            message.unread.append(Loss("attachment_unread", f"{name}: {why}"))

    def _read_numbers(self, place: str) -> None:
        if PROPERTIES not in self._file.streams[self._path]:
            raise UnreadableDocument("It is not a message of Outlook.")
        data = self._file.read((*self._path, PROPERTIES))[_HEADER_BYTES[place] :]
        entries = struct.iter_unpack("<HHIQ", data[: len(data) // 16 * 16])
        self._numbers = {pid: value & 0xFFFFFFFF if kind == _INTEGER else value for kind, pid, _, value in entries}
        self._page = _label(self._numbers.get(_CODE_PAGE)) or self._page

    def _head(self) -> dict[str, str]:
        address = next((text for pid in (_FROM_SMTP, _FROM_ADDRESS) if "@" in (text := self._text(pid))), "")
        name = one_line(self._text(_FROM_NAME))
        head = {
            "From": f"{name} <{address}>" if name and address and name != address else name or address,
            "To": one_line(self._text(_TO)),
            "Cc": one_line(self._text(_CC)),
            "Date": self._date(),
        }
        # What came over a network has these lines, with the addresses of all.
        sent = head_of(email.message_from_string(self._text(_HEADERS)))
        head |= {name: sent[name] for name in head if name in sent}
        subject = one_line(self._text(_SUBJECT))
        return head | {"Subject": subject or sent.get("Subject", "")}

    def _date(self) -> str:
        ticks = self._numbers.get(_SENT) or self._numbers.get(_DELIVERED)
        if not ticks or ticks >> 62:
            return ""
        try:
            return f"{_EPOCH + timedelta(microseconds=ticks // 10):%Y-%m-%d %H:%M} UTC"
        except OverflowError:
            return ""

    def _body(self, pid: int) -> list[Text]:
        for kind, data in self._forms(pid):
            if data.strip(b"\x00 \r\n"):
                page = _label(self._numbers.get(_BODY_CODE_PAGE)) or self._page
                text = data.decode("utf-16-le", "replace").encode("utf-8", "replace") if kind == _UNICODE else data
                return [Text(text, "utf-8" if kind == _UNICODE else page)]
        return []

    def _text(self, pid: int) -> str:
        for kind, data in self._forms(pid):
            if kind == _UNICODE:
                return data.decode("utf-16-le", "replace").rstrip("\x00")
            try:
                return decode_labelled(data.rstrip(b"\x00"), self._page)[0]
            except UnreadableDocument:
                return data.decode("ascii", "replace")
        return ""

    def _forms(self, pid: int) -> Iterator[tuple[int, bytes]]:
        for kind in (_UNICODE, _BYTES, _BINARY):
            if self._has(pid, kind):
                yield kind, self._property(pid, kind)

    def _has(self, pid: int, kind: int) -> bool:
        return f"__substg1.0_{pid:04X}{kind:04X}" in self._file.streams[self._path]

    def _property(self, pid: int, kind: int) -> bytes:
        return self._file.read((*self._path, f"__substg1.0_{pid:04X}{kind:04X}"))


def _label(page: int | None) -> str:
    """The encoding of a Windows code page; "" where none is named or it is not known."""
    return _PAGES.get(page, f"cp{page}") if page else ""
