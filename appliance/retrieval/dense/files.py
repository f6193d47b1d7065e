"""Owns how index files are written so that a crash at any moment leaves a whole state, and how they are believed.

Must not know what is in them.

    <folder>/manifest-<number>.json     names all that belongs to it, with sizes and checksums; the newest one counts
    <folder>/<what>-<random>/           a directory that its header describes; never changed
    <folder>/<what>-<random>            a file of one manifest
    <folder>/*.tmp                      a write that did not end; removed with the next manifest

Everything is written beside, synced and renamed before a manifest names it. A manifest takes the number after the one
that its writer last saw, and takes it only if nobody else has: a handle that fell behind cannot write any more.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.durable import sync

_MANIFEST = "manifest-"
_BLOCK = 1 << 20
S = TypeVar("S")


class Overtaken(RuntimeError):
    """Another handle wrote a newer index; this one must not write any more."""


class FileRef(msgspec.Struct, frozen=True):
    """A file as whoever names it saw it."""

    name: str
    size_bytes: int
    crc: int


class _Checked(msgspec.Struct, frozen=True):
    crc: int
    body: msgspec.Raw


def encode_checked(body: object) -> bytes:
    """`body` as JSON with its checksum."""
    raw = msgspec.json.encode(body)
    return msgspec.json.encode(_Checked(zlib.crc32(raw), msgspec.Raw(raw)))


def decode_checked(data: bytes, kind: type[S]) -> S:
    """What `encode_checked` made.

    Raises:
        ValueError: it is something else, or damaged.
    """
    try:
        checked = msgspec.json.decode(data, type=_Checked)
        if zlib.crc32(bytes(checked.body)) != checked.crc:
            raise ValueError("the checksum differs")
        return msgspec.json.decode(checked.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def new_name(what: str) -> str:
    """A name that nothing has, not even what a crash left behind."""
    return f"{what}-{secrets.token_hex(6)}"


def write_synced(path: Path, data: bytes | memoryview[int]) -> FileRef:
    """Write a new file and have it on the disk."""
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return FileRef(path.name, len(data), zlib.crc32(data))


def refer_synced(path: Path) -> FileRef:
    """Have a file that a library wrote on the disk; its size and checksum."""
    sync(path)
    return FileRef(path.name, path.stat().st_size, crc_of(path))


def place(beside: Path, final: Path) -> None:
    """Rename a synced file or directory to its name, and have that on the disk."""
    if beside.is_dir():
        sync(beside)
    beside.rename(final)
    sync(final.parent)


def crc_of(path: Path) -> int:
    """The checksum of a whole file."""
    crc = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def has_size(folder: Path, ref: FileRef) -> bool:
    """Whether the file is there and as long as it was: what can be told without reading it."""
    try:
        return (folder / ref.name).stat().st_size == ref.size_bytes
    except OSError:
        return False


def is_whole(folder: Path, ref: FileRef) -> bool:
    """Whether the file is what it was, read from end to end."""
    try:
        return has_size(folder, ref) and crc_of(folder / ref.name) == ref.crc
    except OSError:
        return False


def manifest_numbers(folder: Path) -> list[int]:
    """The numbers of the manifests there are, newest first."""
    numbers = [path.stem.removeprefix(_MANIFEST) for path in folder.glob(f"{_MANIFEST}*.json")]
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def read_manifest(folder: Path, number: int, kind: type[S]) -> S | None:
    """A manifest; None if it is not whole."""
    try:
        return decode_checked(_manifest(folder, number).read_bytes(), kind)
    except (OSError, ValueError):
        return None


def publish(folder: Path, number: int, body: object) -> None:
    """Make `body` the manifest of that number.

    Raises:
        Overtaken: there is one of that number or a newer one.
        OSError: the disk is full or not writable; the manifest before still counts.
    """
    if any(found >= number for found in manifest_numbers(folder)):
        raise Overtaken
    beside = folder / f"{_MANIFEST}{number}-{os.getpid()}.tmp"
    beside.unlink(missing_ok=True)
    write_synced(beside, encode_checked(body))
    try:
        os.link(beside, _manifest(folder, number))  # unlike a rename it fails where there is one
    except FileExistsError:
        raise Overtaken from None
    finally:
        beside.unlink()
    sync(folder)


def clean(folder: Path, number: int, kept: Iterable[str]) -> None:
    """Remove what the manifest of `number` does not name: older manifests, their files, writes that did not end."""
    names = {_manifest(folder, number).name, *kept}
    for path in folder.iterdir():
        if path.name in names:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _manifest(folder: Path, number: int) -> Path:
    return folder / f"{_MANIFEST}{number}.json"
