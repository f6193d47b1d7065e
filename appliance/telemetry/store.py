"""Owns the file of what telemetry keeps on this machine: the last traces, and snapshots of the figures.

Must not know what is measured. SQLite, with a limit of its size that SQLite itself keeps; what is oldest makes room,
ordinary traces among themselves, so that a slow one of yesterday outlives a thousand quick ones of today.

Nothing here is worth a fault elsewhere: a damaged file is deleted and begun anew, a full disk costs what could not be
written, and both are counted. One writes at a time; whoever reads (also another process, also while the service hangs)
opens the file by itself.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import astuple

from appliance.telemetry.metrics import Sample
from appliance.telemetry.records import Kind, SpanRecord, TraceRecord, TraceSummary

FILE: Final = "telemetry.sqlite3"
_PAGE_BYTES: Final = 4096
_TRIES: Final = 8  # to make room for one row
_PRUNED_SHARE: Final = 8  # of what is there, one in so many goes when there is no room
_WAIT_S: Final = 1.0  # for a reader's lock
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS traces (
    root TEXT PRIMARY KEY, id TEXT NOT NULL, request_id TEXT NOT NULL, kind TEXT NOT NULL, started_s REAL NOT NULL,
    ms REAL NOT NULL, name TEXT NOT NULL, status INTEGER NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS traces_by_time ON traces (kind, started_s);
CREATE INDEX IF NOT EXISTS traces_by_id ON traces (id);
CREATE INDEX IF NOT EXISTS traces_by_request ON traces (request_id);
CREATE TABLE IF NOT EXISTS snapshots (time_s REAL PRIMARY KEY, body BLOB NOT NULL);
"""
_SUMMARY: Final = "id, started_s, ms, name, kind, status, request_id, root"

T = TypeVar("T")
_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_trace = msgspec.msgpack.Decoder(TraceRecord).decode
_samples = msgspec.msgpack.Decoder(list[Sample]).decode


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A value at a time."""

    time_s: float
    value: float


class Series(msgspec.Struct, frozen=True):
    """How one sample went."""

    name: str
    labels: dict[str, str]
    points: list[Point]


class TelemetryStore:
    """Writes the file; for one thread at a time.

    Args:
        path: of the file.
        most_bytes: that it may take, all in all.
        most_traces: ordinary ones; and as many of the others.
    """

    def __init__(self, path: Path, most_bytes: int, most_traces: int) -> None:
        self._path = path
        self._most_pages = max(64, most_bytes // _PAGE_BYTES)
        self._most_traces = most_traces
        self._file: sqlite3.Connection | None = None
        self.faults = 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(sqlite3.Error):
                self._file.close()
            self._file = None

    def put(self, traces: Sequence[TraceRecord]) -> None:
        """Keep traces; one that is there already is replaced."""
        if not traces:
            return
        rows = [(*astuple(trace.summary), _packed(trace)) for trace in traces]
        insert = f"INSERT OR REPLACE INTO traces ({_SUMMARY}, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
        self._write(lambda file: file.executemany(insert, rows))
        self._keep_to_limit()

    def add_spans(self, root: str, spans: Sequence[SpanRecord]) -> None:
        """Add spans that came after the trace of that first span was over; nothing where that is not kept."""

        def add(file: sqlite3.Connection) -> None:
            found = file.execute("SELECT body FROM traces WHERE root = ?", (root,)).fetchone()
            if found is not None:
                whole = _trace(_unpacked(found[0])).with_spans(spans)
                file.execute("UPDATE traces SET body = ? WHERE root = ?", (_packed(whole), root))

        self._write(add)

    def put_snapshot(self, time_s: float, samples: Sequence[Sample]) -> None:
        """Keep all figures as they are at `time_s`, in seconds since 1970."""
        body = zlib.compress(_encode(samples), 1)
        self._write(lambda file: file.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (time_s, body)))

    def _keep_to_limit(self) -> None:
        """Drop the oldest over the number that is kept, of ordinary traces and of the others apart."""
        for kinds in ("kind = 'ordinary'", "kind <> 'ordinary'"):
            # Two constants make the text of the statement.
            drop = (
                f"DELETE FROM traces WHERE root IN (SELECT root FROM traces WHERE {kinds} "  # noqa: S608
                "ORDER BY started_s DESC LIMIT -1 OFFSET ?)"
            )
            self._write(lambda file, drop=drop: file.execute(drop, (self._most_traces,)))  # type: ignore[misc]

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Do `work` in a transaction of its own; where that can't be, count it."""
        try:
            for attempt in range(_TRIES):
                file = self._open()
                try:
                    with file:
                        work(file)
                    return
                except sqlite3.OperationalError as error:
                    if _code(error) != sqlite3.SQLITE_FULL or attempt == _TRIES - 1:
                        raise
                    self._make_room(file)
        except (sqlite3.Error, OSError, msgspec.DecodeError, zlib.error) as error:
            self._fault(error)

    def _make_room(self, file: sqlite3.Connection) -> None:
        """Drop the oldest: of ordinary traces, other traces and snapshots the same share of each."""
        with file:
            for table, where, key, order in (
                ("traces", "kind = 'ordinary'", "root", "started_s"),
                ("traces", "kind <> 'ordinary'", "root", "started_s"),
                ("snapshots", "1", "time_s", "time_s"),
            ):
                # Constants of the line above make the text of the statement.
                (count,) = file.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()  # noqa: S608
                file.execute(
                    f"DELETE FROM {table} WHERE {key} IN "  # noqa: S608
                    f"(SELECT {key} FROM {table} WHERE {where} ORDER BY {order} LIMIT ?)",
                    (-(-count // _PRUNED_SHARE),),
                )

    def _fault(self, error: Exception) -> None:
        self.faults += 1
        if self.faults == 1:
            _log.warning("telemetry cannot be kept: %s", error)
        self.close()
        damaged = isinstance(error, msgspec.DecodeError | zlib.error) or (
            isinstance(error, sqlite3.DatabaseError) and _code(error) in _DAMAGE
        )
        if damaged:
            with contextlib.suppress(OSError):
                for end in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + end).unlink(missing_ok=True)

    def _open(self) -> sqlite3.Connection:
        if self._file is None:
            file = sqlite3.connect(self._path, timeout=_WAIT_S, check_same_thread=False)
            try:
                file.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
                file.execute("PRAGMA journal_mode = WAL")  # who reads does not wait, nor is waited for
                file.execute("PRAGMA synchronous = NORMAL")  # the last seconds before a power cut may be lost
                file.execute(f"PRAGMA journal_size_limit = {1 << 20}")
                file.execute(f"PRAGMA max_page_count = {self._most_pages}")
                file.executescript(_SCHEMA)
                # What another version of this program has written there is of no use to this one.
                for row in file.execute("SELECT body FROM traces LIMIT 1"):
                    _trace(_unpacked(row[0]))
            except BaseException:
                file.close()
                raise
            self._file = file
        return self._file


_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})


