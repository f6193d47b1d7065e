"""Owns the degrade ladder: the best answer that can still be given in the time that is left.

Must not know how anything is computed: pure functions over plain data.

    full ─▶ not reranked ─▶ excerpts ─▶ excerpts found by words alone ─▶ (an old answer) ─▶ refused
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

RERANK_LEAST_MS = 60.0  # less time than this ranks nothing worth the while


class Rung(enum.IntEnum):
    """What an answer consists of, the best first."""

    FULL = 0  # recalled by words and meaning, reranked, generated
    UNRANKED = 1  # as recall ranks them, generated
    EXCERPTS = 2  # the passages themselves
    WORDS = 3  # the passages that words alone find
    REFUSED = 4


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts of an answer take, in milliseconds, as far as is known; 0.0: unknown, or nothing."""

    waiting: float = 0.0  # until recall begins
    words: float = 0.0  # recall by words alone
    recall: float = 0.0  # by words and meaning
    generation: float = 0.0  # from the prompt to the last word

    def of(self, rung: Rung) -> float:
        """What a rung takes in all; of reranking the least that is worth it."""
        match rung:
            case Rung.FULL:
                return self.waiting + self.recall + RERANK_LEAST_MS + self.generation
            case Rung.UNRANKED:
                return self.waiting + self.recall + self.generation
            case Rung.EXCERPTS:
                return self.waiting + self.recall
            case Rung.WORDS:
                return self.waiting + self.words
            case Rung.REFUSED:
                return 0.0


def highest(left_ms: float, costs: Costs, best: Rung = Rung.FULL) -> Rung:
    """The best rung, none above `best`, that fits what is left."""
    return next(rung for rung in Rung if rung >= best and (rung == Rung.REFUSED or costs.of(rung) <= left_ms))


def rerank_budget_ms(left_ms: float, costs: Costs, most_ms: float) -> float:
    """What reranking may take so that the answer is still in time."""
    return min(most_ms, left_ms - costs.of(Rung.UNRANKED))
