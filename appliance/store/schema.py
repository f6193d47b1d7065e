"""Owns the tables of the store and the way from each version of them to the next.

Must not know what the rows mean to search or to answers.
"""

from __future__ import annotations

import secrets
import sqlite3
import unicodedata

# One entry per version: the statements that lead to it from the version before. Entries are never edited
# once released; a change of the tables is a new entry.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE collections (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            generation INTEGER NOT NULL)""",
        """CREATE TABLE documents (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            collection_id INTEGER NOT NULL REFERENCES collections (id),
            source TEXT NOT NULL,
            name TEXT NOT NULL,
            title TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            media_type TEXT NOT NULL,
            size_bytes INTEGER NOT NULL,
            pages INTEGER,
            encoding TEXT,
            chunks INTEGER NOT NULL,
            added_at TEXT NOT NULL,
            losses TEXT NOT NULL,
            UNIQUE (collection_id, source))""",
        """CREATE TABLE chunks (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
            ordinal INTEGER NOT NULL,
            text TEXT NOT NULL,
            heading TEXT NOT NULL,
            page_first INTEGER,
            page_last INTEGER,
            span_start INTEGER NOT NULL,
            span_end INTEGER NOT NULL,
            tokens INTEGER NOT NULL,
            UNIQUE (document_id, ordinal))""",
        # Vectors stand in a table of their own so that a scan of them does not read the texts.
        """CREATE TABLE vectors (
            chunk_id INTEGER PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
            vector BLOB NOT NULL)""",
        # `removed` and `added` are chunk ids as little-endian int64.
        """CREATE TABLE changes (
            generation INTEGER PRIMARY KEY,
            collection TEXT NOT NULL,
            removed BLOB NOT NULL,
            added BLOB NOT NULL)""",
        """INSERT INTO meta VALUES ('generation', '0')""",
        # The columns of the views are the fields of the records, in their order.
        """CREATE VIEW document_rows AS
            SELECT d.id, c.name AS collection, d.source, d.name, d.title, d.sha256, d.media_type,
            d.size_bytes, d.pages, d.encoding, d.chunks, d.added_at, d.losses
            FROM documents d JOIN collections c ON c.id = d.collection_id""",
        """CREATE VIEW chunk_rows AS
            SELECT k.id, k.document_id, k.ordinal, c.name AS collection, d.name AS document, d.title, k.text,
            k.heading, k.page_first, k.page_last, k.tokens, k.span_start, k.span_end
            FROM chunks k JOIN documents d ON d.id = k.document_id
            JOIN collections c ON c.id = d.collection_id""",
        """CREATE VIEW collection_rows AS
            SELECT c.name, COUNT(d.id), COALESCE(SUM(d.chunks), 0), c.generation
            FROM collections c LEFT JOIN documents d ON d.collection_id = c.id GROUP BY c.id""",
    ),
    (
        """ALTER TABLE documents ADD COLUMN attributes TEXT NOT NULL DEFAULT '{}'""",
        # No type: a number or the word 'exact'; NULL where the collection has no default of its own.
        """ALTER TABLE collections ADD COLUMN recall""",
        # What filters read, one row a pair: made from `documents.attributes` by the triggers, and never otherwise.
        # Booleans are blobs of one byte, so that they are neither numbers nor texts.
        """CREATE TABLE attributes (
            document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
            key TEXT NOT NULL,
            value NOT NULL,
            collection_id INTEGER NOT NULL,
            PRIMARY KEY (document_id, key)) WITHOUT ROWID""",
        """CREATE INDEX attributes_by_value ON attributes (collection_id, key, value, document_id)""",
        """CREATE TRIGGER document_added AFTER INSERT ON documents BEGIN
            INSERT INTO attributes
            SELECT NEW.id, key, CASE type WHEN 'true' THEN x'01' WHEN 'false' THEN x'00' ELSE value END,
            NEW.collection_id FROM json_each(NEW.attributes);
            INSERT OR IGNORE INTO attributes VALUES (NEW.id, 'filename', NEW.name, NEW.collection_id);
        END""",
        """CREATE TRIGGER document_changed AFTER UPDATE OF attributes, name ON documents BEGIN
            DELETE FROM attributes WHERE document_id = NEW.id;
            INSERT INTO attributes
            SELECT NEW.id, key, CASE type WHEN 'true' THEN x'01' WHEN 'false' THEN x'00' ELSE value END,
            NEW.collection_id FROM json_each(NEW.attributes);
            INSERT OR IGNORE INTO attributes VALUES (NEW.id, 'filename', NEW.name, NEW.collection_id);
        END""",
        """INSERT INTO attributes SELECT id, 'filename', name, collection_id FROM documents""",
        """DROP VIEW document_rows""",
        """CREATE VIEW document_rows AS
            SELECT d.id, c.name AS collection, d.source, d.name, d.title, d.sha256, d.media_type,
            d.size_bytes, d.pages, d.encoding, d.chunks, d.added_at, d.losses, d.attributes
            FROM documents d JOIN collections c ON c.id = d.collection_id""",
        """DROP VIEW chunk_rows""",
        """CREATE VIEW chunk_rows AS
            SELECT k.id, k.document_id, k.ordinal, c.name AS collection, d.name AS document, d.title, k.text,
            k.heading, k.page_first, k.page_last, k.tokens, k.span_start, k.span_end, d.attributes
            FROM chunks k JOIN documents d ON d.id = k.document_id
            JOIN collections c ON c.id = d.collection_id""",
        """DROP VIEW collection_rows""",
        """CREATE VIEW collection_rows AS
            SELECT c.name, COUNT(d.id), COALESCE(SUM(d.chunks), 0), c.generation, c.recall
            FROM collections c LEFT JOIN documents d ON d.collection_id = c.id GROUP BY c.id""",
    ),
    (
        # A name that is the same text in another Unicode form is the same name. Where both were there, one gets its
        # number behind it: their documents are kept apart as they were.
        """UPDATE OR IGNORE collections SET name = nfc(name) WHERE name != nfc(name)""",
        """UPDATE collections SET name = nfc(name) || ' (' || id || ')' WHERE name != nfc(name)""",
    ),
    (
        # What is to be read: see `store.jobs`. A job outlives its document, and is there before its collection.
        """CREATE TABLE jobs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            collection TEXT NOT NULL,
            source TEXT NOT NULL,
            name TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            size_bytes INTEGER NOT NULL,
            patient INTEGER NOT NULL,
            state TEXT NOT NULL,
            ending TEXT NOT NULL DEFAULT '',
            reason TEXT NOT NULL DEFAULT '',
            retryable INTEGER NOT NULL DEFAULT 0,
            attempts INTEGER NOT NULL DEFAULT 0,
            retry_at REAL NOT NULL DEFAULT 0,
            document_id INTEGER,
            chunks INTEGER NOT NULL DEFAULT 0,
            created_at TEXT NOT NULL,
            updated_at TEXT NOT NULL)""",
        """CREATE INDEX jobs_by_state ON jobs (state, id)""",
        """CREATE INDEX jobs_live ON jobs (collection, source, id) WHERE state IN ('queued', 'parsing', 'embedding')""",
        """CREATE INDEX jobs_by_sha256 ON jobs (sha256)""",
        """CREATE INDEX documents_by_sha256 ON documents (sha256)""",
    ),
    (
        # API keys: see `store.keys`. A revoked one stays, to be shown; its name is free again.
        """CREATE TABLE keys (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            scopes TEXT NOT NULL,
            created_at TEXT NOT NULL,
            expires_at TEXT,
            revoked_at TEXT,
            rate_per_min INTEGER,
            concurrency INTEGER,
            hash TEXT NOT NULL)""",
        """CREATE UNIQUE INDEX keys_by_name ON keys (name) WHERE revoked_at IS NULL""",
    ),
    (
        # What a job gives its document comes with it: JSON; NULL: as it was, as the settings say.
        """ALTER TABLE jobs ADD COLUMN attributes TEXT""",
        """ALTER TABLE jobs ADD COLUMN chunking TEXT""",
        """ALTER TABLE jobs ADD COLUMN started_at TEXT""",
        # The number of the last change of a job, over all jobs: who watches them asks for what came since.
        """ALTER TABLE jobs ADD COLUMN revision INTEGER NOT NULL DEFAULT 0""",
        """UPDATE jobs SET revision = id""",
        """CREATE TABLE job_revision (number INTEGER NOT NULL)""",
        """INSERT INTO job_revision SELECT COALESCE(MAX(id), 0) FROM jobs""",
        """CREATE INDEX jobs_by_revision ON jobs (revision)""",
        """CREATE TRIGGER job_added AFTER INSERT ON jobs BEGIN
            UPDATE job_revision SET number = number + 1;
            UPDATE jobs SET revision = (SELECT number FROM job_revision) WHERE id = NEW.id;
        END""",
        """CREATE TRIGGER job_changed AFTER UPDATE ON jobs WHEN NEW.revision = OLD.revision BEGIN
            UPDATE job_revision SET number = number + 1;
            UPDATE jobs SET revision = (SELECT number FROM job_revision) WHERE id = NEW.id;
        END""",
        """ALTER TABLE documents ADD COLUMN chunking TEXT""",
        """DROP VIEW document_rows""",
        """CREATE VIEW document_rows AS
            SELECT d.id, c.name AS collection, d.source, d.name, d.title, d.sha256, d.media_type,
            d.size_bytes, d.pages, d.encoding, d.chunks, d.added_at, d.losses, d.attributes, d.chunking
            FROM documents d JOIN collections c ON c.id = d.collection_id""",
    ),
)

VERSION = len(MIGRATIONS)


def migrate(writer: sqlite3.Connection, found: int) -> None:
    """Bring the tables from version `found` to `VERSION`, each step in a transaction of its own."""
    writer.create_function("nfc", 1, lambda text: unicodedata.normalize("NFC", text), deterministic=True)
    for version in range(found, VERSION):
        writer.execute("BEGIN IMMEDIATE")
        try:
            for statement in MIGRATIONS[version]:
                writer.execute(statement)
            if version == 0:
                writer.execute("INSERT INTO meta VALUES ('identity', ?)", (secrets.token_hex(16),))
            writer.execute(f"PRAGMA user_version = {version + 1}")
            writer.execute("COMMIT")
        except BaseException:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise
