"""Owns how a document is damaged: the same damage for the same generator, whatever came before.

Must not know formats, but that an archive's parts are damaged inside it: its checksums would give away the rest.
"""

from __future__ import annotations

import io
import random
import re
import zipfile
from collections.abc import Callable, Sequence

from .seeds import zipped

_NUMBER = re.compile(rb"\d+")
_VALUES = (b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x00" * 64, "\ufeff泵".encode("utf-16"))
_TOKENS = (
    b"<", b">", b"</table>", b"<table><tr><td>", b"&amp;", b"<!--", b"]]>", b"<![CDATA[", b'"', b"\n\n", b"\r", b",",
    b"=?utf-8?B?", b"--b0\n", b"--b0--\n", b"Content-Type: multipart/mixed; boundary=b0\n\n", b"charset=utf-7",
    b"obj", b"endobj", b"stream\n", b"/Kids [1 0 R]", b"/Count 99999999", b"/Length 1", b"<< /Type /Pages", b"\x1b$B",
)  # fmt: skip
_NUMBERS = (b"0", b"-1", b"1", b"65536", b"2147483647", b"4294967296", b"99999999999999999999", b"1e309", b"NaN")
_REPEATED_MOST = 5_000


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """`data` with one to a few faults; `others` are documents that pieces may come from."""
    if zipfile.is_zipfile(io.BytesIO(data)) and rng.random() < 0.8:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        for name in rng.sample(sorted(parts), min(len(parts), rng.choice((1, 1, 2)))):
            if rng.random() < 0.1:
                del parts[name]
            else:
                parts[name] = _faulty(parts[name], others, rng)
        return zipped(parts)
    return _faulty(data, others, rng)


def _faulty(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        data = rng.choice(_FAULTS)(data, others, rng)
    return data


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + int(rng.expovariate(1 / 40)) + 1)


def _flip(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    start, _ = _span(data, rng)
    value = rng.choice((*_VALUES, rng.randbytes(rng.randrange(1, 20))))
    return data[:start] + value + data[start + len(value) :]


def _insert(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    start, _ = _span(data, rng)
    return data[:start] + rng.choice(_TOKENS) + data[start:]


def _repeat(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 5, 50, _REPEATED_MOST)) + data[end:]


def _delete(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _truncate(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _renumber(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    place = rng.choice(found)
    return data[: place.start()] + rng.choice(_NUMBERS) + data[place.end() :]


def _splice(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    start, end = sorted(rng.randrange(len(other) + 1) for _ in range(2))
    at, _ = _span(data, rng)
    return data[:at] + other[start:end] + data[at:]


_FAULTS: tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...] = (
    _flip, _flip, _overwrite, _insert, _insert, _repeat, _delete, _truncate, _renumber, _renumber, _splice,
)  # fmt: skip
