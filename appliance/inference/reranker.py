"""Owns `OnnxReranker`: (question, passage) pairs to scores with an ONNX cross-encoder.

Must not know how passages were found or how their scores are mixed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from appliance.config import ModelSettings
from appliance.errors import BadRequest, ModelCorrupt
from appliance.inference.encoder import Encoder
from appliance.inference.protocols import RerankScores
from appliance.inference.tokens import CHARACTERS_PER_TOKEN, cut
from appliance.packs.specs import RerankerSpec

Scores = npt.NDArray[np.float32]
BATCH_PAIRS = 16
FIRST_PAIRS = 4  # always scored, whatever the budget


class OnnxReranker:
    """A `Reranker`, verified and loaded at first need. Threads may use one object at the same time."""

    def __init__(self, spec: RerankerSpec, settings: ModelSettings) -> None:
        self._spec = spec
        self._encoder = Encoder(spec, settings)

    def load(self) -> None:
        """Verify and load it now; raises as `Encoder.load` does, and so do the other calls if it was not loaded."""
        self._encoder.load()

    @property
    def max_tokens(self) -> int:
        return self._spec.max_tokens

    @property
    def provider(self) -> str:
        """The execution provider that runs the graph."""
        return self._encoder.model.provider

    def score(self, query: str, passages: Sequence[str], *, budget_ms: float | None = None) -> RerankScores:
        began = time.perf_counter()
        asked, query_cut = self._cap(query)
        logits = np.full(len(passages), np.nan, np.float64)
        truncated: list[int] = []
        # Batches follow the order given, best recall first, so that what a budget leaves out is the tail.
        done = 0
        while done < len(passages):
            spent_ms = (time.perf_counter() - began) * 1000.0
            size = next_batch(done, spent_ms, budget_ms)
            if size == 0:
                break
            batch = passages[done : done + size]
            scores, too_long = self._score_batch(asked, batch)
            logits[done : done + len(batch)] = scores
            truncated += [done + place for place in too_long]
            done += len(batch)
        a, b = self._spec.calibration
        return RerankScores(
            logits=tuple(logits.tolist()),
            probabilities=tuple(_sigmoid(a * logit + b) for logit in logits.tolist()),
            truncated=tuple(truncated),
            query_cut=query_cut,
        )

    def _score_batch(self, query: str, passages: Sequence[str]) -> tuple[Scores, list[int]]:
        """Logits `(n,)`, and the places of passages that were cut."""
        most = self._spec.max_tokens
        longest = most * CHARACTERS_PER_TOKEN
        rows = self._encoder.tokenizer.encode_batch([(query, passage[:longest]) for passage in passages])
        # The passage comes last and the question was capped: what is cut is the passage's end.
        ids, types = [cut(row.ids, most) for row in rows], [cut(row.type_ids, most) for row in rows]
        output, _ = self._encoder.model.run(ids, types, self._spec.pad_id)
        scores = output.reshape(-1)
        if len(scores) != len(passages) or not np.isfinite(scores).all():
            raise ModelCorrupt(
                f"The reranker {self._spec.name} gave no finite score for each pair.",
                remedy="`appliance models verify` says which file is at fault.",
            )
        truncated = [
            place
            for place, (row, passage) in enumerate(zip(rows, passages, strict=True))
            if len(row.ids) > most or len(passage) > longest
        ]
        return scores, truncated

    def _cap(self, query: str) -> tuple[str, bool]:
        """The question, cut at a token's end if it would leave the passages no room."""
        if not query.strip():
            raise BadRequest("An empty question cannot be answered by a passage.")
        tokenizer = self._encoder.tokenizer
        # Half of what the pair template adds belongs to the question.
        added = tokenizer.num_special_tokens_to_add(is_pair=True)
        room = max(1, self._spec.max_query_tokens - (added + 1) // 2)
        row = tokenizer.encode(query[: room * CHARACTERS_PER_TOKEN], add_special_tokens=False)
        if len(row.ids) <= room:
            return query, False
        return query[: row.offsets[room - 1][1]], True


def next_batch(done: int, spent_ms: float, budget_ms: float | None) -> int:
    """How many pairs to score next, 0 to stop: as many as fit the budget at the pace so far, at most 16.

    A first batch of a few pairs tells the pace; without it a slow machine would overrun the budget at once.
    """
    if budget_ms is None:
        return BATCH_PAIRS
    if done == 0:
        return FIRST_PAIRS
    fitting = int((budget_ms - spent_ms) / max(spent_ms / done, 1e-6))
    return max(0, min(BATCH_PAIRS, fitting))


def _sigmoid(value: float) -> float:
    if math.isnan(value):
        return value
    # Written so that neither side overflows.
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))
