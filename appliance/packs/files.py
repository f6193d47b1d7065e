"""Owns the careful handling of model files: hashing, writing beside and renaming, one writer at a time.

Must not know packs or sources.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from appliance.durable import sync
from appliance.errors import ApplianceError, DiskFull, ModelCorrupt, ModelMissing

READ_BYTES = 1 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
MODELS_REMEDY = "Run `appliance models pull`."  # of the pack in use: what mends any file of it
PART = ".part"  # suffix of a file that is being written


class ModelsDirUnusable(ApplianceError):
    """The models folder cannot be read or written."""

    code = "models_dir_unusable"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's whole content, in hex; reads 1 MiB at a time and releases the GIL while hashing."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def require_intact(path: Path, sha256: str) -> None:
    """Hash a model file in full; whoever loads one calls this first.

    Raises:
        ModelMissing, ModelCorrupt: it is not there, or not the file whose sum is `sha256`.
    """
    try:
        intact = sha256_of(path) == sha256
    except OSError as error:
        raise ModelMissing(
            f"The model file {path} cannot be read: {error.strerror or error}.", remedy=MODELS_REMEDY
        ) from error
    if not intact:
        raise ModelCorrupt(f"The model file {path} is damaged: its SHA-256 is not {sha256}.", remedy=MODELS_REMEDY)


def copy_stream(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy all of `source`, 1 MiB at a time."""
    while block := source.read(READ_BYTES):
        target.write(block)


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[IO[bytes]]:
    """Write `path` whole or not at all: `<path>.part`, fsync, rename, fsync of the folder.

    Raises:
        DiskFull: there is no room; the part is removed.
    """
    part = path.with_name(path.name + PART)
    with told_plainly(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def told_plainly(path: Path) -> Iterator[None]:
    """Turn an OSError about `path` into an error that can be told to a user."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(
                f"There is no room on the disk for {path}.",
                remedy="Free some space and run the same command again.",
            ) from error
        raise ModelsDirUnusable(
            f"{path} cannot be written: {error.strerror or error}.",
            remedy="Choose another folder with APPLIANCE_MODELS_DIR.",
        ) from error


@contextlib.contextmanager
def one_writer(models_dir: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the folder's lock; another process that pulls is waited for, after `waiting` was called once."""
    with told_plainly(models_dir):
        models_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(models_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
