"""Owns the whole way of a document: bytes → blocks → chunks → vectors → store → word to the indexes.

Must not know how the indexes use the word, nor HTTP or terminals.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np

from appliance.config import DocumentSettings
from appliance.documents.chunk import chunks_of, embed_text
from appliance.documents.ligatures import restored
from appliance.documents.model import clean
from appliance.documents.parser import Parser
from appliance.documents.walk import FoundFile, read_file
from appliance.errors import TooLarge, Unavailable, UnreadableDocument
from appliance.inference.protocols import Embedder
from appliance.store.attributes import Attributes
from appliance.store.db import Store
from appliance.store.records import Change, Chunking, Document, Loss, NewChunk, NewDocument, Vectors
from appliance.telemetry import span

_BATCH_S = 0.25  # of embedding between two looks at whether to wait or to give up
_EMBED_FIRST, _EMBED_MOST = 4, 64  # chunks at once: before anything was measured, and ever
_RESERVED_TOKENS = 16  # of the embedder's limit: special tokens, prefix, and tokens that joining pieces adds

Status = Literal["added", "replaced", "unchanged", "skipped", "failed"]


class Outcome(msgspec.Struct, frozen=True):
    """What became of one file."""

    source: str
    status: Status
    reason: str = ""  # why it failed or was skipped
    document: Document | None = None  # as stored now
    chunks: int = 0
    losses: tuple[Loss, ...] = ()
    seconds: float = 0.0


def read_or_say(found: FoundFile, most_bytes: int) -> bytes | Outcome:
    """The bytes of a file that `walk.find_files` found, or what becomes of it without them."""
    if found.status:
        return Outcome(found.source, found.status, found.problem)
    try:
        return read_file(found, most_bytes)
    except (UnreadableDocument, TooLarge) as error:
        return Outcome(found.source, "failed", error.text)


class Prepared(msgspec.Struct, frozen=True):
    """A document that was read and cut, and waits for its vectors."""

    collection: str
    document: NewDocument
    chunks: Sequence[NewChunk]


class Ingester:
    """The stages of a document's way in: `prepare`, `embed`, `store`; each for one thread at a time.

    Faults that every further document would meet (a full disk, a damaged store, vectors of another embedder) are
    raised as they are.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        settings: DocumentSettings,
        on_change: Callable[[Change], None],
        before_removal: Callable[[], None] = lambda: None,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called with each committed change before the call that made it returns.

        `before_removal` is called before a document is replaced; what it raises leaves the document as it was.
        `catch_up` is called before a document is said to be there unchanged: an earlier `on_change` may have raised.
        """
        self._store = store
        self._embedder = embedder
        self._settings = settings
        self._on_change = on_change
        self._before_removal = before_removal
        self._catch_up = catch_up
        self._parser = Parser(settings)
        self._given_up = threading.Event()
        self._at_once = _EMBED_FIRST

    def give_up(self) -> None:
        """Have the document that is being read end with `Unavailable`, and every later one. From any thread."""
        self._given_up.set()
        self._parser.interrupt()

    def close(self) -> None:
        """End the parse worker."""
        self._parser.close()

    def ingest_bytes(self, collection: str, source: str, name: str, data: bytes) -> Outcome:
        """All stages of one document, without a queue; on disk and indexed when it returns.

        Faults of the document become an outcome.

        Raises:
            DiskFull, StoreDamaged, EmbedderChanged, Unavailable: nothing was changed.
        """
        started = time.monotonic()
        try:
            work = self.prepare(collection, source, name, data)
        except (UnreadableDocument, TooLarge) as error:
            outcome = Outcome(source, "failed", error.text)
        else:
            outcome = self.keep(work) if isinstance(work, Document) else self.store(work, self.embed(work))
        return msgspec.structs.replace(outcome, seconds=time.monotonic() - started)

    def prepare(
        self, collection: str, source: str, name: str, data: bytes, chunking: Chunking | None = None
    ) -> Prepared | Document:
        """Read and cut a document; what is stored, if that is the same: then `keep` it.

        Args:
            collection: its collection.
            source: identity of the document in its collection.
            name: file name; its extension says how to read it.
            data: its bytes.
            chunking: None: as the settings say.

        Raises:
            UnreadableDocument, TooLarge: it cannot be read; it would fail again.
            Unavailable: `give_up` was called.
        """
        self._check_given_up()
        if len(data) > self._settings.max_file_bytes:
            raise TooLarge(
                f"It has {len(data) >> 20} MB; at most {self._settings.max_file_bytes >> 20} MB are read.",
                remedy="Split it, or raise documents.max_file_bytes.",
            )
        digest = hashlib.sha256(data).hexdigest()
        known = self._store.find(collection, source)
        if (
            known is not None
            and (known.sha256, known.chunking) == (digest, chunking)
            and self._store.embedder() == self._embedder.fingerprint
        ):
            return known
        cut = chunking or Chunking(self._settings.chunk_tokens, self._settings.overlap_tokens)
        try:
            with span("parse", size_bytes=len(data)) as reading:
                parsed = restored(self._parser.parse(name, data), self._embedder.count_tokens)
                reading.attributes |= {"media_type": parsed.media_type, "pages": parsed.pages or 0}
        except UnreadableDocument:
            self._check_given_up()
            raise
        cutting = span("chunk", blocks=len(parsed.blocks)).begin()
        chunks = chunks_of(
            parsed.blocks,
            self._embedder.count_tokens,
            chunk_tokens=min(cut.chunk_tokens, self._embedder.max_tokens - _RESERVED_TOKENS),
            overlap_tokens=cut.overlap_tokens,
        )
        cutting.set("chunks", len(chunks))
        cutting.end()
        new = NewDocument(
            source=source,
            name=name,
            title=clean(parsed.title),
            sha256=digest,
            media_type=parsed.media_type,
            size_bytes=len(data),
            pages=parsed.pages,
            encoding=parsed.encoding,
            losses=parsed.losses,
            chunking=chunking,
        )
        return Prepared(collection, new, chunks)

    def embed(self, work: Prepared, between: Callable[[int], None] = lambda done: None) -> Vectors:
        """The vectors of its chunks, `(n, dim)` float16.

        Args:
            between: called before each batch with the number of chunks that are done; may wait, and may raise.

        Raises:
            Unavailable: `give_up` was called.
        """
        chunks = work.chunks
        vectors = np.empty((len(chunks), self._embedder.dim), np.float16)
        start, computed_s = 0, 0.0
        with span("embed", chunks=len(chunks)) as embedding:
            while start < len(chunks):
                between(start)
                self._check_given_up()
                texts = [embed_text(chunk) for chunk in chunks[start : start + self._at_once]]
                began = time.monotonic()
                vectors[start : start + len(texts)] = self._embedder.embed_passages(texts)
                took_s = time.monotonic() - began
                computed_s += took_s
                self._at_once = next_batch(len(texts), took_s, self._at_once)
                start += len(texts)
            embedding.set("computed_ms", round(computed_s * 1000, 1))  # the rest gave way to questions
        return vectors

    def keep(self, document: Document, attributes: Attributes | None = None, job: int | None = None) -> Outcome:
        """Leave a document as it is, but perhaps for its attributes, and end its job with that.

        On disk and indexed when it returns.

        Args:
            document: what `prepare` found.
            attributes: replace those it had; None: they stay.
            job: ends with this, in the same transaction.

        Raises:
            JobEnded: the job was cancelled; nothing was changed.
            NotFound: the document was deleted meanwhile.
            DiskFull, StoreDamaged, Unavailable: nothing was changed.
        """
        self._catch_up()
        kept, change = self._store.keep(document.id, attributes, job)
        if change is not None:
            self._on_change(change)
        return Outcome(kept.source, "unchanged", document=kept, chunks=kept.chunks, losses=kept.losses)

    def store(
        self, work: Prepared, vectors: Vectors, attributes: Attributes | None = None, job: int | None = None
    ) -> Outcome:
        """Add the document, or replace the one with the same source, and end its job with it.

        On disk and indexed when it returns.

        Args:
            work: what `prepare` made.
            vectors: of its chunks, `(n, dim)`.
            attributes: replace those that the document had; None: they stay.
            job: ends with this, in the same transaction.

        Raises:
            JobEnded: the job was cancelled; nothing was changed.
            DiskFull, StoreDamaged, EmbedderChanged, Unavailable: nothing was changed; or the store was, the job has
                ended, and the indexes follow when they can.
        """
        known = self._store.find(work.collection, work.document.source)
        if known is not None:
            self._before_removal()
        document, change = self._store.put(
            work.collection, work.document, work.chunks, vectors, self._embedder.fingerprint, attributes, job
        )
        self._on_change(change)
        status: Status = "added" if known is None else "replaced"
        return Outcome(document.source, status, document=document, chunks=document.chunks, losses=document.losses)

    def _check_given_up(self) -> None:
        if self._given_up.is_set():
            raise Unavailable("The service is stopping; nothing of the document was stored.")


def next_batch(texts: int, seconds: float, before: int) -> int:
    """How many texts to embed at once, so that a question that comes meanwhile waits for about `_BATCH_S` seconds.

    Twice as many as the last time at most: a short batch of short texts says little.
    """
    wanted = int(texts * _BATCH_S / max(seconds, 1e-6))
    return max(1, min(wanted, 2 * before, _EMBED_MOST))
