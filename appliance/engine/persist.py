"""Owns saved prefixes on the disk: the format of a file, which files fit this model and build, the byte budget.

Must not know the radix tree or llama.cpp. Everything here is derived: a file that is damaged, or of another model,
build or KV type, is deleted and counted, never used. Files are written beside and renamed, by a thread of their own:
a slow disk delays no token. They hold what prompts say, in another form, so only their owner may read them.

    "APKV0001"  u32 length of the header  header (msgpack)  BLAKE2b-128 of all before  KV bytes
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

MAGIC = b"APKV0001"
SUFFIX = ".kv"
_LENGTH = struct.Struct(">I")
_DIGEST_BYTES = 16
_MOST_HEADER_BYTES = 64 << 20
_QUEUED = 4  # writes that may wait for the disk; more are not taken

_log = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True):
    """What KV bytes are good for: the very model, build and cell type that made them."""

    model_sha256: str
    build: str
    kv_type: str


class Header(msgspec.Struct, frozen=True):
    """What a file holds: KV of the positions `[start, len(tokens))` of a prefix that begins with `tokens`."""

    identity: Identity
    label: str
    start: int
    tokens: tuple[int, ...]
    pinned: bool
    size: int
    digest: bytes  # BLAKE2b-128 of the KV bytes


@dataclass(slots=True)
class PersistStats:
    """What happened to files since the start."""

    written: int = 0
    refused: int = 0  # damaged, or of another model, build or KV type
    dropped: int = 0  # for the byte budget
    failed: int = 0  # could not be written


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A range in a file; nothing of its KV is in memory."""

    path: Path
    header: Header
    offset: int
    stats: PersistStats = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of memory: none."""
        return 0

    @property
    def start(self) -> int:
        """First position."""
        return self.header.start

    @property
    def end(self) -> int:
        """Position after the last."""
        return len(self.header.tokens)

    def read(self) -> bytes | None:
        """The KV bytes; None, and the file is deleted, if they are not what was written."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(self.header.size + 1)
        except FileNotFoundError:  # the budget took it
            return None
        except OSError as error:
            _log.warning("%s cannot be read: %s", self.path.name, error)
            return None
        if len(data) == self.header.size and _digest(data) == self.header.digest:
            os.utime(self.path)
            return data
        self.stats.refused += 1
        self.path.unlink(missing_ok=True)
        return None


class PrefixFiles:
    """The folder of one engine. Calls return at once; `close` waits for what is being written."""

    def __init__(self, folder: Path, identity: Identity, most_bytes: int) -> None:
        self._folder = folder
        self._identity = identity
        self._most = most_bytes
        self.stats = PersistStats()
        self._writes: queue.Queue[tuple[Header, bytes] | None] = queue.Queue(_QUEUED)
        self._writer = threading.Thread(target=self._write_all, name="prefix files", daemon=True)
        self._writer.start()

    def load(self) -> list[SavedFile]:
        """The files that fit, those that others build on first. All others of the folder are deleted."""
        found = []
        for path in self._paths():
            saved = self._open(path) if path.suffix == SUFFIX else None  # else: a write that did not end
            if saved is None:
                self.stats.refused += 1
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                found.append(saved)
        return sorted(found, key=lambda saved: (saved.start, -saved.end))

    def write(self, label: str, tokens: Sequence[int], start: int, data: bytes, *, pinned: bool) -> bool:
        """Write a range in the background; False if too many wait already, or it is over the budget."""
        if len(data) > self._most:
            return False
        header = Header(self._identity, label, start, tuple(tokens), pinned, len(data), _digest(data))
        try:
            self._writes.put_nowait((header, data))
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Let the writes that wait end; the object can't be used afterwards."""
        self._writes.put(None)
        self._writer.join()

    def _paths(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):
            yield from (path for path in self._folder.iterdir() if path.suffix in (SUFFIX, ".part"))

    def _open(self, path: Path) -> SavedFile | None:
        try:
            with path.open("rb") as file:
                magic = file.read(len(MAGIC) + _LENGTH.size)
                (length,) = _LENGTH.unpack(magic[len(MAGIC) :])
                if not magic.startswith(MAGIC) or length > _MOST_HEADER_BYTES:
                    return None
                body = file.read(length)
                digest = file.read(_DIGEST_BYTES)
                size = os.fstat(file.fileno()).st_size
            if _digest(magic + body) != digest:
                return None
            header = msgspec.msgpack.decode(body, type=Header)
        except (OSError, struct.error, msgspec.MsgspecError):
            return None
        offset = len(MAGIC) + _LENGTH.size + length + _DIGEST_BYTES
        fits = header.identity == self._identity and 0 <= header.start < len(header.tokens)
        return SavedFile(path, header, offset, self.stats) if fits and size == offset + header.size else None

    def _write_all(self) -> None:
        while (item := self._writes.get()) is not None:
            try:
                self._write(*item)
                self.stats.written += 1
            except OSError as error:
                self.stats.failed += 1
                _log.warning("a prefix could not be saved: %s", error)

    def _write(self, header: Header, data: bytes) -> None:
        body = msgspec.msgpack.encode(header)
        head = MAGIC + _LENGTH.pack(len(body)) + body
        name = hashlib.blake2b(
            msgspec.msgpack.encode((header.identity, header.label, header.start, header.tokens)), digest_size=16
        ).hexdigest()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop_oldest(len(head) + len(data))
        path, part = self._folder / f"{name}{SUFFIX}", self._folder / f"{name}.part"
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines((head, _digest(head), data))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _drop_oldest(self, needed: int) -> None:
        files = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in self._paths())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total + needed <= self._most:
                break
            path.unlink(missing_ok=True)
            total -= size
            self.stats.dropped += 1


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
