"""Owns cached bytes on the disk: diskcache's table in a folder of ours, without any of its pickling.

Must not know what the bytes mean. Blocking; for one thread, which may be slow: see `tiers`.

diskcache unpickles whatever its database says is a pickle (CVE-2025-69872). Here keys and values are bytes inside the
database, each value behind a checksum; anything else that is found there is deleted unread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diskcache import Cache

MOST_VALUE_BYTES = 1 << 20  # an answer is a few thousand; what is larger is not worth its room
_RETRY_S = 30.0  # after a fault: as long as nothing is asked of the disk
_BUSY_S = 0.25  # that another process may hold the database
_CHECKSUM_BYTES = 4


class Damaged(Exception):
    """What is stored was not written by us."""


class DiskBytes:
    """Bytes by key in `folder`, at most about `limit_bytes` of them: the oldest go first.

    Attributes:
        faults: how often the disk or the database failed; each was a miss.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._cache: Cache | None = None
        self._closed_until = 0.0
        self.faults = 0

    def get(self, key: bytes) -> bytes | None:
        """The value; None: there is none, it is damaged, or it can't be read now."""
        with self._guard():
            cache = self._opened()
            if cache is None:
                return None
            try:
                stored = cache.get(key)
                if stored is None:
                    return None
                return _unsealed(stored)
            except Damaged:
                self.faults += 1
                cache.delete(key)
        return None

    def set(self, key: bytes, value: bytes, *, tag: str, expire_s: float) -> None:
        """Keep a value for a time, if it can be written now. `tag`: see `forget`."""
        if len(value) > MOST_VALUE_BYTES:
            return
        with self._guard():
            cache = self._opened()
            if cache is not None:
                cache.set(key, _sealed(value), expire=expire_s, tag=tag)

    def forget(self, tag: str) -> bool:
        """Delete all values of that tag. False: it can't be done; then nothing may be read any more."""
        with self._guard():
            cache = self._opened(anyway=True)
            if cache is not None:
                cache.evict(tag)
                return True
        return self._destroy()

    def clear(self) -> bool:
        """Delete all. False: it can't be done."""
        self.close()
        return self._destroy()

    def figures(self) -> tuple[int, int]:
        """How many values there are, and bytes on the disk; zeros when they can't be counted now."""
        with self._guard():
            cache = self._opened()
            if cache is not None:
                return len(cache), cache.volume()
        return 0, 0

    def close(self) -> None:
        """Close the database; it is opened again at the next call."""
        if self._cache is not None:
            with contextlib.suppress(Exception):
                self._cache.close()
            self._cache = None

    @contextlib.contextmanager
    def _guard(self) -> Any:
        """Whatever the disk or the library does: a miss."""
        import diskcache

        try:
            yield
        except (OSError, sqlite3.Error, diskcache.Timeout) as error:
            self._fault(damaged=isinstance(error, sqlite3.DatabaseError) and not _is_passing(error))
        except Exception:  # the library meets rows that it never wrote
            self._fault(damaged=True)

    def _fault(self, *, damaged: bool) -> None:
        self.faults += 1
        self.close()
        if damaged:
            self._destroy()
        self._closed_until = time.monotonic() + _RETRY_S

    def _destroy(self) -> bool:
        """A cache that can't be read is worth nothing."""
        self.close()
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        return not self._folder.exists() or not any(self._folder.iterdir())

    def _opened(self, *, anyway: bool = False) -> Cache | None:
        if self._cache is None and (anyway or time.monotonic() >= self._closed_until):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.stat().st_uid != os.geteuid():
                return None  # what others wrote is not read
            self._folder.chmod(0o700)
            _check_free(self._folder / "cache.db")
            self._cache = _open(self._folder, self._limit)
        return self._cache


def _open(folder: Path, limit_bytes: int) -> Cache:
    import diskcache

    class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # the library is untyped
        """Bytes in the database's rows, nothing else."""

        def put(self, key: object) -> tuple[Any, bool]:
            assert type(key) is bytes, "a key is bytes"  # noqa: S101
            return sqlite3.Binary(key), True

        def get(self, key: object, raw: bool) -> bytes:
            if not raw or not isinstance(key, (bytes, memoryview)):
                raise Damaged
            return bytes(key)

        def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, Any]:
            assert type(value) is bytes and not read, "a value is bytes"  # noqa: S101
            return 0, 1, None, sqlite3.Binary(value)  # size counts files; the database's pages are counted apart

        def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes:
            if mode != 1 or filename is not None or not isinstance(value, (bytes, memoryview)):
                raise Damaged
            return bytes(value)

    return diskcache.Cache(
        str(folder),
        timeout=_BUSY_S,
        disk=BytesDisk,
        size_limit=limit_bytes,
        eviction_policy="least-recently-stored",  # others write at each read
        statistics=0,
        tag_index=1,
        sqlite_mmap_size=0,  # a file that is cut short under a mapping kills the process
        sqlite_synchronous=1,
    )


def _check_free(database: Path) -> None:
    """Raise `sqlite3.OperationalError` when another process holds the database: the library would wait for a minute."""
    if not database.exists():
        return
    if not database.is_file():
        raise Damaged
    with contextlib.closing(sqlite3.connect(database, timeout=_BUSY_S, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _is_passing(error: sqlite3.DatabaseError) -> bool:
    """Whether the next try may do better: locked, full, unreadable now; not: no database at all."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    passing = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    return code in (*passing, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM)


def _sealed(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(_CHECKSUM_BYTES, "big") + value


def _unsealed(stored: bytes) -> bytes:
    value = stored[_CHECKSUM_BYTES:]
    if len(stored) < _CHECKSUM_BYTES or zlib.crc32(value) != int.from_bytes(stored[:_CHECKSUM_BYTES], "big"):
        raise Damaged
    return value
