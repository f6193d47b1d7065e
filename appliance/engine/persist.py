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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from appliance.durable import sync

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
        self._writes: queue.Queue[tuple[Header, bytes] | Callable[[], None] | None] = queue.Queue()
        self._writer = threading.Thread(target=self._write_all, name="prefix files", daemon=True)
        self._writer.start()

    def load(self) -> list[SavedFile]:
        """The files that fit, those that others build on first. All others of the folder are deleted."""
        found = []
        for path in _paths(self._folder):
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
        if self._writes.qsize() >= _QUEUED:
            return False
        header = Header(self._identity, label, start, tuple(tokens), pinned, len(data), _digest(data))
        self._writes.put((header, data))
        return True

    def after_writes(self, done: Callable[[], None]) -> None:
        """Call `done`, in another thread, when all that was given to `write` until now is written."""
        self._writes.put(done)

    def close(self) -> None:
        """Let the writes that wait end; the object can't be used afterwards."""
        self._writes.put(None)
        self._writer.join()

    def _open(self, path: Path) -> SavedFile | None:
        header = _header(path)
        if header is None or header[0].identity != self._identity:
            return None
        return SavedFile(path, *header, self.stats)

    def _write_all(self) -> None:
        while (item := self._writes.get()) is not None:
            if callable(item):
                item()
                continue
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
        files = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in _paths(self._folder))
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total + needed <= self._most:
                break
            path.unlink(missing_ok=True)
            total -= size
            self.stats.dropped += 1


def remove_unpinned(folder: Path) -> int:
    """Delete, for good, all files of `folder` but those of pinned prefixes. Returns how many they were.

    Raises:
        OSError: one cannot be deleted.
    """
    gone = 0
    for path in _paths(folder):
        header = _header(path) if path.suffix == SUFFIX else None
        if header is None or not header[0].pinned:
            path.unlink(missing_ok=True)
            gone += 1
    if gone:
        sync(folder)
    return gone


def _paths(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (path for path in folder.iterdir() if path.suffix in (SUFFIX, ".part"))


def _header(path: Path) -> tuple[Header, int] | None:
    """The header of a file that is whole as far as that tells, and where the KV begins."""
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
    whole = 0 <= header.start < len(header.tokens) and size == offset + header.size
    return (header, offset) if whole else None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
