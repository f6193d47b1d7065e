"""Owns what recall takes and gives.

Must not know wire formats.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["hybrid", "lexical", "dense", "funnel"]


class SearchRequest(msgspec.Struct, frozen=True):
    """One search in one collection."""

    query: str
    collection: str
    mode: Mode = "hybrid"
    rerank: bool = True
    top_k: int = 10
    rerank_budget_ms: float | None = None


class Scores(msgspec.Struct, frozen=True):
    """The score of every stage that saw the passage; None where it did not."""

    lexical: float | None = None  # BM25
    dense: float | None = None  # cosine, exact
    fused: float | None = None  # calibrated, [0, 1]
    rerank: float | None = None  # calibrated, [0, 1]


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


class SearchResult(msgspec.Struct, frozen=True):
    """Passages, best first, with the time of each stage and what was left out."""

    passages: tuple[Passage, ...]
    timings_ms: dict[str, float]
    degraded: tuple[str, ...] = ()
    answered: float | None = None  # probability that the documents answer; None where it cannot be told
