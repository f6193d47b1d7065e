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
from appliance.store.db import Store
from appliance.store.records import Change, Document, Loss, NewChunk, NewDocument, Vectors

_EMBED_AT_ONCE = 32  # chunks between two looks at whether to give up: a few seconds of a slow machine
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


class Ingester:
    """Puts documents into the store; for one thread at a time.

    Faults of a document become outcomes. Faults that every further document would meet (a full disk, a
    damaged store, vectors of another embedder) are raised.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        settings: DocumentSettings,
        on_change: Callable[[Change], None],
        before_removal: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called with each committed change before the call that made it returns.

        `before_removal` is called before a document is replaced; what it raises leaves the document as it was.
        """
        self._store = store
        self._embedder = embedder
        self._settings = settings
        self._on_change = on_change
        self._before_removal = before_removal
        self._parser = Parser(settings)
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Have the document that is being read end with `Unavailable`, and every later one. From any thread."""
        self._given_up.set()
        self._parser.interrupt()

    def close(self) -> None:
        """End the parse worker."""
        self._parser.close()

    def ingest_bytes(self, collection: str, source: str, name: str, data: bytes) -> Outcome:
        """Add a document, or replace the one with the same source; on disk and indexed when it returns.

        Args:
            source: identity of the document in its collection.
            name: file name; its extension says how to read it.

        Raises:
            DiskFull, StoreDamaged, EmbedderChanged, Unavailable: nothing was changed.
        """
        started = time.monotonic()
        try:
            if len(data) > self._settings.max_file_bytes:
                raise TooLarge(
                    f"It has {len(data) >> 20} MB; at most {self._settings.max_file_bytes >> 20} MB are read.",
                    remedy="Split it, or raise documents.max_file_bytes.",
                )
            outcome = self._ingest(collection, source, name, data)
        except (UnreadableDocument, TooLarge) as error:
            self._check_given_up()
            outcome = Outcome(source, "failed", error.text)
        return msgspec.structs.replace(outcome, seconds=time.monotonic() - started)

    def _ingest(self, collection: str, source: str, name: str, data: bytes) -> Outcome:
        self._check_given_up()
        digest = hashlib.sha256(data).hexdigest()
        known = self._store.find(collection, source)
        if known is not None and known.sha256 == digest and self._store.embedder() == self._embedder.fingerprint:
            return Outcome(source, "unchanged", document=known, chunks=known.chunks, losses=known.losses)
        parsed = restored(self._parser.parse(name, data), self._embedder.count_tokens)
        chunks = chunks_of(
            parsed.blocks,
            self._embedder.count_tokens,
            chunk_tokens=min(self._settings.chunk_tokens, self._embedder.max_tokens - _RESERVED_TOKENS),
            overlap_tokens=self._settings.overlap_tokens,
        )
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
        )
        vectors = self._vectors(chunks)
        if known is not None:
            self._before_removal()
        document, change = self._store.put(collection, new, chunks, vectors, self._embedder.fingerprint)
        self._on_change(change)
        status: Status = "added" if known is None else "replaced"
        return Outcome(source, status, document=document, chunks=document.chunks, losses=document.losses)

    def _check_given_up(self) -> None:
        if self._given_up.is_set():
            raise Unavailable("The service is stopping; nothing of the document was stored.")

    def _vectors(self, chunks: Sequence[NewChunk]) -> Vectors:
        vectors = np.empty((len(chunks), self._embedder.dim), np.float16)
        for start in range(0, len(chunks), _EMBED_AT_ONCE):
            self._check_given_up()
            texts = [embed_text(chunk) for chunk in chunks[start : start + _EMBED_AT_ONCE]]
            vectors[start : start + len(texts)] = self._embedder.embed_passages(texts)
        return vectors
