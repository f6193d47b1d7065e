"""Owns the table of ingestion jobs: what is to be read, how far it is, and how it ended.

Must not know how a document is read, nor where its bytes are kept.

    queued ──▶ parsing ──▶ embedding ──▶ indexed      (with the document, in one transaction)
      ▲           │            │
      ├── later ──┴────────────┤                      (a fault that may pass; or the process died)
      │                        ├──▶ failed(reason)
      └────── retry ───────────┴──▶ cancelled         (also: its document or collection was deleted)

A job that ended is never live again but by `retry`, so its effect happens once. Jobs of one source run in the order
in which they came.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from appliance.errors import ApplianceError, NotFound
from appliance.store.attributes import Attributes, check_attributes
from appliance.store.connections import Connections
from appliance.store.records import Chunking
from appliance.store.rows import check_name, chunking_of, same_name, to_json, to_json_object

JobState = Literal["queued", "parsing", "embedding", "indexed", "failed", "cancelled"]
Ending = Literal["added", "replaced", "unchanged"]
STATES: tuple[JobState, ...] = get_args(JobState)
LIVE: tuple[JobState, ...] = ("queued", "parsing", "embedding")
ENDED_KEPT = 1000  # jobs that ended; older ones are forgotten
LONGEST_WAIT_S = 600.0  # between two attempts; a clock that was set back must not make it longer
_LIVE = "('queued', 'parsing', 'embedding')"
_UNBLOCKED = """j.state = 'queued' AND NOT EXISTS (SELECT 1 FROM jobs o
    WHERE o.state IN ('queued', 'parsing', 'embedding') AND o.id < j.id
    AND o.collection = j.collection AND o.source = j.source)"""
_COLUMNS = """id, collection, source, name, sha256, size_bytes, patient, state, ending, reason, retryable, attempts,
    retry_at, document_id, chunks, created_at, updated_at, attributes, chunking, started_at, revision"""
_LARGEST_ID = 2**63 - 1


class JobEnded(Exception):
    """The job was cancelled while it was worked on: nothing of it may be stored."""


class JobConflict(ApplianceError):
    """What is asked of a job cannot be done in the state that it is in."""

    code, status, kind = "job_state", 409, "invalid_request_error"


class Job(msgspec.Struct, frozen=True):
    """One document on its way in."""

    id: int
    collection: str
    source: str
    name: str
    sha256: str  # of the bytes
    size_bytes: int
    patient: bool  # tried again after a fault that may pass; else somebody waits who can do that better
    state: JobState
    ending: Literal["", "added", "replaced", "unchanged"]  # of an indexed one
    reason: str  # why it failed, was cancelled, or waits to be tried again
    retryable: bool  # of a failed one: its bytes are kept for `retry`
    attempts: int
    retry_at: float  # of a queued one: not before this, in seconds of the epoch
    document_id: int | None
    chunks: int  # of the document, known from embedding on
    created_at: str  # ISO 8601, UTC
    updated_at: str
    attributes: Attributes | None  # of the document; None: those it has
    chunking: Chunking | None  # None: as the settings say
    started_at: str | None  # of the latest attempt
    revision: int  # of its last change, counted over all jobs
    embedded: int = 0  # chunks so far, where it is worked on in this process

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVE


class JobTable:
    """The jobs of one store; usable from several threads. What changes them is on disk when it returns."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def add(
        self,
        collection: str,
        source: str,
        name: str,
        sha256: str,
        size_bytes: int,
        *,
        patient: bool,
        attributes: Attributes | None = None,
        chunking: Chunking | None = None,
    ) -> Job:
        """Queue a document.

        Raises:
            BadRequest: the collection's name or an attribute is not allowed.
        """
        check_name(collection)
        given = None if attributes is None else to_json_object(check_attributes(attributes))
        cut = None if chunking is None else to_json_object(chunking)
        now = _now()
        with self._connections.writing() as writer:
            cursor = writer.execute(
                """INSERT INTO jobs (collection, source, name, sha256, size_bytes, patient, state, created_at,
                updated_at, attributes, chunking) VALUES (?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?)""",
                (same_name(collection), source, name, sha256, size_bytes, patient, now, now, given, cut),
            )
            return _job(writer, cursor.lastrowid or 0)

    def get(self, job_id: int) -> Job:
        """One job.

        Raises:
            NotFound: there is none with that number, or it ended long ago.
        """
        with self._connections.reading() as reader:
            return _job(reader, job_id)

    def since(self, revision: int, states: Sequence[JobState] = STATES, *, limit: int = 1000) -> list[Job]:
        """The first `limit` jobs in one of `states` that were changed after `revision`, in that order, as they are now.

        Jobs that ended long ago are forgotten, and not among them.
        """
        with self._connections.reading() as reader:
            found = reader.execute(
                f"""SELECT {_COLUMNS} FROM jobs WHERE revision > ? AND state IN (SELECT value FROM json_each(?))
                ORDER BY revision LIMIT ?""",  # noqa: S608 - constants alone
                (min(revision, _LARGEST_ID), to_json(states), limit),
            )
            return [_of(row) for row in found]

    def list(self, states: Sequence[JobState] = STATES, *, limit: int = 100, before: int | None = None) -> list[Job]:
        """The newest `limit` jobs in one of `states` with numbers below `before`, the newest first."""
        with self._connections.reading() as reader:
            found = reader.execute(
                f"""SELECT {_COLUMNS} FROM jobs WHERE state IN (SELECT value FROM json_each(?)) AND id < ?
                ORDER BY id DESC LIMIT ?""",  # noqa: S608 - constants alone
                (to_json(states), _LARGEST_ID if before is None else min(before, _LARGEST_ID), limit),
            )
            return [_of(row) for row in found]

    def revision(self) -> int:
        """Of the last change of any job."""
        with self._connections.reading() as reader:
            newest: int = reader.execute("SELECT number FROM job_revision").fetchone()[0]
        return newest

    def counts(self) -> Mapping[str, int]:
        """How many jobs are in each state."""
        with self._connections.reading() as reader:
            found = dict(reader.execute("SELECT state, COUNT(*) FROM jobs GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in STATES}

    def needs(self, sha256: str, *, documents: bool) -> bool:
        """Whether bytes are still needed: by a job, or, where `documents` count, by a document."""
        with self._connections.reading() as reader:
            return sha256 in _needed(reader, documents=documents, only=sha256)

    def needed(self, *, documents: bool) -> set[str]:
        """SHA-256 of all bytes that are still needed."""
        with self._connections.reading() as reader:
            return _needed(reader, documents=documents)

    def take(self) -> Job | None:
        """Begin the next job: the oldest whose time has come, and for whose source no older one is live."""
        now = time.time()
        with self._connections.reading() as reader:  # most looks find nothing, and should cost no write
            row = reader.execute(
                f"""SELECT id FROM jobs j WHERE {_UNBLOCKED} AND (retry_at <= ?1 OR retry_at > ?2)
                ORDER BY id LIMIT 1""",  # noqa: S608 - our own constant
                (now, now + LONGEST_WAIT_S),
            ).fetchone()
        if row is None:
            return None
        with self._connections.writing() as writer:
            changed = writer.execute(
                """UPDATE jobs SET state = 'parsing', attempts = attempts + 1, reason = '', updated_at = ?1,
                started_at = ?1 WHERE id = ?2 AND state = 'queued'""",
                (_now(), row[0]),
            ).rowcount
            return _job(writer, row[0]) if changed else None

    def due_in(self) -> float | None:
        """Seconds until `take` finds a job; 0.0: at once. None: not before a job was queued or has ended."""
        with self._connections.reading() as reader:
            query = f"SELECT MIN(retry_at) FROM jobs j WHERE {_UNBLOCKED}"  # noqa: S608 - our own constant
            first: float | None = reader.execute(query).fetchone()[0]
        return None if first is None else min(max(0.0, first - time.time()), LONGEST_WAIT_S)

    def embedding(self, job_id: int, chunks: int) -> None:
        """It was read, and has so many chunks. Raises `JobEnded`."""
        self._update(job_id, "state = 'embedding', chunks = ?", chunks)

    def later(self, job_id: int, reason: str, delay_s: float) -> None:
        """Try it again after `delay_s` seconds. Raises `JobEnded`."""
        self._update(job_id, "state = 'queued', reason = ?, retry_at = ?", reason, time.time() + delay_s)

    def put_back(self, job_id: int) -> None:
        """It was not tried after all. Raises `JobEnded`."""
        self._update(job_id, "state = 'queued', attempts = attempts - 1")

    def fail(self, job_id: int, reason: str, *, retryable: bool) -> None:
        """It ends without its document. Raises `JobEnded`."""
        self._update(job_id, "state = 'failed', reason = ?, retryable = ?", reason, retryable)

    def cancel(self, job_id: int, reason: str = "Cancelled.") -> Job:
        """End a job; nothing of it is stored from here on.

        Raises:
            NotFound: there is none with that number.
            JobConflict: it has ended already.
        """
        with self._connections.writing() as writer:
            job = _job(writer, job_id)
            if not job.live:
                raise JobConflict(f"Job {job_id} has ended already ({job.state}).", remedy="Nothing is to be done.")
            writer.execute(
                "UPDATE jobs SET state = 'cancelled', reason = ?, updated_at = ? WHERE id = ?", (reason, _now(), job_id)
            )
            return _job(writer, job_id)

    def retry(self, job_id: int) -> Job:
        """Queue a failed job again, with all its attempts before it.

        Raises:
            NotFound: there is none with that number.
            JobConflict: it did not fail, or would fail again for the same reason.
        """
        with self._connections.writing() as writer:
            job = _job(writer, job_id)
            if job.state != "failed":
                raise JobConflict(f"Job {job_id} did not fail ({job.state}).", remedy="Only failed jobs are retried.")
            if not job.retryable:
                raise JobConflict(
                    f"Job {job_id} would fail again: {job.reason}", remedy="Send the document again once it is mended."
                )
            writer.execute(
                """UPDATE jobs SET state = 'queued', reason = '', attempts = 0, retry_at = 0, retryable = 0,
                updated_at = ? WHERE id = ?""",
                (_now(), job_id),
            )
            return _job(writer, job_id)

    def recover(self, attempts_most: int) -> int:
        """Queue what a process that died was working on; returns how many.

        What was begun `attempts_most` times and never ended is failed: it may be what kills the process.
        """
        with self._connections.writing() as writer:
            writer.execute(
                """UPDATE jobs SET state = 'failed', retryable = 1, updated_at = ?, reason =
                'The service ended ' || attempts || ' times before this was done.'
                WHERE state IN ('parsing', 'embedding') AND attempts >= ?""",
                (_now(), attempts_most),
            )
            return writer.execute(
                "UPDATE jobs SET state = 'queued', updated_at = ? WHERE state IN ('parsing', 'embedding')", (_now(),)
            ).rowcount

    def _update(self, job_id: int, change: str, *values: Any) -> None:
        with self._connections.writing() as writer:
            _change(writer, job_id, change, *values)


def finish(writer: sqlite3.Connection, job_id: int, ending: Ending, document_id: int, chunks: int) -> None:
    """Its document is in the store, by the same transaction. Raises `JobEnded`."""
    change = "state = 'indexed', ending = ?, reason = '', document_id = ?, chunks = ?"
    _change(writer, job_id, change, ending, document_id, chunks)


def cancel_for_documents(writer: sqlite3.Connection, document_ids: Sequence[int]) -> None:
    """Cancel what would bring documents back that this transaction deletes."""
    writer.execute(
        f"""UPDATE jobs SET state = 'cancelled', reason = 'Its document was deleted.', updated_at = ?
        WHERE state IN {_LIVE} AND (collection, source) IN (SELECT c.name, d.source FROM documents d
        JOIN collections c ON c.id = d.collection_id WHERE d.id IN (SELECT value FROM json_each(?)))""",  # noqa: S608
        (_now(), to_json(document_ids)),
    )


def cancel_in_collection(writer: sqlite3.Connection, name: str) -> None:
    """Cancel what would bring a collection back that this transaction deletes."""
    writer.execute(
        f"""UPDATE jobs SET state = 'cancelled', reason = 'Its collection was deleted.', updated_at = ?
        WHERE state IN {_LIVE} AND collection = ?""",  # noqa: S608
        (_now(), same_name(name)),
    )


def _change(writer: sqlite3.Connection, job_id: int, change: str, *values: Any) -> None:
    changed = writer.execute(
        f"UPDATE jobs SET {change}, updated_at = ? WHERE id = ? AND state IN {_LIVE}",  # noqa: S608
        (*values, _now(), job_id),
    ).rowcount
    if not changed:
        raise JobEnded
    writer.execute(
        f"""DELETE FROM jobs WHERE state NOT IN {_LIVE} AND id <= (SELECT id FROM jobs WHERE state NOT IN {_LIVE}
        ORDER BY id DESC LIMIT 1 OFFSET {ENDED_KEPT})""",  # noqa: S608
    )


def _needed(reader: sqlite3.Connection, *, documents: bool, only: str | None = None) -> set[str]:
    which, values = ("", ()) if only is None else (" AND sha256 = ?", (only,))
    found = reader.execute(f"SELECT sha256 FROM jobs WHERE (state IN {_LIVE} OR retryable){which}", values)  # noqa: S608
    needed = {row[0] for row in found}
    if documents:
        found = reader.execute(f"SELECT sha256 FROM documents WHERE TRUE{which}", values)  # noqa: S608
        needed.update(row[0] for row in found)
    return needed


def _job(connection: sqlite3.Connection, job_id: int) -> Job:
    row = None
    if 0 < job_id <= _LARGEST_ID:  # SQLite has no larger numbers
        row = connection.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()  # noqa: S608
    if row is None:
        raise NotFound(f"There is no job {job_id}.", remedy="`appliance jobs list` shows the latest.")
    return _of(row)


def _of(row: Sequence[Any]) -> Job:
    fields = dict(zip(Job.__struct_fields__, row, strict=False))
    fields["attributes"] = None if fields["attributes"] is None else msgspec.json.decode(fields["attributes"])
    fields["chunking"] = chunking_of(fields["chunking"])
    for name in ("patient", "retryable"):
        fields[name] = bool(fields[name])
    return Job(**fields)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
