"""Owns the connections to the SQLite file: one writer under a lock, readers as many as read at once.

Must not know the tables.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.durable import sync
from appliance.errors import BadSetting, DiskFull, StoreDamaged, Unavailable

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_NOT_ALLOWED = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
}
# SQLite's shared memory and its log need a little space even for reading; without it they say "disk I/O error".
_LEAST_FREE_BYTES = 256 << 10
_RESTORE = "Stop the service and restore a backup, or move the file away and ingest the documents again."


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors that a user can meet into the program's own; others pass as they are.

    Raises:
        DiskFull: there is no room; the transaction is not committed.
        StoreDamaged: the file is not a database, is damaged, or the disk fails to read or write it.
        BadSetting: the file cannot be opened or written with the rights of this user.
        Unavailable: another process holds the write lock of the file.
    """
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the primary code, the rest says more about it.
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_room(path)):
            raise DiskFull(
                f"The disk that holds {path} is full; what was acknowledged before is safe.",
                remedy="Free some space and try again.",
            ) from error
        if code in _DAMAGED:
            raise StoreDamaged(f"The store {path} is damaged ({error}).", remedy=_RESTORE) from error
        if code == sqlite3.SQLITE_IOERR:
            raise StoreDamaged(
                f"The store {path} cannot be read or written ({error}).",
                remedy="Check the disk and the system's log; restore a backup if the file itself is lost.",
            ) from error
        if code in _NOT_ALLOWED:
            raise BadSetting(
                f"The store {path} cannot be opened for writing ({error}).",
                remedy="Check that the data directory belongs to the user that runs this program.",
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise Unavailable(f"The store {path} is locked by another process.") from error
        raise


class Connections:
    """The open connections of one store; usable from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._write_lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._idle_lock = threading.Lock()
        self._closed = False
        _create(path)
        with translated(path):
            self._writer = self._connect()
            try:
                self._writer.execute("PRAGMA journal_mode = WAL")
                # FULL: the log is fsynced at each commit, so a commit that returned survives a power cut.
                self._writer.execute("PRAGMA synchronous = FULL")
                self._writer.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                self._writer.close()
                raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed and fsynced when the block ends, rolled back when it raises."""
        with self._write_lock:
            if self._closed:
                raise Unavailable("The store is closed.")
            with translated(self._path):
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                    self._writer.execute("COMMIT")
                except BaseException:
                    # A full disk may have rolled the transaction back already.
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: everything read in the block is of one moment."""
        with translated(self._path):
            reader = self._take()
            try:
                reader.execute("BEGIN")
                yield reader
            finally:
                if reader.in_transaction:
                    reader.execute("ROLLBACK")
                self._give(reader)

    @contextmanager
    def exclusive_writer(self) -> Iterator[sqlite3.Connection]:
        """The writer outside a transaction, for migrations."""
        with self._write_lock, translated(self._path):
            yield self._writer

    def close(self) -> None:
        """Close all; a reader that is in use is closed when its block ends."""
        with self._write_lock, self._idle_lock:
            if self._closed:
                return
            self._closed = True
            for reader in self._idle:
                reader.close()
            self._idle.clear()
            self._writer.close()

    def _connect(self) -> sqlite3.Connection:
        # Connections wander between threads, but serve one block at a time.
        return sqlite3.connect(self._path, timeout=5.0, isolation_level=None, check_same_thread=False)

    def _take(self) -> sqlite3.Connection:
        with self._idle_lock:
            if self._closed:
                raise Unavailable("The store is closed.")
            if self._idle:
                return self._idle.pop()
        reader = self._connect()
        reader.execute("PRAGMA query_only = ON")
        return reader

    def _give(self, reader: sqlite3.Connection) -> None:
        with self._idle_lock:
            if not self._closed:
                self._idle.append(reader)
                return
        reader.close()


def _no_room(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES


def _create(path: Path) -> None:
    """Make the file with mode 0600 (SQLite gives its log files the same) and a lasting directory entry."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(f"The disk that holds {path} is full.", remedy="Free some space.") from error
        raise BadSetting(f"The store {path} cannot be created: {error.strerror}.") from error
    sync(path.parent)
