"""Owns the tasks: which pairs are scored, by whom, and what is counted.

Must not know how results are kept or shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from appliance.inference.reranker import CPU_LIMITS
from appliance.inference.schedule import Limits
from appliance.inference.tokens import load_tokenizer
from appliance.packs.specs import RerankerSpec

from . import products, sides, texts
from .forms import Forms

if TYPE_CHECKING:
    import tokenizers

OURS, OURS_FLOAT32 = "ours, int8", "ours, float32"
FLASHRANK_FLOAT32, FLASHRANK_INT8 = "FlashRank, float32", "FlashRank, quantize_dynamic"
_PAIRS, _TOKENS = 50, 200
_SHORT = 24  # tokens of a passage
_CALLERS, _CALLS, _CALL_PAIRS = 8, 4, 4
_QUESTIONS, _PARAGRAPHS = 8, 8
_ANY = 1 << 30
_ONE_BY_ONE = Limits(items=1, tokens=_ANY, waste=_ANY)
_SIXTEEN = Limits(items=16, tokens=_ANY, waste=_ANY)

Side = Callable[[], float]
Score = Callable[[str, Sequence[str]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Task:
    """What is compared; each side measures itself once when it is called."""

    title: str
    unit: str
    sides: dict[str, Side]
    goals: dict[str, float] = field(default_factory=dict)
    note: str = ""
    once: bool = False  # the figure is the same each time
    warm: Callable[[], object] | None = None  # pays for what is loaded and allocated; None: the sides, once


class Tasks:
    """Makes them; models are loaded when the first task needs them, and kept."""

    def __init__(self, spec: RerankerSpec, forms: Forms, threads: int, *, quick: bool) -> None:
        self._spec = spec
        self._forms = forms
        self._threads = threads
        self._pairs = 8 if quick else _PAIRS
        self._tokenizer: tokenizers.Tokenizer = load_tokenizer(spec.tokenizer_path, spec.tokenizer_sha256)
        self._loaded: dict[str, Score] = {}
        self.makers: dict[str, Callable[[], Task]] = {
            "pairs": self._equal_pairs,
            "mixed": self._mixed_pairs,
            "batch": lambda: self._batches(_SHORT),
            "batch-long": lambda: self._batches(_TOKENS),
            "callers": self._callers,
            "products": _products,
            "agreement": self._agreement,
        }

    def _equal_pairs(self) -> Task:
        title = f"{self._pairs} pairs, passages of {_TOKENS} tokens"
        goals = {OURS_FLOAT32: 2.0, FLASHRANK_FLOAT32: 1.5, FLASHRANK_INT8: 1.5}
        return Task(title, "pairs/s", self._all_score([_TOKENS] * self._pairs), goals, warm=self._warm)

    def _mixed_pairs(self) -> Task:
        title = f"{self._pairs} pairs, passages of {_TOKENS // 12} to {_TOKENS} tokens"
        return Task(title, "pairs/s", self._all_score(texts.mixed_lengths(self._pairs, _TOKENS)), warm=self._warm)

    def _warm(self) -> None:
        passages = texts.passages(self._tokenizer, [_TOKENS] * 2)
        for score in self._all().values():
            score(texts.question(), passages)

    def _all_score(self, lengths: Sequence[int]) -> dict[str, Side]:
        question, passages = texts.question(), texts.passages(self._tokenizer, lengths)
        return {name: _scoring(one, question, passages) for name, one in self._all().items()}

    def _all(self) -> dict[str, Score]:
        """Every way to score, by its name."""
        if not self._loaded:
            forms, threads = self._forms, self._threads
            int8 = sides.ours(self._spec, threads)
            float32 = sides.ours(self._spec, threads, forms.float32())
            self._loaded = {
                OURS: lambda query, passages: int8.score(query, passages).logits,
                OURS_FLOAT32: lambda query, passages: float32.score(query, passages).logits,
                FLASHRANK_FLOAT32: sides.FlashRank(forms.exported(), self._spec).score,
                FLASHRANK_INT8: sides.FlashRank(forms.quantized(), self._spec).score,
            }
        return self._loaded

    def _batches(self, tokens: int) -> Task:
        rows = self._rows([tokens] * (16 if tokens == _TOKENS else 48))
        made = {
            f"ours: at most {CPU_LIMITS.tokens} tokens, a thread each": self._batched(CPU_LIMITS, side_by_side=True),
            "one by one, all threads": self._batched(_ONE_BY_ONE, side_by_side=False),
            "one by one, a thread each": self._batched(_ONE_BY_ONE, side_by_side=True),
            "16 at once, all threads": self._batched(_SIXTEEN, side_by_side=False),
        }
        title = f"batches of pairs with passages of {tokens} tokens, one caller"

        def side(batched: sides.Batched) -> Side:
            return _rate(lambda: batched.score(rows), len(rows))

        return Task(title, "pairs/s", {name: side(one) for name, one in made.items()})

    def _callers(self) -> Task:
        rows = self._rows([_SHORT] * _CALL_PAIRS)
        shared = self._batched(CPU_LIMITS, side_by_side=True)
        at_once = self._batched(Limits(CPU_LIMITS.items, CPU_LIMITS.tokens, CPU_LIMITS.waste, 0.0), side_by_side=True)

        def together(score: Callable[[Sequence[sides.Row]], object]) -> Side:
            def ask() -> None:
                with ThreadPoolExecutor(_CALLERS) as pool:
                    for _ in pool.map(lambda _: [score(rows) for _ in range(_CALLS)], range(_CALLERS)):
                        pass

            return _rate(ask, _CALLERS * _CALLS * _CALL_PAIRS)

        made = {
            "shared, waiting up to 2 ms": together(shared.score),
            "shared, not waiting": together(at_once.score),
            "each caller its own batches": together(shared.alone),
        }
        title = f"{_CALLERS} callers at once, each {_CALL_PAIRS} pairs of {_SHORT} tokens a call"
        return Task(title, "pairs/s", made)

    def _agreement(self) -> Task:
        asked = texts.sampled(_QUESTIONS, _PARAGRAPHS)
        references = [self._all()[OURS_FLOAT32](*one) for one in asked]

        def agreement(name: str) -> float:
            score = self._all()[name]
            found = [_spearman(score(*one), reference) for one, reference in zip(asked, references, strict=True)]
            return float(np.mean(found))

        names = (OURS, FLASHRANK_FLOAT32, FLASHRANK_INT8)
        title = f"the order of {_PARAGRAPHS} paragraphs for each of {_QUESTIONS} questions about the sample manuals"
        note = f"Spearman's correlation of the ranks with those of {OURS_FLOAT32}, mean over the questions."
        made = {name: partial(agreement, name) for name in names}
        return Task(title, "rank correlation", dict(made), note=note, once=True)

    def _rows(self, lengths: Sequence[int]) -> list[sides.Row]:
        question = texts.question()
        encoded = self._tokenizer.encode_batch([(question, one) for one in texts.passages(self._tokenizer, lengths)])
        return [(row.ids, row.type_ids) for row in encoded]

    def _batched(self, limits: Limits, *, side_by_side: bool) -> sides.Batched:
        return sides.Batched(self._spec, limits, self._threads, side_by_side=side_by_side)


def _products() -> Task:
    title = "a matrix product of the largest layer, 222 tokens × 384 × 1,536, one thread"
    note = f"What 8-bit products gain over float32 is decided by the processor's instructions: {products.extensions()}."
    return Task(title, "G multiply-adds/s", dict(products.sides()), note=note)


def _scoring(score: Score, question: str, passages: Sequence[str]) -> Side:
    return _rate(lambda: score(question, passages), len(passages))


def _rate(work: Callable[[], object], count: int) -> Side:
    def measure() -> float:
        began = time.perf_counter()
        work()
        return count / (time.perf_counter() - began)

    return measure


def _spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; 0 where one side tells nothing apart."""
    first, second = (np.argsort(np.argsort(values)) for values in (one, other))
    found = float(np.corrcoef(first, second)[0, 1])
    return 0.0 if math.isnan(found) else found
