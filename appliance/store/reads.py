"""Owns what can be read of the store: every question to it in one place, whichever moment it is asked of.

Must not know writes, nor where its connections come from.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from appliance.store import rows
from appliance.store.attributes import Filter, matching_documents
from appliance.store.check import problems
from appliance.store.records import Change, Chunk, Collection, Document, Vectors

Ids = npt.NDArray[np.int64]  # (n,)


class Reads:
    """Questions to a store: to each moment at which one is asked, or all to one moment. For any thread.

    Args:
        reading: a connection in a read transaction, for the block.
    """

    def __init__(self, reading: Callable[[], AbstractContextManager[sqlite3.Connection]]) -> None:
        self._reading = reading

    # -- what is there ------------------------------------------------------------------------------------

    def generation(self) -> int:
        """Generation of the whole store: 0 when new, one more with each committed write."""
        with self._reading() as reader:
            return int(rows.meta(reader, "generation") or 0)

    def identity(self) -> str:
        """Random name given when the file was made: generations of different stores cannot be compared."""
        with self._reading() as reader:
            return rows.meta(reader, "identity") or ""

    def embedder(self) -> str | None:
        """Fingerprint of the embedder that made the stored vectors; None while there are none."""
        with self._reading() as reader:
            return rows.meta(reader, "embedder")

    def collections(self) -> list[Collection]:
        """All collections, by name."""
        with self._reading() as reader:
            return [Collection(*row) for row in reader.execute("SELECT * FROM collection_rows ORDER BY name")]

    def collection(self, name: str) -> Collection:
        """The collection `name`.

        Raises:
            NotFound: there is none of that name; the remedy lists those that exist.
        """
        with self._reading() as reader:
            rows.collection_id(reader, name)
            row = reader.execute("SELECT * FROM collection_rows WHERE name = ?", (rows.same_name(name),)).fetchone()
            return Collection(*row)

    def documents(self, collection: str | None = None) -> list[Document]:
        """Documents of one collection or of all, by collection and source.

        Raises:
            NotFound: there is no such collection.
        """
        with self._reading() as reader:
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
        with self._reading() as reader:
            return rows.document_by_id(reader, document_id)

    def find(self, collection: str, source: str) -> Document | None:
        """The document that was ingested as `source`, if there is one."""
        with self._reading() as reader:
            row = reader.execute(
                "SELECT * FROM document_rows WHERE collection = ? AND source = ?", (rows.same_name(collection), source)
            ).fetchone()
            return rows.document_of(row) if row else None

    def chunks(self, ids: Sequence[int]) -> list[Chunk]:
        """The chunks `ids`, in that order; ids that are gone are left out."""
        with self._reading() as reader:
            found = reader.execute(
                "SELECT * FROM chunk_rows WHERE id IN (SELECT value FROM json_each(?))", (rows.to_json(ids),)
            )
            by_id = {row[0]: rows.chunk_of(row) for row in found}
        return [by_id[i] for i in map(int, ids) if i in by_id]

    def chunk_ids(self, document_id: int) -> list[int]:
        """Ids of a document's chunks in its order; empty when the document is gone."""
        with self._reading() as reader:
            return rows.chunk_ids_of(reader, document_id)

    def live_chunk_ids(self, collection: str | None = None) -> Ids:
        """Ids of all chunks of a collection or of the store, ascending, `(n,)` int64.

        Raises:
            NotFound: there is no such collection.
        """
        with self._reading() as reader:
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
        with self._reading() as reader:
            sql, values = matching_documents(wanted, rows.collection_id(reader, collection))
            found = reader.execute(f"{sql} ORDER BY document_id", values)
            return np.fromiter((row[0] for row in found), np.int64)

    def chunk_ids_in(self, document_ids: Ids) -> Ids:
        """Ids of all chunks of the documents, ascending, `(n,)` int64."""
        with self._reading() as reader:
            found = reader.execute(
                "SELECT id FROM chunks WHERE document_id IN (SELECT value FROM json_each(?)) ORDER BY id",
                (rows.to_json(document_ids),),
            )
            return np.fromiter((row[0] for row in found), np.int64)

    # -- vectors ------------------------------------------------------------------------------------------

    def vectors(self, ids: Sequence[int]) -> Vectors:
        """Vectors of the chunks `ids` in that order, `(n, dim)` float16; NaN for an id that is gone."""
        with self._reading() as reader:
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
        with self._reading() as reader:
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

    # -- for the derived indexes --------------------------------------------------------------------------

    def changes_since(self, generation: int) -> list[Change] | None:
        """The changes after `generation`, oldest first; None when the log does not tell (then: rebuild).

        None also for a generation that this store has not reached: it is another store's.
        """
        with self._reading() as reader:
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
        with self._reading() as reader:
            return problems(reader)
