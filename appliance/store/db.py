"""Owns the store: collections, documents, chunks and vectors in SQLite, and their change log. The truth.

Must not know the indexes that are derived from it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from appliance.errors import BadRequest, StoreDamaged
from appliance.store import jobs, keys, rows, schema
from appliance.store.attributes import Attributes, check_attributes
from appliance.store.connections import Connections
from appliance.store.reads import Reads
from appliance.store.records import Change, Document, NewChunk, NewDocument, RecallTarget, Vectors

STORE_FILE = "store.sqlite3"  # in the data directory


class Store(Reads):
    """The one place where documents are kept; usable from several threads.

    A method that writes has committed and fsynced when it returns. Readers see the state before or after a
    write, never between.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections.reading)
        self._connections = connections
        self.jobs = jobs.JobTable(connections)
        self.keys = keys.KeyTable(connections)

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open the store file `path`, make it when it does not exist, migrate it when it is older.

        Raises:
            StoreDamaged: the file is not a store, is damaged, or was written by a newer program.
            BadSetting: it cannot be opened for writing.
            DiskFull: there is no room to make or migrate it.
        """
        connections = Connections(path)
        try:
            with connections.exclusive_writer() as writer:
                found: int = writer.execute("PRAGMA user_version").fetchone()[0]
                if found > schema.VERSION:
                    raise StoreDamaged(
                        f"The store {path} was written by a newer program "
                        f"(format {found}; this program knows {schema.VERSION}).",
                        remedy="Install the newer program again, or restore a backup made by this one.",
                    )
                schema.migrate(writer, found)
            return cls(connections)
        except BaseException:
            connections.close()
            raise

    def close(self) -> None:
        """Close the file; further calls raise `Unavailable`."""
        self._connections.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Reads]:
        """The store as it is now, for the block, whatever is written meanwhile.

        While it is held the log grows with every write: not for long.
        """
        with self._connections.reading() as reader:
            reader.execute("SELECT value FROM meta WHERE name = 'generation'").fetchone()  # this decides the moment
            turns = threading.Lock()

            @contextlib.contextmanager
            def reading() -> Iterator[sqlite3.Connection]:
                with turns:
                    yield reader

            yield Reads(reading)

    # -- writes -------------------------------------------------------------------------------------------

    def put(
        self,
        collection: str,
        document: NewDocument,
        chunks: Sequence[NewChunk],
        vectors: Vectors,
        embedder: str,
        attributes: Attributes | None = None,
        job: int | None = None,
    ) -> tuple[Document, Change]:
        """Store a document; the one with the same source in the collection is replaced and keeps its id.

        Args:
            collection: made when it does not exist.
            vectors: `(len(chunks), dim)` float16, finite.
            embedder: fingerprint of what made `vectors`.
            attributes: None: none for a new document, those it had for a replaced one.
            job: ends with this, in the same transaction.

        Raises:
            JobEnded: the job was cancelled before; nothing was changed.
            EmbedderChanged: the stored vectors were made by another embedder.
            BadRequest: the collection's name or an attribute is not allowed.
            DiskFull: nothing was changed.
        """
        rows.check_name(collection)
        collection = rows.same_name(collection)
        kept = None if attributes is None else rows.to_json_object(check_attributes(attributes))
        blobs = rows.to_blobs(vectors, len(chunks))
        with self._connections.writing() as writer:
            rows.accept_embedder(writer, embedder, vectors.shape[1])
            writer.execute(
                "INSERT INTO collections (name, generation) VALUES (?, 0) ON CONFLICT DO NOTHING",
                (collection,),
            )
            collection_id = rows.collection_id(writer, collection)
            values = (
                document.name,
                document.title,
                document.sha256,
                document.media_type,
                document.size_bytes,
                document.pages,
                document.encoding,
                len(chunks),
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                rows.to_json(document.losses),
                None if document.chunking is None else rows.to_json_object(document.chunking),
            )
            old = writer.execute(
                "SELECT id FROM documents WHERE collection_id = ? AND source = ?",
                (collection_id, document.source),
            ).fetchone()
            removed: list[int] = []
            if old:
                document_id: int = old[0]
                removed = rows.chunk_ids_of(writer, document_id)
                writer.execute("DELETE FROM chunks WHERE document_id = ?", (document_id,))
                writer.execute(
                    """UPDATE documents SET name = ?, title = ?, sha256 = ?, media_type = ?, size_bytes = ?,
                    pages = ?, encoding = ?, chunks = ?, added_at = ?, losses = ?, chunking = ?,
                    attributes = COALESCE(?, attributes) WHERE id = ?""",
                    (*values, kept, document_id),
                )
            else:
                cursor = writer.execute(
                    """INSERT INTO documents (collection_id, source, name, title, sha256, media_type,
                    size_bytes, pages, encoding, chunks, added_at, losses, chunking, attributes)
                    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE(?, '{}'))""",
                    (collection_id, document.source, *values, kept),
                )
                document_id = cursor.lastrowid or 0
            added = [
                rows.insert_chunk(writer, document_id, ordinal, chunk, blob)
                for ordinal, (chunk, blob) in enumerate(zip(chunks, blobs, strict=True))
            ]
            if job is not None:
                jobs.finish(writer, job, "replaced" if old else "added", document_id, len(chunks))
            change = rows.log_change(writer, collection, removed, added)
            return rows.document_by_id(writer, document_id), change

    def keep(
        self, document_id: int, attributes: Attributes | None = None, job: int | None = None
    ) -> tuple[Document, Change | None]:
        """A document is in the store as it is wanted, but perhaps for its attributes.

        Args:
            attributes: None: those it has.
            job: ends with this, in the same transaction.

        Raises:
            JobEnded: the job was cancelled before; nothing was changed.
            NotFound: there is no document with that id.
            BadRequest: an attribute is not allowed.
        """
        wanted = None if attributes is None else check_attributes(attributes)
        with self._connections.writing() as writer:
            document = rows.document_by_id(writer, document_id)
            change = None
            if wanted is not None and wanted != document.attributes:
                change = _give(writer, document, wanted)
            if job is not None:
                jobs.finish(writer, job, "unchanged", document_id, document.chunks)
            return rows.document_by_id(writer, document_id), change

    def set_attributes(self, document_id: int, attributes: Attributes) -> tuple[Document, Change]:
        """Give a document these attributes and no others; its chunks and vectors stay.

        Raises:
            NotFound: there is none with that id.
            BadRequest: an attribute is not allowed.
        """
        wanted = check_attributes(attributes)
        with self._connections.writing() as writer:
            change = _give(writer, rows.document_by_id(writer, document_id), wanted)
            return rows.document_by_id(writer, document_id), change

    def set_recall(self, collection: str, target: RecallTarget | None) -> Change:
        """Set the recall target of searches in a collection that name none; None: the program's default.

        Raises:
            NotFound: there is no such collection.
            BadRequest: it is not a recall target.
        """
        chosen = None if target is None else rows.check_recall(target)
        with self._connections.writing() as writer:
            collection_id = rows.collection_id(writer, collection)
            writer.execute("UPDATE collections SET recall = ? WHERE id = ?", (chosen, collection_id))
            return rows.log_change(writer, rows.same_name(collection), [], [])

    def delete(self, document_ids: Sequence[int]) -> Change:
        """Delete documents of one collection, and cancel their jobs; the collection stays, even when it is empty.

        Raises:
            NotFound: one of them does not exist; none is deleted.
            BadRequest: no ids, or ids of several collections.
        """
        with self._connections.writing() as writer:
            unique = list(dict.fromkeys(document_ids))
            collections = {rows.document_by_id(writer, i).collection for i in unique}
            if len(collections) != 1:
                raise BadRequest("Documents of exactly one collection can be deleted at once.")
            removed = [chunk_id for i in unique for chunk_id in rows.chunk_ids_of(writer, i)]
            jobs.cancel_for_documents(writer, unique)
            writer.executemany("DELETE FROM documents WHERE id = ?", [(i,) for i in unique])
            return rows.log_change(writer, collections.pop(), removed, [])

    def delete_collection(self, name: str) -> Change:
        """Delete a collection with all its documents and jobs that are not done.

        Raises:
            NotFound: there is no such collection.
        """
        with self._connections.writing() as writer:
            collection_id = rows.collection_id(writer, name)
            found = writer.execute(
                """SELECT k.id FROM chunks k JOIN documents d ON d.id = k.document_id
                WHERE d.collection_id = ? ORDER BY k.id""",
                (collection_id,),
            )
            removed = [row[0] for row in found]
            jobs.cancel_in_collection(writer, name)
            writer.execute("DELETE FROM documents WHERE collection_id = ?", (collection_id,))
            change = rows.log_change(writer, rows.same_name(name), removed, [])
            writer.execute("DELETE FROM collections WHERE id = ?", (collection_id,))
            return change


def _give(writer: sqlite3.Connection, document: Document, attributes: Attributes) -> Change:
    writer.execute("UPDATE documents SET attributes = ? WHERE id = ?", (rows.to_json_object(attributes), document.id))
    return rows.log_change(writer, document.collection, [], [])