class TelemetryReader:
    """Reads what is kept; for any thread. Where there is nothing, or nothing that can be read, it finds nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def newest(
        self, *, kinds: Sequence[Kind] = (), limit: int = 50, least_ms: float = 0.0, before_s: float = 1e18
    ) -> list[TraceSummary]:
        """Traces, the newest first; of all kinds when none is named."""

        def read(file: sqlite3.Connection) -> list[TraceSummary]:
            wanted = kinds or ("ordinary", "slow", "failed")
            marks = ", ".join("?" * len(wanted))
            query = (
                f"SELECT {_SUMMARY} FROM traces WHERE kind IN ({marks}) AND ms >= ? AND started_s < ? "  # noqa: S608
                "ORDER BY started_s DESC LIMIT ?"
            )
            return [TraceSummary(*row) for row in file.execute(query, (*wanted, least_ms, before_s, limit))]

        return self._read(read, [])

    def get(self, name: str) -> TraceRecord | None:
        """A trace by its id, by the beginning of it (8 digits at least), or by the id of its request."""

        def read(file: sqlite3.Connection) -> TraceRecord | None:
            query = "SELECT body FROM traces WHERE id = ? OR request_id = ? ORDER BY started_s DESC LIMIT 1"
            found = file.execute(query, (name, name)).fetchone()
            if found is None and len(name) >= 8:
                query = "SELECT body FROM traces WHERE id >= ? AND id < ? LIMIT 1"
                found = file.execute(query, (name, name + "g")).fetchone()
            return None if found is None else _trace(_unpacked(found[0]))

        return self._read(read, None)

    def history(self, names: Sequence[str], since_s: float, until_s: float, most_points: int) -> list[Series]:
        """How samples went, by the names that Prometheus has for them; the last of each of `most_points` spans of time.

        Counters count from the service's last start.
        """

        def read(file: sqlite3.Connection) -> list[Series]:
            step = max(1e-3, (until_s - since_s) / most_points)
            found: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
            query = (
                "SELECT max(time_s), body FROM snapshots WHERE time_s >= ? AND time_s <= ? "
                "GROUP BY cast((time_s - ?) / ? AS INTEGER) ORDER BY 1"
            )
            for time_s, body in file.execute(query, (since_s, until_s, since_s, step)):
                for sample in _samples(_unpacked(body)):
                    if sample.name in names:
                        key = (sample.name, sample.labels)
                        series = found.setdefault(key, Series(sample.name, dict(sample.labels), []))
                        series.points.append(Point(time_s, sample.value))
            return list(found.values())

        return self._read(read, [])

    def _read(self, work: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        try:
            with _reading(self._path) as file:
                return work(file)
        except (sqlite3.Error, OSError, msgspec.DecodeError, zlib.error) as error:
            _log.debug("telemetry cannot be read: %s", error)
            return nothing


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    file = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)
    try:
        yield file
    finally:
        file.close()


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary code; 0 for what Python's module finds itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _unpacked(body: object) -> bytes:
    if not isinstance(body, bytes):
        raise zlib.error("it holds something else")
    return zlib.decompress(body)


def _packed(trace: TraceRecord) -> bytes:
    return zlib.compress(_encode(trace), 1)
