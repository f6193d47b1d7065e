"""Owns the rows that cross the store's border.

Must not know SQL: `store.db` reads and writes them.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.store.attributes import Attributes

HEADING_JOINER = " › "
RecallTarget = float | Literal["exact"]  # share of the nearest vectors that a search must find
RECALL_TARGETS: tuple[RecallTarget, ...] = (0.9, 0.95, 0.99, "exact")


class Loss(msgspec.Struct, frozen=True):
    """Something that parsing a document lost or could not read; shown to the user, never silent."""

    kind: str  # e.g. "page_without_text", "image_skipped", "characters_replaced"
    detail: str
    page: int | None = None


class Chunking(msgspec.Struct, frozen=True):
    """How a document is cut, where that is not as the settings say."""

    chunk_tokens: int  # in the embedder's tokens
    overlap_tokens: int


class NewChunk(msgspec.Struct, frozen=True):
    """A chunk as the chunker makes it.

    `start` and `end` are offsets in Unicode code points into the document's extracted text; the spans of a
    document's chunks (without overlap) tile that text.
    """

    text: str
    heading: str  # heading path, outermost first, joined with HEADING_JOINER; "" when there is none
    page_first: int | None
    page_last: int | None
    start: int
    end: int
    tokens: int  # in the embedder's tokens


class NewDocument(msgspec.Struct, frozen=True):
    """A document that was parsed and is ready to be stored."""

    source: str  # identity inside its collection: the path or name it was ingested as
    name: str  # file name, for citations
    title: str
    sha256: str  # of the original bytes
    media_type: str
    size_bytes: int
    pages: int | None
    encoding: str | None
    losses: tuple[Loss, ...] = ()
    chunking: Chunking | None = None


class Document(msgspec.Struct, frozen=True):
    """A stored document."""

    id: int
    collection: str
    source: str
    name: str
    title: str
    sha256: str
    media_type: str
    size_bytes: int
    pages: int | None
    encoding: str | None
    chunks: int
    added_at: str  # ISO 8601, UTC
    losses: tuple[Loss, ...] = ()
    attributes: Attributes = {}
    chunking: Chunking | None = None  # None: as the settings said


class Chunk(msgspec.Struct, frozen=True):
    """A stored chunk with what a citation needs of its document."""

    id: int  # never reused
    document_id: int
    ordinal: int  # place in its document, from 0
    collection: str
    document: str  # the document's file name
    title: str
    text: str
    heading: str
    page_first: int | None
    page_last: int | None
    tokens: int
    start: int = 0  # span in the document's extracted text, in code points
    end: int = 0
    attributes: Attributes = {}  # of the document


class Collection(msgspec.Struct, frozen=True):
    """A collection and its size."""

    name: str
    documents: int
    chunks: int
    generation: int  # grows with every change of this collection
    recall: RecallTarget | None = None  # of searches that do not say; None: the program's default


class Change(msgspec.Struct, frozen=True):
    """What one committed write did to the chunks: the derived indexes are brought up to date from these.

    Both lists are empty where only attributes or the collection's default changed: what was kept of earlier
    answers is out of date all the same.
    """

    generation: int  # of the whole store; strictly increasing
    collection: str
    removed: tuple[int, ...]  # chunk ids
    added: tuple[int, ...]  # chunk ids


Vectors = npt.NDArray[np.float16]  # (n, dim), unit length
