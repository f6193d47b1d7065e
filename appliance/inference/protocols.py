"""Owns the two seams that recall and ingestion are built on: `Embedder` and `Reranker`.

Must not know which runtime is behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Embeddings = npt.NDArray[np.float32]  # (n, dim), unit length


class RerankScores(msgspec.Struct, frozen=True):
    """Scores of passages for one query.

    `logits` holds one float per passage, in the order given; NaN where the budget ran out before it was
    scored. `probabilities` are the same, calibrated to [0, 1]. `truncated` lists the places of passages that
    did not fit the model and were cut; `query_cut` says that the query itself did not.
    """

    logits: tuple[float, ...]
    probabilities: tuple[float, ...]
    truncated: tuple[int, ...]
    query_cut: bool = False


class Embedder(Protocol):
    """Turns texts into unit vectors."""

    @property
    def dim(self) -> int:
        """Length of a vector."""

    @property
    def fingerprint(self) -> str:
        """Changes when the vectors would: vectors of different fingerprints must not be mixed."""

    @property
    def max_tokens(self) -> int:
        """The most tokens of one text that are read, special tokens and prefix included."""

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without prefix and special tokens, not truncated."""

    def embed_queries(self, texts: Sequence[str]) -> Embeddings:
        """Unit vectors `(n, dim)` float32 of questions."""

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        """Unit vectors `(n, dim)` float32 of passages; batched by length inside."""


class Reranker(Protocol):
    """Scores how well a passage answers a question."""

    @property
    def max_tokens(self) -> int:
        """The most tokens of a question and a passage together, special tokens included."""

    def score(self, query: str, passages: Sequence[str], *, budget_ms: float | None = None) -> RerankScores:
        """Score `passages` in the order given, in batches of at most 16, stopping before `budget_ms` is overrun.

        A first small batch is always scored.
        """
