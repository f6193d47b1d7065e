"""Owns the bytes of documents as they were given: files named by their SHA-256, each once.

Must not know which of them are still needed, nor what is in them.

    originals/ab/abcd…   whole and synced before it has its name; a file without its name is left by a crash
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Set
from pathlib import Path
from typing import BinaryIO

from appliance.durable import sync
from appliance.errors import DiskFull, NotFound, Unavailable

_UNNAMED = "new-"


class Originals:
    """Files by their content. Threads may share it; who drops a file makes sure that nobody adds it meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, data: bytes) -> str:
        """Keep `data`, on disk when this returns; its SHA-256 in hexadecimal.

        Raises:
            DiskFull, Unavailable: it cannot be written.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._path(sha256)
        with contextlib.suppress(OSError):
            if path.read_bytes() == data:
                return sha256
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, unnamed = tempfile.mkstemp(prefix=_UNNAMED, dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(unnamed).replace(path)
            except BaseException:
                Path(unnamed).unlink(missing_ok=True)
                raise
            for folder in (path.parent, self._folder, self._folder.parent):
                sync(folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(
                    f"The disk that holds {self._folder} is full.", remedy="Free some space and try again."
                ) from error
            raise Unavailable(f"The document cannot be kept in {self._folder}: {error}.") from error
        return sha256

    def read(self, sha256: str) -> bytes:
        """The bytes of that sum.

        Raises:
            NotFound: they are not kept, or no longer what they were.
        """
        with self.open(sha256) as file:
            return file.read()

    def open(self, sha256: str) -> BinaryIO:
        """The file of that sum, checked, at its beginning; it can be read to its end though it is dropped meanwhile.

        Raises:
            NotFound: it is not kept, or no longer what it was.
        """
        with contextlib.ExitStack() as closing:
            try:
                file = closing.enter_context(self._path(sha256).open("rb"))
                intact = hashlib.file_digest(file, "sha256").hexdigest() == sha256
                file.seek(0)
            except OSError as error:
                raise NotFound(
                    "The original of this document is not kept.", remedy="Send the document again."
                ) from error
            if not intact:
                raise NotFound(
                    "The original of this document was damaged on the disk.", remedy="Send the document again."
                )
            closing.pop_all()
        return file

    def drop(self, sha256: str) -> None:
        """Delete the bytes of that sum, if they are there."""
        with contextlib.suppress(OSError):
            self._path(sha256).unlink()

    def keep_only(self, needed: Set[str]) -> None:
        """Delete all others, and what a crash left half written."""
        for path in self._folder.glob("??/*"):
            if path.name not in needed:
                with contextlib.suppress(OSError):
                    path.unlink()

    def check(self, needed: Set[str]) -> list[str]:
        """What is wrong, a sentence each: originals that are missing or damaged."""
        faults = []
        for sha256 in sorted(needed):
            try:
                self.read(sha256)
            except NotFound as fault:
                faults.append(f"original {sha256[:12]}…: {fault.message}")
        return faults

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256
