"""Small embedders and rerankers whose results can be told from the words, and shorthand to fill a store."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from appliance.config import RecallSettings
from appliance.inference.protocols import Embeddings, RerankScores
from appliance.retrieval.search import Recall
from appliance.store.db import Store
from appliance.store.records import Change, NewChunk, NewDocument

DIM = 32


class WordEmbedder:
    """The sum of one fixed random direction per word: texts that share words are near."""

    def __init__(self, fingerprint: str = "words", dim: int = DIM) -> None:
        self.dim = dim
        self.fingerprint = fingerprint
        self.max_tokens = 512

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def embed_queries(self, texts: Sequence[str]) -> Embeddings:
        return self.embed_passages(texts)

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        rows = [sum(map(self._direction, text.lower().split() or [text])) for text in texts]
        matrix = np.array(rows, np.float32).reshape(len(texts), self.dim)
        unit: Embeddings = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        return unit

    def _direction(self, word: str) -> Embeddings:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
        return np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)


class OverlapReranker:
    """The share of the question's words that the passage has; `scored` at most, as if the budget ran out."""

    max_tokens = 256

    def __init__(self, scored: int | None = None, truncated: tuple[int, ...] = ()) -> None:
        self.scored = scored
        self.truncated = truncated
        self.seen: list[str] = []
        self.budget_ms: float | None = None

    def score(self, query: str, passages: Sequence[str], *, budget_ms: float | None = None) -> RerankScores:
        self.seen = list(passages)
        self.budget_ms = budget_ms
        words = set(query.lower().split())
        shares = [len(words & set(passage.lower().split())) / len(words) for passage in passages]
        logits = [8.0 * share - 4.0 for share in shares]
        limit = len(logits) if self.scored is None else self.scored
        logits = [logit if place < limit else float("nan") for place, logit in enumerate(logits)]
        probabilities = tuple(float(1 / (1 + np.exp(-logit))) for logit in logits)
        return RerankScores(tuple(logits), probabilities, self.truncated)


def put(
    store: Store,
    source: str,
    texts: Sequence[str],
    *,
    collection: str = "manuals",
    heading: str = "",
    embedder: WordEmbedder | None = None,
) -> Change:
    """Store `texts` as the chunks, one a page, of document `source`."""
    embedder = embedder or WordEmbedder()
    chunks = [
        NewChunk(
            text=text,
            heading=heading,
            page_first=page,
            page_last=page,
            start=0,
            end=len(text),
            tokens=len(text.split()),
        )
        for page, text in enumerate(texts, 1)
    ]
    document = NewDocument(
        source=source,
        name=Path(source).name,
        title=f"Title of {source}",
        sha256=hashlib.sha256("\n".join(texts).encode()).hexdigest(),
        media_type="text/plain",
        size_bytes=sum(map(len, texts)),
        pages=len(texts),
        encoding="utf-8",
    )
    vectors = embedder.embed_passages([f"{heading}\n{text}" if heading else text for text in texts])
    return store.put(collection, document, chunks, vectors.astype(np.float16), embedder.fingerprint)[1]


def recall_over(
    store: Store,
    folder: Path,
    *,
    reranker: OverlapReranker | None = None,
    settings: RecallSettings | None = None,
    exact_limit: int = 1000,
    embedder: WordEmbedder | None = None,
) -> Recall:
    """An open `Recall` over `store` with the fakes."""
    recall = Recall(
        store,
        folder,
        embedder or WordEmbedder(),
        reranker,
        settings or RecallSettings(),
        None,
        exact_limit=exact_limit,
    )
    recall.open()
    return recall
