"""Owns the responses that callers had stored: what each said, by which it goes on, until it is deleted or too old.

Must not know what a turn or a response is: both are bytes. A file of its own beside the store: conversations are no
documents, and may be deleted as a whole.

A response is its caller's alone: to another label it is not there. Its conversation is the chain of responses that it
went on from; deleting one of them ends what went on from it.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import msgspec

from appliance.errors import NotFound
from appliance.store.connections import Connections

RESPONSES_FILE = "responses.sqlite3"  # in the data directory
KEEP_S = 30 * 86400.0
MOST_BYTES = 256 << 20  # of all responses; the oldest go first
MOST_TURNS = 1000  # of a conversation
_TABLES = (
    """CREATE TABLE IF NOT EXISTS responses (
        id TEXT PRIMARY KEY,
        label TEXT NOT NULL,
        previous TEXT,
        created REAL NOT NULL,
        turn BLOB NOT NULL,
        body BLOB NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created)",
)
_CHAIN = f"""WITH RECURSIVE chain (id, previous, turn, depth) AS (
    SELECT id, previous, turn, 1 FROM responses WHERE id = ?1 AND label = ?2 AND created > ?3
    UNION ALL
    SELECT r.id, r.previous, r.turn, depth + 1 FROM responses r JOIN chain c ON r.id = c.previous
    WHERE r.label = ?2 AND r.created > ?3 AND depth < {MOST_TURNS})
    SELECT previous, turn FROM chain ORDER BY depth DESC"""  # noqa: S608  # a number alone


class StoredResponse(msgspec.Struct, frozen=True):
    """A response to be kept."""

    id: str
    label: str  # the caller
    previous: str | None  # the response that it went on from
    turn: bytes  # what was said in it
    body: bytes  # the response as it was given


class ResponseStore:
    """Stored responses; usable from several threads. What changes them is on disk when it returns.

    Raises:
        StoreDamaged, BadSetting, DiskFull: the file `path` cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._connections = Connections(path)
        self._changing = threading.Lock()
        try:
            with self._connections.exclusive_writer() as writer:
                writer.execute("PRAGMA secure_delete = ON")
                for statement in _TABLES:
                    writer.execute(statement)
                writer.execute("DELETE FROM responses WHERE created <= ?", (time.time() - KEEP_S,))
                size = writer.execute("SELECT COALESCE(SUM(LENGTH(turn) + LENGTH(body)), 0) FROM responses").fetchone()
                self._bytes: int = size[0]
        except BaseException:
            self._connections.close()
            raise

    def close(self) -> None:
        """Close the file; further calls raise `Unavailable`."""
        self._connections.close()

    def put(self, response: StoredResponse) -> None:
        """Keep a response, and give up those that are too old or too many."""
        now = time.time()
        fields = (response.id, response.label, response.previous, now, response.turn, response.body)
        with self._changing:
            size = self._bytes + len(response.turn) + len(response.body)
            gone = []
            with self._connections.writing() as writer:
                oldest = writer.execute(
                    "SELECT id, created, LENGTH(turn) + LENGTH(body) FROM responses ORDER BY created"
                )
                with closing(oldest):
                    for response_id, created, length in oldest:
                        if created > now - KEEP_S and size <= MOST_BYTES:
                            break
                        gone.append((response_id,))
                        size -= length
                writer.executemany("DELETE FROM responses WHERE id = ?", gone)
                writer.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)", fields)
            self._bytes = size

    def body(self, response_id: str, label: str) -> bytes:
        """A response as it was given. Raises `NotFound`."""
        with self._connections.reading() as reader:
            found = reader.execute(
                "SELECT body FROM responses WHERE id = ? AND label = ? AND created > ?",
                (response_id, label, time.time() - KEEP_S),
            ).fetchone()
        if found is None:
            raise _missing(response_id)
        return bytes(found[0])

    def turns(self, response_id: str, label: str) -> list[bytes]:
        """What was said up to a response and in it, the oldest turn first.

        Raises:
            NotFound: it is not there, or one that it went on from is not.
        """
        with self._connections.reading() as reader:
            chain = reader.execute(_CHAIN, (response_id, label, time.time() - KEEP_S)).fetchall()
        if not chain:
            raise _missing(response_id, param="previous_response_id")
        if chain[0][0] is not None:
            raise NotFound(
                f"The response {response_id:.60} went on from others that are not stored any more.",
                remedy="Send the conversation as input, without previous_response_id.",
                param="previous_response_id",
            )
        return [bytes(turn) for _, turn in chain]

    def delete(self, response_id: str, label: str) -> None:
        """Delete a response; its text is in no file then, unless somebody reads just now. Raises `NotFound`."""
        with self._changing:
            with self._connections.writing() as writer:
                deleted = writer.execute(
                    "DELETE FROM responses WHERE id = ? AND label = ? RETURNING LENGTH(turn) + LENGTH(body)",
                    (response_id, label),
                ).fetchone()
                if deleted is None:
                    raise _missing(response_id)
            self._bytes -= deleted[0]
            with self._connections.exclusive_writer() as writer:
                writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # the log has the text too


def _missing(response_id: str, param: str | None = None) -> NotFound:
    return NotFound(
        f"There is no stored response {response_id:.60}.",
        remedy="Responses are stored unless `store` is false, for 30 days; each for the API key that asked for it.",
        param=param,
    )
