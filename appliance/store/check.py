"""Owns the store's own check: SQLite's integrity check and the invariants between the tables.

Must not know how the rows came to be there.
"""

from __future__ import annotations

import sqlite3

# Each query names the rows that break an invariant; the sentence says which.
_INVARIANTS = (
    (
        "document {0} says it has {1} chunks, but {2} are stored",
        """SELECT d.id, d.chunks, COUNT(k.id) FROM documents d LEFT JOIN chunks k ON k.document_id = d.id
        GROUP BY d.id HAVING d.chunks != COUNT(k.id)""",
    ),
    (
        "the chunks of document {0} are not numbered from 0 without a gap",
        """SELECT document_id FROM chunks GROUP BY document_id
        HAVING MIN(ordinal) != 0 OR MAX(ordinal) != COUNT(*) - 1""",
    ),
    (
        "chunk {0} has no vector",
        "SELECT k.id FROM chunks k LEFT JOIN vectors v ON v.chunk_id = k.id WHERE v.chunk_id IS NULL",
    ),
    (
        "the vector of chunk {0} has {1} bytes, not {2}",
        """SELECT chunk_id, LENGTH(vector), 2 * m.value FROM vectors, meta m
        WHERE m.name = 'dim' AND LENGTH(vector) != 2 * m.value""",
    ),
    (
        "the attributes of document {0} differ from those that filters see",
        """SELECT d.id FROM documents d WHERE
        (SELECT COUNT(*) FROM attributes a WHERE a.document_id = d.id AND a.collection_id = d.collection_id)
        != (SELECT COUNT(*) FROM json_each(d.attributes))
            + (d.attributes ->> '$.filename' IS NULL)
        OR EXISTS (SELECT 1 FROM json_each(d.attributes) e WHERE NOT EXISTS (SELECT 1 FROM attributes a
            WHERE a.document_id = d.id AND a.key = e.key AND a.value
            = CASE e.type WHEN 'true' THEN x'01' WHEN 'false' THEN x'00' ELSE e.value END))""",
    ),
    (
        "collection {0} is of generation {1}, but the store is of {2}",
        """SELECT c.name, c.generation, m.value FROM collections c, meta m
        WHERE m.name = 'generation' AND c.generation > CAST(m.value AS INTEGER)""",
    ),
    (
        "the change log ends at generation {0}, but the store is of {1}",
        """SELECT MAX(generation), m.value FROM changes, meta m WHERE m.name = 'generation'
        GROUP BY m.value HAVING MAX(generation) != CAST(m.value AS INTEGER)""",
    ),
)
_MOST = 20  # rows named per invariant


def problems(reader: sqlite3.Connection) -> list[str]:
    """One sentence per fault found; empty when all is well."""
    found = [row[0] for row in reader.execute(f"PRAGMA integrity_check({_MOST})") if row[0] != "ok"]
    found += [
        f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is gone"
        for row in reader.execute("PRAGMA foreign_key_check").fetchmany(_MOST)
    ]
    for sentence, query in _INVARIANTS:
        found += [sentence.format(*row) for row in reader.execute(query).fetchmany(_MOST)]
    return found
