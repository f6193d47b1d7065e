"""Owns the reading of EML: which parts of a MIME message are its text, and which are attached to it.

Must not know what becomes of either: `formats.mail` does that.
"""

from __future__ import annotations

import email
import email.header
from email.errors import HeaderParseError
from email.message import Message as Part
from typing import Any

from appliance.documents.decode import decode, decode_labelled
from appliance.documents.formats.mail import FIELDS, Attachment, Body, Message, Reading, Text
from appliance.documents.model import Parsed, clean, one_line
from appliance.documents.ocr import NoOcr, Ocr
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

MEDIA_TYPE = "message/rfc822"
_MARKS = frozenset((*map(str.lower, FIELDS), "received", "message-id", "mime-version", "content-type", "return-path"))
_SIGNATURES = frozenset(("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature"))
_SEALED = {
    "multipart/encrypted": "It is encrypted; save it decrypted from the mail program first.",
    "application/pkcs7-mime": "It is encrypted or signed as a whole (S/MIME); save it from the mail program as text.",
}
_SEALED["application/x-pkcs7-mime"] = _SEALED["application/pkcs7-mime"]


def parse(data: bytes, stem: str, ocr: Ocr = NoOcr()) -> Parsed:  # noqa: B008 - has no state
    """Read a message; the title is its subject, each attachment a section.

    Raises:
        UnreadableDocument: it is no message, encrypted, or nested too deeply.
    """
    try:
        part = email.message_from_bytes(data)
        if not _is_message(part):
            raise UnreadableDocument("It is not an email: it has none of the lines that one begins with.")
        if reason := _SEALED.get(part.get_content_type()):
            raise UnreadableDocument(reason)
        message, reading = _message(part), Reading(ocr)
        blocks = reading.blocks(message)
    except RecursionError as error:
        raise UnreadableDocument("It is nested too deeply.") from error
    return Parsed(
        message.title or stem, MEDIA_TYPE, tuple(blocks), encoding=reading.encoding, losses=tuple(reading.losses)
    )


def head_of(part: Any) -> dict[str, str]:
    """The lines of a message's head that are read, decoded, by the names in `FIELDS`."""
    found: dict[str, list[str]] = {}
    for name, value in part.raw_items():
        if text := decoded(str(value)):
            found.setdefault(name.lower(), []).append(text)
    return {name: ", ".join(found[name.lower()]) for name in FIELDS if name.lower() in found}


def decoded(raw: str) -> str:
    """The text of a line of the head, whose bytes beyond ASCII are surrogates."""
    data = raw.encode("utf-8", "surrogateescape")
    try:
        text = raw if raw.isascii() else decode(data)[0]
    except UnreadableDocument:
        text = data.decode("ascii", "replace")
    try:
        pieces = email.header.decode_header(text)
    except HeaderParseError:
        return one_line(text)
    return one_line("".join(piece if isinstance(piece, str) else _piece(piece, label) for piece, label in pieces))


def _piece(data: bytes, label: str | None) -> str:
    try:
        return decode_labelled(data, label)[0] if label else data.decode("raw-unicode-escape")
    except (UnreadableDocument, UnicodeDecodeError):
        return data.decode("ascii", "replace")


def _is_message(part: Part) -> bool:
    return any(name.lower() in _MARKS for name in part.keys())  # noqa: SIM118 - a message is no mapping


def _message(part: Part) -> Message:
    message = Message(head_of(part))
    _add(part, message)
    return message


def _add(part: Part, message: Message) -> None:
    """Sort a part, and what is in it, into `message`."""
    kind = part.get_content_type()
    if kind in _SEALED:
        message.unread.append(Loss("attachment_unread", f"{_name(part) or kind}: {_SEALED[kind]}"))
    elif kind == MEDIA_TYPE and part.is_multipart():
        message.parts.append(_forwarded(part))
    elif kind == "multipart/alternative":
        _add_alternatives(part, message)
    elif kind.startswith("message/") and part.is_multipart():  # a report on delivery: heads alone
        lines = [[f"{name}: {text}" for name, text in head.items()] for head in _children(part)]
        text = "\n\n".join("\n".join(own) for own in lines)
        message.bodies.append(Body([Text(text.encode("utf-8", "replace"), "utf-8")]))
    elif part.is_multipart():
        for child in _children(part):
            _add(child, message)
    elif kind not in _SIGNATURES:
        _add_leaf(part, kind, message)


def _add_leaf(part: Part, kind: str, message: Message) -> None:
    name = _name(part)
    data = _data(part)
    is_text = not name and part.get_content_disposition() != "attachment"
    if kind == "text/html" and is_text:
        message.bodies.append(Body(html=[Text(data, part.get_content_charset() or "")]))
    elif kind in ("text/plain", "text/enriched") and is_text:
        message.bodies.append(Body([Text(data, part.get_content_charset() or "")]))
    elif kind.startswith("image/") and (part["content-id"] or not name):
        message.images += 1
    elif data.strip() or name:
        message.parts.append(Attachment(name or kind, kind, data))


def _add_alternatives(part: Part, message: Message) -> None:
    """One text in several forms; some programs hang attachments below one of them."""
    forms = Message({})
    for child in _children(part):
        _add(child, forms)
    plain = [text for body in forms.bodies for text in body.plain]
    html = [text for body in forms.bodies for text in body.html]
    message.bodies.append(Body(plain, html))
    message.parts += forms.parts
    message.unread += forms.unread
    message.images += forms.images


def _forwarded(part: Part) -> Message | Attachment:
    inner = _children(part)[0]
    if _is_message(inner):
        return _message(inner)
    # Against the rules, but done: a message that is encoded as a whole.
    del inner["content-transfer-encoding"]
    inner["content-transfer-encoding"] = str(part.get("content-transfer-encoding", ""))
    return Attachment(_name(part) or "message.eml", MEDIA_TYPE, _data(inner))


def _children(part: Part) -> list[Part]:
    payload = part.get_payload()
    return [child for child in payload if isinstance(child, Part)] if isinstance(payload, list) else []


def _data(part: Part) -> bytes:
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _name(part: Part) -> str:
    name = part.get_filename()
    return decoded(clean(name)) if name else ""
