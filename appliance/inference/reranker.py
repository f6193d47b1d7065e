"""Owns `OnnxReranker`: (question, passage) pairs to scores with an ONNX cross-encoder.

Must not know how passages were found or how their scores are mixed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from appliance.config import ModelSettings
from appliance.errors import BadRequest, ModelCorrupt, Unavailable
from appliance.inference.encoder import Encoder
from appliance.inference.once import Once
from appliance.inference.onnx import CPU
from appliance.inference.protocols import RerankScores
from appliance.inference.schedule import Limits
from appliance.inference.shared import SharedRuns
from appliance.inference.tokens import CHARACTERS_PER_TOKEN, cut
from appliance.packs.specs import RerankerSpec

CPU_LIMITS = Limits(items=16, tokens=256, waste=1.25)
GPU_LIMITS = Limits(items=16, tokens=8192, waste=2.0)
_SLICE = 64  # pairs that are tokenized at a time: a budget that ends early does not pay for a thousand


class Pair(msgspec.Struct, frozen=True):
    """A question and a passage as the model reads them."""

    ids: Sequence[int]
    types: Sequence[int]
    truncated: bool


class OnnxReranker:
    """A `Reranker`, verified and loaded at first need. Threads may use one object at the same time; they share it."""

    def __init__(self, spec: RerankerSpec, settings: ModelSettings) -> None:
        self._spec = spec
        self._encoder = Encoder(spec, settings, side_by_side=True)
        self._runs = Once(self._shared_runs)
        self._closed = False

    def load(self) -> None:
        """Verify and load it now; raises as `Encoder.load` does, and so do the other calls if it was not loaded."""
        self._encoder.load()

    def close(self) -> None:
        """Let the running batches end; those who wait for scores get `Unavailable`, and so do later calls."""
        self._closed = True
        if self._runs.made is not None:
            self._runs.made.close()

    @property
    def max_tokens(self) -> int:
        return self._spec.max_tokens

    @property
    def provider(self) -> str:
        """The execution provider that runs the graph."""
        return self._encoder.model.provider

    def score(self, query: str, passages: Sequence[str], *, budget_ms: float | None = None) -> RerankScores:
        deadline = math.inf if budget_ms is None else time.monotonic() + budget_ms / 1000.0
        asked, query_cut = self._cap(query)
        runs = self._runs.get()
        if self._closed:
            raise Unavailable("The service is stopping.")
        logits: list[float] = []
        truncated: list[int] = []
        for begin in range(0, len(passages), _SLICE):
            pairs = self._pairs(asked, passages[begin : begin + _SLICE])
            found = runs.ask(pairs, [len(pair.ids) for pair in pairs], deadline=deadline)
            truncated += [begin + place for place, pair in enumerate(pairs) if pair.truncated]
            # Recall's order is best first: what is left out is its tail, also if a later pair was done by chance.
            head = _head(found)
            logits += head
            if len(head) < len(pairs):
                break
        a, b = self._spec.calibration
        missing = [math.nan] * (len(passages) - len(logits))
        return RerankScores(
            logits=(*logits, *missing),
            probabilities=(*(_sigmoid(a * logit + b) for logit in logits), *missing),
            truncated=tuple(place for place in truncated if place < len(logits)),
            query_cut=query_cut,
        )

    def _shared_runs(self) -> SharedRuns[Pair, float]:
        model = self._encoder.model
        limits = CPU_LIMITS if model.provider == CPU else GPU_LIMITS
        return SharedRuns(self._run, limits, threads=model.runs_at_once, name="rerank")

    def _run(self, pairs: Sequence[Pair]) -> list[float]:
        """The logit of each pair, in one batch."""
        model = self._encoder.model
        output, _ = model.run([pair.ids for pair in pairs], [pair.types for pair in pairs], self._spec.pad_id)
        logits = output.reshape(-1)
        if len(logits) != len(pairs) or not np.isfinite(logits).all():
            raise ModelCorrupt(
                f"The reranker {self._spec.name} gave no finite score for each pair.",
                remedy="`appliance models verify` says which file is at fault.",
            )
        return [float(logit) for logit in logits]

    def _pairs(self, query: str, passages: Sequence[str]) -> list[Pair]:
        most = self._spec.max_tokens
        longest = most * CHARACTERS_PER_TOKEN
        rows = self._encoder.tokenizer.encode_batch([(query, passage[:longest]) for passage in passages])
        # The passage comes last and the question was capped: what is cut is the passage's end.
        return [
            Pair(cut(row.ids, most), cut(row.type_ids, most), len(row.ids) > most or len(passage) > longest)
            for row, passage in zip(rows, passages, strict=True)
        ]

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


def _head(found: Sequence[float | None]) -> list[float]:
    """What comes before the first that is missing."""
    head: list[float] = []
    for logit in found:
        if logit is None:
            break
        head.append(logit)
    return head


def _sigmoid(value: float) -> float:
    if math.isnan(value):
        return value
    # Written so that neither side overflows.
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))
