"""Owns one cache: memory over the disk, and the thread that waits for the disk.

Must not know what the bytes mean. A disk that hangs costs a question a moment, not its answer.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from appliance.cache.disk import DiskBytes
from appliance.cache.memory import MemoryBytes
from appliance.errors import Unavailable

T = TypeVar("T")
MOST_PENDING: Final = 64  # calls that wait for the disk; more of them: it hangs
WAIT_S: Final = 10.0  # that a deletion waits for it


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A value, and when it was made by the machine's clock (which on site may be set back or forward)."""

    made_s: float
    value: bytes

    def age_s(self, now_s: float) -> float:
        """Seconds since it was made; infinite for one from the future: the clock was wrong, its age is unknown."""
        age = now_s - self.made_s
        return age if age >= 0 else float("inf")


class Figures(msgspec.Struct, frozen=True):
    """What a cache holds and did since the start."""

    entries: int
    memory_bytes: int
    disk_entries: int
    disk_bytes: int
    memory_hits: int
    disk_hits: int
    misses: int
    faults: int  # of the disk: unreadable, locked, full or hanging


class Cache:
    """Bytes by key; what was kept comes back after a restart. For any thread.

    Args:
        folder: of this cache alone; None: memory only.
        memory_bytes: for the entries used last.
        disk_bytes: for all.
        keep_s: how long an entry is kept at most.
        wait_s: that a caller waits for the disk.
    """

    def __init__(
        self, folder: Path | None, *, memory_bytes: int, disk_bytes: int, keep_s: float, wait_s: float
    ) -> None:
        self._memory = MemoryBytes(memory_bytes)
        self._disk = DiskBytes(folder, disk_bytes) if folder is not None and disk_bytes else None
        self._keep_s = keep_s
        self._wait_s = wait_s
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cache") if self._disk else None
        self._lock = threading.Lock()
        self._pending = 0
        self._stuck: Future[Entry | None] | None = None  # a read that took too long
        self._epochs: Counter[str] = Counter()  # deletions of each tag: what was read before one is not kept after it
        self._cleared = self._deletions = 0
        self._memory_hits = self._disk_hits = self._misses = self._hung = 0

    def warm_up(self) -> None:
        """Open the database in the background: the first question need not wait for it."""
        self._submit(DiskBytes.figures)

    def recent(self, key: bytes) -> Entry | None:
        """The entry if it is in memory: never waits."""
        data = self._memory.get(key)
        if data is None:
            return None
        with self._lock:
            self._memory_hits += 1
        return _decoder.decode(data)

    def get(self, key: bytes) -> Entry | None:
        """The entry, from memory or the disk; waits for that for `wait_s` at most."""
        found = self.recent(key)
        if found is not None:
            return found
        if self._stuck is None or self._stuck.done():  # else another one waits in vain already
            read = self._submit(lambda disk: self._read(disk, key))
            if read is not None:
                try:
                    found = read.result(self._wait_s)
                except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
                    self._stuck = read
                    with self._lock:
                        self._hung += 1
        with self._lock:
            self._misses += found is None
            self._disk_hits += found is not None
        return found

    def epoch(self, tag: str) -> int:
        """Another number after each `forget` of that tag; to be read before what a value is made from."""
        with self._lock:
            return self._epochs[tag] + self._cleared

    def put(self, key: bytes, value: bytes, *, tag: str, epoch: int) -> None:
        """Keep a value, made now; on the disk soon. Nothing is kept when `tag` was forgotten since `epoch`."""
        entry = Entry(time.time(), value)
        if self._keep(key, entry, tag, epoch):
            self._submit(lambda disk: self._write(disk, key, entry, tag, epoch))

    def forget(self, tag: str) -> None:
        """Delete all values of that tag; they are gone when this returns.

        Raises:
            Unavailable: they can't be deleted from the disk.
        """
        with self._lock:
            self._epochs[tag] += 1
            self._deletions += 1
            self._memory.forget(tag)
        if not self._wait(lambda disk: disk.forget(tag)):
            raise Unavailable("Cached answers can't be deleted from the disk.", remedy="See whether the disk is sound.")

    def clear(self) -> None:
        """Delete all.

        Raises:
            Unavailable: the disk's part can't be deleted.
        """
        with self._lock:
            self._cleared += 1
            self._deletions += 1
            self._memory.clear()
        if not self._wait(DiskBytes.clear):
            raise Unavailable("The cache can't be deleted from the disk.", remedy="See whether the disk is sound.")

    def figures(self) -> Figures:
        """What it holds and did; blocking."""
        disk_entries = disk_bytes = 0
        counted = self._submit(DiskBytes.figures)
        if counted is not None:
            with contextlib.suppress(concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
                disk_entries, disk_bytes = counted.result(WAIT_S)
        faults = self._disk.faults if self._disk else 0
        with self._lock:
            return Figures(
                entries=len(self._memory),
                memory_bytes=self._memory.used_bytes,
                disk_entries=disk_entries,
                disk_bytes=disk_bytes,
                memory_hits=self._memory_hits,
                disk_hits=self._disk_hits,
                misses=self._misses,
                faults=faults + self._hung,
            )

    def close(self) -> None:
        """Write what is pending and close the database."""
        if self._worker is not None and self._disk is not None:
            self._worker.submit(self._disk.close)
            self._worker.shutdown(wait=True)

    def _keep(self, key: bytes, entry: Entry, tag: str, epoch: int) -> bool:
        with self._lock:
            current = epoch == self._epochs[tag] + self._cleared
            if current:
                self._memory.set(key, _encoder.encode(entry), tag=tag)
            return current

    def _read(self, disk: DiskBytes, key: bytes) -> Entry | None:
        with self._lock:
            deletions = self._deletions
        data = disk.get(key)
        if data is None:
            return None
        try:
            stored = _stored.decode(data)
        except msgspec.DecodeError:
            return None  # of another version
        with self._lock:
            if deletions == self._deletions:  # else it may be what was deleted: not to be kept, though it was there
                self._memory.set(key, _encoder.encode(stored.entry), tag=stored.tag)
        return stored.entry

    def _write(self, disk: DiskBytes, key: bytes, entry: Entry, tag: str, epoch: int) -> None:
        if epoch == self.epoch(tag):
            disk.set(key, _encoder.encode(_Stored(tag, entry)), tag=tag, expire_s=self._keep_s)

    def _submit(self, work: Callable[[DiskBytes], T]) -> Future[T] | None:
        """Have the disk's thread do something; None: there is no disk, or it hangs."""
        if self._worker is None or self._disk is None:
            return None
        with self._lock:
            if self._pending >= MOST_PENDING:
                self._hung += 1
                return None
            self._pending += 1
        future: Future[T] = self._worker.submit(work, self._disk)
        future.add_done_callback(self._done)
        return future

    def _wait(self, work: Callable[[DiskBytes], bool]) -> bool:
        """Have the disk's thread do something that must be done."""
        if self._worker is None or self._disk is None:
            return True
        try:
            return self._worker.submit(work, self._disk).result(WAIT_S)
        except concurrent.futures.TimeoutError:
            return False

    def _done(self, _: Future[T]) -> None:
        with self._lock:
            self._pending -= 1


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    tag: str
    entry: Entry


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)
_stored = msgspec.msgpack.Decoder(_Stored)
