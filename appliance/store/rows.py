"""Owns the small SQL of the store: single rows in and out, the change log, ids and vectors as bytes.

Must not know transactions: it works inside the caller's.
"""

from __future__ import annotations

import sqlite3
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from appliance.errors import BadRequest, EmbedderChanged, NotFound
from appliance.store.attributes import Attributes
from appliance.store.records import (
    RECALL_TARGETS,
    Change,
    Chunk,
    Chunking,
    Document,
    Loss,
    NewChunk,
    RecallTarget,
    Vectors,
)

_LONGEST_NAME = 100
_LARGEST_ID = 2**63 - 1
CHANGES_KEPT = 10_000  # log entries; an index that is further behind is rebuilt


def same_name(collection: str) -> str:
    """The one spelling of a collection's name, as stored: a letter and its accent are one character (NFC)."""
    return unicodedata.normalize("NFC", collection)


def check_name(collection: str) -> None:
    """Raise BadRequest for a name that cannot be shown in a list or be part of an address."""
    collection = same_name(collection)
    # Not printable: control and direction characters, line ends, other spaces than the usual one, lone surrogates.
    # U+FFFD stands for bytes that were no text: two names could become one. "." and ".." vanish from addresses.
    good = 0 < len(collection) <= _LONGEST_NAME and collection.isprintable() and collection == collection.strip()
    if not good or "/" in collection or "\ufffd" in collection or collection in (".", ".."):
        raise BadRequest(
            f"{collection[: _LONGEST_NAME + 1]!r} cannot be the name of a collection.",
            remedy=f"Use 1 to {_LONGEST_NAME} visible characters, no slash, and no space at either end.",
            param="collection",
        )


def check_recall(given: Any, param: str = "recall") -> RecallTarget:
    """Raise BadRequest for what is not a recall target."""
    if isinstance(given, bool) or given not in RECALL_TARGETS:
        listed = ", ".join(str(target) for target in RECALL_TARGETS)
        raise BadRequest(f"{param} cannot be {given!r:.40}.", remedy=f"It is one of {listed}.", param=param)
    return RECALL_TARGETS[RECALL_TARGETS.index(given)]


def collection_or_all(connection: sqlite3.Connection, collection: str | None) -> int | None:
    """Id of the collection, None for all of them."""
    return None if collection is None else collection_id(connection, collection)


def meta(connection: sqlite3.Connection, name: str) -> str | None:
    """The value kept under `name` for the whole store."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def collection_id(connection: sqlite3.Connection, name: str) -> int:
    """Id of the collection; raises NotFound with the names that exist."""
    row = connection.execute("SELECT id FROM collections WHERE name = ?", (same_name(name),)).fetchone()
    if row:
        return int(row[0])
    names = [found[0] for found in connection.execute("SELECT name FROM collections ORDER BY name LIMIT 20")]
    listed = f"Existing collections: {', '.join(names)}." if names else "There are no collections yet:"
    hint = "" if names else " `appliance ingest PATH` makes one."
    raise NotFound(f"There is no collection '{name}'.", remedy=listed + hint, param="collection")


def document_by_id(connection: sqlite3.Connection, document_id: int) -> Document:
    """One document; raises NotFound."""
    row = None
    if 0 < document_id <= _LARGEST_ID:  # SQLite has no larger numbers
        row = connection.execute("SELECT * FROM document_rows WHERE id = ?", (document_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no document {document_id}.", remedy="`appliance documents list` shows all of them.")
    return document_of(row)


def document_of(row: Sequence[Any]) -> Document:
    """A row of the view `document_rows` as a record."""
    *plain, losses, attributes, chunking = row
    lost = msgspec.json.decode(losses, type=tuple[Loss, ...])
    values = (*plain, lost, _attributes(attributes), chunking_of(chunking))
    return Document(*values)


def chunking_of(column: str | None) -> Chunking | None:
    """How a document is cut, as it is kept in a column."""
    return None if column is None else msgspec.json.decode(column, type=Chunking)


def chunk_of(row: Sequence[Any]) -> Chunk:
    """A row of the view `chunk_rows` as a record."""
    values = (*row[:-1], _attributes(row[-1]))
    return Chunk(*values)


def _attributes(column: str) -> Attributes:
    found: Attributes = {} if column == "{}" else msgspec.json.decode(column)
    return found


def chunk_ids_of(connection: sqlite3.Connection, document_id: int) -> list[int]:
    """Ids of a document's chunks in its order."""
    rows = connection.execute("SELECT id FROM chunks WHERE document_id = ? ORDER BY ordinal", (document_id,))
    return [row[0] for row in rows]


