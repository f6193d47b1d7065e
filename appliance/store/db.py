"""Owns the store: collections, documents, chunks and vectors in SQLite, and their change log. The truth.

Must not know the indexes that are derived from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from appliance.errors import BadRequest, StoreDamaged
from appliance.store import jobs, keys, rows, schema
from appliance.store.attributes import Attributes, Filter, check_attributes, matching_documents
from appliance.store.check import problems
from appliance.store.connections import Connections
from appliance.store.records import (
    Change,
    Chunk,
    Collection,
    Document,
    NewChunk,
    NewDocument,
    RecallTarget,
    Vectors,
)

STORE_FILE = "store.sqlite3"  # in the data directory
Ids = npt.NDArray[np.int64]  # (n,)


class Store:
    """The one place where documents are kept; usable from several threads.

    A method that writes has committed and fsynced when it returns. Readers see the state before or after a
    write, never between.
    """

    def __init__(self, connections: Connections) -> None:
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

    # -- what is there ------------------------------------------------------------------------------------

    def generation(self) -> int:
        """Generation of the whole store: 0 when new, one more with each committed write."""
        with self._connections.reading() as reader:
            return int(rows.meta(reader, "generation") or 0)

    def identity(self) -> str:
        """Random name given when the file was made: generations of different stores cannot be compared."""
        with self._connections.reading() as reader:
            return rows.meta(reader, "identity") or ""

    def embedder(self) -> str | None:
        """Fingerprint of the embedder that made the stored vectors; None while there are none."""
        with self._connections.reading() as reader:
            return rows.meta(reader, "embedder")

    def collections(self) -> list[Collection]:
        """All collections, by name."""
        with self._connections.reading() as reader:
            return [Collection(*row) for row in reader.execute("SELECT * FROM collection_rows ORDER BY name")]

    def collection(self, name: str) -> Collection:
        """The collection `name`.

        Raises:
            NotFound: there is none of that name; the remedy lists those that exist.
        """
        with self._connections.reading() as reader:
            rows.collection_id(reader, name)
            row = reader.execute("SELECT * FROM collection_rows WHERE name = ?", (rows.same_name(name),)).fetchone()
            return Collection(*row)

    def documents(self, collection: str | None = None) -> list[Document]:
        """Documents of one collection or of all, by collection and source.

        Raises:
            NotFound: there is no such collection.
        """
        with self._connections.reading() as reader:
            if collection is None:
                found = reader.execute("SELECT * FROM document_rows ORDER BY collection, source")
            else:
                rows.collection_id(reader, collection)
                found = reader.execute(
                    "SELECT * FROM document_rows WHERE collection = ? ORDER BY source", (rows.same_name(collection),)
                )
            return [rows.document_of(row) for row in found]

    def document(self, document_id: int) -> Document:
        """One document.

        Raises:
            NotFound: there is none with that id.
        """
        with self._connections.reading() as reader:
            return rows.document_by_id(reader, document_id)

    def find(self, collection: str, source: str) -> Document | None:
        """The document that was ingested as `source`, if there is one."""
        with self._connections.reading() as reader:
            row = reader.execute(
                "SELECT * FROM document_rows WHERE collection = ? AND source = ?", (rows.same_name(collection), source)
            ).fetchone()
            return rows.document_of(row) if row else None

    def chunks(self, ids: Sequence[int]) -> list[Chunk]:
        """The chunks `ids`, in that order; ids that are gone are left out."""
        with self._connections.reading() as reader:
            found = reader.execute(
                "SELECT * FROM chunk_rows WHERE id IN (SELECT value FROM json_each(?))", (rows.to_json(ids),)
            )
            by_id = {row[0]: rows.chunk_of(row) for row in found}
        return [by_id[i] for i in map(int, ids) if i in by_id]

    def chunk_ids(self, document_id: int) -> list[int]:
        """Ids of a document's chunks in its order; empty when the document is gone."""
        with self._connections.reading() as reader:
            return rows.chunk_ids_of(reader, document_id)

    def live_chunk_ids(self, collection: str | None = None) -> Ids:
        """Ids of all chunks of a collection or of the store, ascending, `(n,)` int64.

        Raises:
            NotFound: there is no such collection.
        """
        with self._connections.reading() as reader:
            found = reader.execute(
                """SELECT id FROM chunks WHERE document_id IN
                (SELECT id FROM documents WHERE ?1 IS NULL OR collection_id = ?1) ORDER BY id""",
                (rows.collection_or_all(reader, collection),),
            )
            return np.fromiter((row[0] for row in found), np.int64)

    def matching(self, collection: str, wanted: Filter) -> Ids:
        """Ids of the documents of a collection that a filter lets through, ascending, `(n,)` int64.

        Raises:
            NotFound: there is no such collection.
        """
        with self._connections.reading() as reader:
            sql, values = matching_documents(wanted, rows.collection_id(reader, collection))
            found = reader.execute(f"{sql} ORDER BY document_id", values)
            return np.fromiter((row[0] for row in found), np.int64)

    def chunk_ids_in(self, document_ids: Ids) -> Ids:
        """Ids of all chunks of the documents, ascending, `(n,)` int64."""
        with self._connections.reading() as reader:
            found = reader.execute(
                "SELECT id FROM chunks WHERE document_id IN (SELECT value FROM json_each(?)) ORDER BY id",
                (rows.to_json(document_ids),),
            )
            return np.fromiter((row[0] for row in found), np.int64)

    # -- vectors ------------------------------------------------------------------------------------------

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """Vectors of the chunks `ids` in that order, `(n, dim)` float16; NaN for an id that is gone."""
        with self._connections.reading() as reader:
            dim = int(rows.meta(reader, "dim") or 0)
            found = reader.execute(
                "SELECT chunk_id, vector FROM vectors WHERE chunk_id IN (SELECT value FROM json_each(?))",
                (rows.to_json(ids),),
            )
            blobs: dict[int, bytes] = dict(found)
        result = np.full((len(ids), dim), np.nan, np.float16)
        for place, i in enumerate(ids):
            if int(i) in blobs:
                result[place] = np.frombuffer(blobs[int(i)], "<f2")
        return result

    def all_vectors(self, collection: str | None = None) -> tuple[Ids, Vectors]:
        """Chunk ids `(n,)` int64, ascending, and their vectors `(n, dim)` float16, of one moment.

        Raises:
            NotFound: there is no such collection.
        """
        with self._connections.reading() as reader:
            chosen = (rows.collection_or_all(reader, collection),)
            dim = int(rows.meta(reader, "dim") or 0)
            count: int = reader.execute(
                "SELECT COALESCE(SUM(chunks), 0) FROM documents WHERE ?1 IS NULL OR collection_id = ?1",
                chosen,
            ).fetchone()[0]
            ids = np.empty(count, np.int64)
            vectors = np.empty((count, dim), np.float16)
            found = reader.execute(
                """SELECT v.chunk_id, v.vector FROM vectors v JOIN chunks k ON k.id = v.chunk_id
                WHERE k.document_id IN (SELECT id FROM documents WHERE ?1 IS NULL OR collection_id = ?1)
                ORDER BY v.chunk_id""",
                chosen,
            )
            for place, (chunk_id, vector) in enumerate(found):
                ids[place] = chunk_id
                vectors[place] = np.frombuffer(vector, "<f2")
        return ids, vectors

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
                    pages = ?, encoding = ?, chunks = ?, added_at = ?, losses = ?,
                    attributes = COALESCE(?, attributes) WHERE id = ?""",
                    (*values, kept, document_id),
                )
            else:
                cursor = writer.execute(
                    """INSERT INTO documents (collection_id, source, name, title, sha256, media_type,
                    size_bytes, pages, encoding, chunks, added_at, losses, attributes)
                    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE(?, '{}'))""",
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

    def set_attributes(self, document_id: int, attributes: Attributes) -> tuple[Document, Change]:
        """Give a document these attributes and no others; its chunks and vectors stay.

        Raises:
            NotFound: there is none with that id.
            BadRequest: an attribute is not allowed.
        """
        kept = rows.to_json_object(check_attributes(attributes))
        with self._connections.writing() as writer:
            collection = rows.document_by_id(writer, document_id).collection
            writer.execute("UPDATE documents SET attributes = ? WHERE id = ?", (kept, document_id))
            change = rows.log_change(writer, collection, [], [])
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

    # -- for the derived indexes --------------------------------------------------------------------------

    def changes_since(self, generation: int) -> list[Change] | None:
        """The changes after `generation`, oldest first; None when the log does not tell (then: rebuild).

        None also for a generation that this store has not reached: it is another store's.
        """
        with self._connections.reading() as reader:
            now = int(rows.meta(reader, "generation") or 0)
            found = reader.execute(
                "SELECT * FROM changes WHERE generation > ? ORDER BY generation",
                (generation,),
            ).fetchall()
        if generation > now or len(found) != now - generation:
            return None
        return [Change(row[0], row[1], rows.unpack_ids(row[2]), rows.unpack_ids(row[3])) for row in found]

    def check(self) -> list[str]:
        """What is wrong with the file: SQLite's own check and our invariants; empty when all is well."""
        with self._connections.reading() as reader:
            return problems(reader)
