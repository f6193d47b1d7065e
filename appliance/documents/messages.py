"""Owns what is said between the program and its parse worker: length-prefixed msgpack over two pipes.

Must not know what reading a document means.
"""

from __future__ import annotations

import struct
from typing import IO, TypeVar

import msgspec

from appliance.documents.model import Parsed

_LENGTH = struct.Struct(">Q")
T = TypeVar("T", bound=msgspec.Struct)


class TooLong(ValueError):
    """A message is longer than may be held."""


class Limits(msgspec.Struct, frozen=True):
    """What the reading of one document may take."""

    memory_bytes: int  # address space of the worker
    cpu_s: float
    output_bytes: int  # of the reply
    ocr_pages: int = 0  # images whose text is recognised; 0: none
    ocr_page_s: float = 0.0  # for each of them, besides


class ParseRequest(msgspec.Struct, frozen=True):
    """Read this."""

    name: str  # its extension names the format
    data: bytes
    limits: Limits


class ParseReply(msgspec.Struct, frozen=True):
    """What came of it: one is set."""

    parsed: Parsed | None = None
    failure: str | None = None
    read_ms: float = 0.0  # by the worker's own clock
    more_time: bool = False  # nothing yet: the text of an image is recognised next, which takes `ocr_page_s` more


def too_much_text(most_bytes: int) -> str:
    """What is said of a document whose reply would be longer than that."""
    return (
        f"It holds more than {most_bytes / (1 << 20):g} MB of text. Split it, or raise documents.max_text_bytes "
        "(it is held in memory)."
    )


def send(stream: IO[bytes], message: msgspec.Struct) -> int:
    """Write a message; returns its length in bytes."""
    body = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()
    return len(body)


def receive(stream: IO[bytes], kind: type[T], most_bytes: int) -> T | None:
    """Read a message; None when the other side has closed.

    Raises:
        TooLong: it is longer than `most_bytes`; it was not read.
        ValueError: it is not a message of that kind.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > most_bytes:
        raise TooLong(f"a message of {length} bytes is too long")
    body = stream.read(length)
    if len(body) < length:
        return None
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