def insert_chunk(writer: sqlite3.Connection, document_id: int, ordinal: int, chunk: NewChunk, vector: bytes) -> int:
    """Insert a chunk and its vector; returns its id."""
    cursor = writer.execute(
        """INSERT INTO chunks (document_id, ordinal, text, heading, page_first, page_last, span_start,
        span_end, tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            document_id,
            ordinal,
            chunk.text,
            chunk.heading,
            chunk.page_first,
            chunk.page_last,
            chunk.start,
            chunk.end,
            chunk.tokens,
        ),
    )
    chunk_id = cursor.lastrowid or 0
    writer.execute("INSERT INTO vectors VALUES (?, ?)", (chunk_id, vector))
    return chunk_id


def accept_embedder(writer: sqlite3.Connection, embedder: str, dim: int) -> None:
    """Note whose vectors are coming; raises EmbedderChanged when others are stored."""
    known = meta(writer, "embedder")
    if known == embedder:
        if (stored := int(meta(writer, "dim") or 0)) != dim:
            raise ValueError(f"the embedder's vectors have {stored} dimensions, not {dim}")
        return
    if known is not None and writer.execute("SELECT 1 FROM chunks LIMIT 1").fetchone():
        raise EmbedderChanged(
            "The stored documents were embedded with another model than the one in use.",
            remedy="Delete the collections and ingest the documents again, or go back to the earlier model "
            "pack with `appliance models use`.",
        )
    writer.execute("INSERT OR REPLACE INTO meta VALUES ('embedder', ?)", (embedder,))
    writer.execute("INSERT OR REPLACE INTO meta VALUES ('dim', ?)", (str(dim),))


def log_change(writer: sqlite3.Connection, collection: str, removed: Sequence[int], added: Sequence[int]) -> Change:
    """Count the generation up and write the log entry of this transaction."""
    generation = int(meta(writer, "generation") or 0) + 1
    writer.execute("UPDATE meta SET value = ? WHERE name = 'generation'", (str(generation),))
    writer.execute("UPDATE collections SET generation = ? WHERE name = ?", (generation, collection))
    writer.execute(
        "INSERT INTO changes VALUES (?, ?, ?, ?)",
        (generation, collection, pack_ids(removed), pack_ids(added)),
    )
    writer.execute("DELETE FROM changes WHERE generation <= ?", (generation - CHANGES_KEPT,))
    return Change(generation, collection, tuple(removed), tuple(added))


def to_blobs(vectors: Vectors, count: int) -> list[bytes]:
    """Each of the `(count, dim)` float16 rows as little-endian bytes; ValueError when they are not that."""
    if vectors.dtype != np.float16 or vectors.ndim != 2 or len(vectors) != count:
        raise ValueError(f"{count} vectors of float16 are needed, not {vectors.shape} of {vectors.dtype}")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector is not finite")
    return [row.astype("<f2").tobytes() for row in vectors]


def to_json(values: Iterable[object]) -> str:
    """A JSON list, for `json_each` and for lists kept in a column."""
    return msgspec.json.encode([int(v) if isinstance(v, np.integer) else v for v in values]).decode()


def to_json_object(values: Attributes | Chunking) -> str:
    """Attributes, or how a document is cut, as they are kept in a column."""
    return msgspec.json.encode(values).decode()


def pack_ids(ids: Sequence[int]) -> bytes:
    """Ids as little-endian int64."""
    return np.array(ids, "<i8").tobytes()


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    """The inverse of `pack_ids`."""
    return tuple(np.frombuffer(blob, "<i8").tolist())
