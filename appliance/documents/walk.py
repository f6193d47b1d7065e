"""Owns the finding of files below the paths that a user names, and the reading of their bytes.

Must not know what is done with them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from appliance.documents.formats.detect import by_name, why_not
from appliance.documents.ocr_tesseract import NOT_INSTALLED, installed
from appliance.errors import TooLarge, UnreadableDocument

_PAGE_BYTES = 16 << 10  # an image of less is an icon or a drawing: the scan of a page has more


class FoundFile(msgspec.Struct, frozen=True):
    """A file to ingest, or a path that cannot be and why."""

    path: str  # as the system knows it; may hold bytes that are not UTF-8
    source: str  # absolute, printable: the document's identity
    name: str  # file name, printable
    problem: str = ""  # "": it can be tried
    status: Literal["", "failed", "skipped"] = ""  # what the problem makes of it


def find_files(paths: Sequence[str | Path]) -> Iterator[FoundFile]:
    """Files below `paths` in a fixed order.

    Folders are read to any depth. In them, names that begin with a dot are passed over in silence; other
    kinds of file than can be read are `skipped`, as are pipes and devices, which are never opened. What the
    user named outright is `failed` when it cannot be read. Symbolic links are followed; a loop is `failed`,
    a folder that was read already is `skipped`.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        yield from _find(os.path.abspath(path), seen, (), named=True)  # noqa: PTH100 - keeps links and odd bytes


def read_file(found: FoundFile, most_bytes: int) -> bytes:
    """The bytes of a file.

    Raises:
        TooLarge: it has more than `most_bytes`; it was not read.
        UnreadableDocument: it is gone, empty, not allowed to be read or no regular file.
    """
    try:
        # Not blocking: a pipe that took the file's place must not hang the program.
        handle = os.open(found.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise UnreadableDocument(_reason(error)) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableDocument(f"It is {_kind(status.st_mode)}, not a file.")
        if status.st_size > most_bytes:
            raise TooLarge(
                f"It has {status.st_size / (1 << 20):.0f} MB; at most {most_bytes / (1 << 20):.0f} MB are read.",
                remedy="Split it, or raise documents.max_file_bytes.",
            )
        if status.st_size == 0:
            raise UnreadableDocument("It is empty.")
        with os.fdopen(os.dup(handle), "rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise UnreadableDocument(_reason(error)) from error
    finally:
        os.close(handle)
    if len(data) > most_bytes:
        raise TooLarge("It grew while it was read.")
    return data


def _find(
    path: str, seen: set[tuple[int, int]], above: tuple[tuple[int, int], ...], *, named: bool
) -> Iterator[FoundFile]:
    try:
        status = os.stat(path)  # noqa: PTH116 - paths may hold bytes that are not UTF-8
    except OSError as error:
        yield _found(path, _reason(error), "failed")
        return
    if stat.S_ISDIR(status.st_mode):
        yield from _find_in_folder(path, (status.st_dev, status.st_ino), seen, above, named=named)
    elif not stat.S_ISREG(status.st_mode):
        yield _found(path, f"It is {_kind(status.st_mode)}, not a file.", "failed" if named else "skipped")
    elif reason := why_not(path) or ("" if named else _why_passed_over(path, status.st_size)):
        yield _found(path, reason, "failed" if named else "skipped")
    else:
        yield _found(path, "", "")


def _why_passed_over(path: str, size_bytes: int) -> str:
    """Why an image of a folder is not read, unless it is named outright."""
    if by_name(path) != "image":
        return ""
    if not installed():
        return f"It is an image. {NOT_INSTALLED}"
    return "It is a small image; named by itself it is read." if size_bytes < _PAGE_BYTES else ""


def _find_in_folder(
    path: str,
    identity: tuple[int, int],
    seen: set[tuple[int, int]],
    above: tuple[tuple[int, int], ...],
    *,
    named: bool,
) -> Iterator[FoundFile]:
    if identity in above:
        yield _found(path, "It is a symbolic link back to a folder that it is in.", "failed")
        return
    if identity in seen:
        yield _found(path, "It is a folder that was read already.", "skipped")
        return
    seen.add(identity)
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208 - see above
    except OSError as error:
        yield _found(path, _reason(error), "failed")
        return
    names = [name for name in names if not name.startswith(".")]
    if named and not names:
        yield _found(path, "It is an empty folder.", "failed")
    for name in names:
        yield from _find(os.path.join(path, name), seen, (*above, identity), named=False)  # noqa: PTH118


def _found(path: str, problem: str, status: Literal["", "failed", "skipped"]) -> FoundFile:
    source = os.fsencode(path).decode("utf-8", "backslashreplace")
    return FoundFile(path, source, source.rpartition("/")[2], problem, status)


def _reason(error: OSError) -> str:
    reasons = {
        errno.ENOENT: "It does not exist.",
        errno.EACCES: "It may not be read by this user.",
        errno.EPERM: "It may not be read by this user.",
        errno.ELOOP: "It is a symbolic link that leads back to itself.",
        errno.ENAMETOOLONG: "Its path is too long.",
        errno.EIO: "The disk could not read it.",
        errno.ENXIO: "It is a device or socket, not a file.",
    }
    return reasons.get(error.errno or 0, f"It cannot be read: {error.strerror}.")


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a folder" if stat.S_ISDIR(mode) else "a device"
