"""Owns what recall takes and gives.

Must not know wire formats.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from appliance.retrieval.dense.types import Asked
from appliance.store.attributes import Attributes, Filter
from appliance.store.records import RecallTarget

Mode = Literal["hybrid", "lexical", "dense", "funnel"]


class SearchRequest(msgspec.Struct, frozen=True):
    """One search in one collection: what every way of asking comes down to."""

    query: str
    collection: str
    mode: Mode = "hybrid"
    rerank: bool = True
    top_k: int = 10
    rerank_budget_ms: float | None = None
    filters: Filter | None = None  # over the attributes of documents
    recall: RecallTarget | None = None  # of the nearest vectors; None: the collection's
    explain: bool = False
    label: str = ""  # of the caller: what is remembered for one is not found by another


class Scores(msgspec.Struct, frozen=True):
    """The score of every stage that saw the passage; None where it did not."""

    lexical: float | None = None  # BM25
    dense: float | None = None  # cosine, exact
    fused: float | None = None  # calibrated, [0, 1]
    rerank: float | None = None  # calibrated, [0, 1]


class Duplicate(msgspec.Struct, frozen=True):
    """A passage that says the same as a better ranked one, and is not listed itself."""

    document: str
    document_id: int
    page: int | None
    chunk: int


class Passage(msgspec.Struct, frozen=True):
    """A chunk that was found, best first, with what a citation needs."""

    chunk_id: int
    document_id: int
    document: str  # file name
    title: str
    text: str
    heading: str
    page_first: int | None
    page_last: int | None
    score: float  # the one it was ranked by
    scores: Scores
    ordinal: int = 0  # place in its document, from 0
    start: int = 0  # span in the document's text, without what is repeated of the chunk before it
    end: int = 0
    attributes: Attributes = {}  # of the document
    duplicates: tuple[Duplicate, ...] = ()


class Explained(msgspec.Struct, frozen=True):
    """What a search did."""

    recall: RecallTarget  # the target that held
    terms: dict[str, float]  # of the question, in the lexical index, with their weights
    lexical: int  # passages that the lexical half found
    dense: tuple[Asked, ...]  # what each part of the vectors did
    candidates: int  # of both halves together
    documents: int | None = None  # that the filters let through; None without filters


class SearchResult(msgspec.Struct, frozen=True):
    """Passages, best first, with the time of each stage and what was left out."""

    passages: tuple[Passage, ...]
    timings_ms: dict[str, float]
    degraded: tuple[str, ...] = ()
    answered: float | None = None  # probability that the documents answer; None where it cannot be told
    explained: Explained | None = None  # where it was asked for
