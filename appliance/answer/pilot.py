"""Owns which rung of the ladder each answer takes, stage by stage, and what is learned from how long the stages took.

Must not know how a stage works. For one event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass

from appliance.answer.estimates import Estimates
from appliance.answer.ladder import Costs, Rung, highest, rerank_budget_ms
from appliance.answer.turnstile import Turnstile
from appliance.errors import Overloaded


@dataclass(frozen=True, slots=True)
class Course:
    """What an answer may use from here on."""

    rung: Rung
    rerank_ms: float  # 0.0: no reranking
    reason: str  # why it is not the best; "": it is


class Pilot:
    """Knows what is going on and what it costs.

    Args:
        width: how many recall at once.
        most_waiting: for recall; one more is refused.
        rerank_ms: what reranking may take at most.
    """

    def __init__(self, width: int = 4, most_waiting: int = 1000, rerank_ms: float = 1000.0) -> None:
        self._turnstile = Turnstile(width, most_waiting)
        self._width = width
        self._rerank_ms = rerank_ms
        self._estimates = Estimates()
        self._generating = 0

    @property
    def busy(self) -> bool:
        """Whether work that nobody waits for had better wait itself."""
        return self._turnstile.waiting > 0

    @property
    def waiting(self) -> tuple[int, float]:
        """How many wait to recall, and for how many seconds the first of them has."""
        return self._turnstile.waiting, self._turnstile.oldest_s()

    @contextlib.asynccontextmanager
    async def turn(self, left_ms: float) -> AsyncGenerator[None]:
        """Wait for a turn to recall, and have it for the block.

        Raises:
            Overloaded: it would come too late, or too many wait.
        """
        waiting_ms = self._turnstile.expected_ms()
        if waiting_ms and Costs(waiting=waiting_ms, words=self._words_ms()).of(Rung.WORDS) > left_ms:
            message = f"{self._turnstile.waiting} questions wait: one more could not be answered within its deadline."
            raise Overloaded(message, retry_after_s=max(1.0, self._turnstile.drained_s()))
        async with self._turnstile.turn():
            yield

    def course(self, left_ms: float, *, best: Rung, generates: bool) -> Course:
        """What fits the time that is left, before recall. `generates`: whether an answer is wanted to be written."""
        costs = self._costs(generates=generates)
        rung = highest(left_ms, costs, best)
        if rung == Rung.REFUSED:  # late, but the passages that words find are better than nothing
            rung = Rung.WORDS
        if rung > best:
            self._doubt(rung, best, generates=generates)
        budget = 0.0
        if rung == Rung.FULL:
            most = self._rerank_ms * self._width / (self._width + self._turnstile.waiting)
            budget = max(1.0, rerank_budget_ms(left_ms, costs, most))
        return Course(rung, budget, _reason(rung, best, left_ms, costs))

    def too_late_to_generate(self, left_ms: float) -> str:
        """After recall: why nothing can be generated in time; "": it can."""
        takes_ms = self._estimates.mean_ms("generation", self._generating)
        if takes_ms <= left_ms:
            return ""
        self._estimates.doubt("generation", self._generating)
        return _no_time(takes_ms, left_ms)

    def learn_recall(self, rung: Rung, ms: float) -> None:
        """Recall, without reranking, took `ms`."""
        stage = "words" if rung == Rung.WORDS else "recall"
        self._estimates.observe(stage, self._turnstile.waiting, ms)

    @contextlib.contextmanager
    def generating(self) -> Generator[int]:
        """Counts a generation for the block; gives how many there were."""
        load = self._generating
        self._generating += 1
        try:
            yield load
        finally:
            self._generating -= 1

    def learn_generation(self, load: int, ms: float) -> None:
        """A whole answer was generated beside `load` others in `ms`."""
        self._estimates.observe("generation", load, ms)

    def _costs(self, *, generates: bool) -> Costs:
        load = self._turnstile.waiting
        generation = self._estimates.mean_ms("generation", self._generating) if generates else 0.0
        return Costs(words=self._words_ms(), recall=self._estimates.promise_ms("recall", load), generation=generation)

    def _words_ms(self) -> float:
        return self._estimates.promise_ms("words", self._turnstile.waiting)

    def _doubt(self, rung: Rung, best: Rung, *, generates: bool) -> None:
        if generates and best < Rung.EXCERPTS <= rung:
            self._estimates.doubt("generation", self._generating)
        if rung >= Rung.WORDS:
            self._estimates.doubt("recall", self._turnstile.waiting)


def _reason(rung: Rung, best: Rung, left_ms: float, costs: Costs) -> str:
    if rung <= best:
        return ""
    if rung == Rung.UNRANKED:
        return f"rerank_skipped: the {left_ms:.0f} ms that are left are for the answer"
    if rung == Rung.EXCERPTS:
        return _no_time(costs.generation, left_ms)
    return f"words_only: {left_ms:.0f} ms are left, a whole search takes about {costs.recall:.0f} ms"


def _no_time(takes_ms: float, left_ms: float) -> str:
    return (
        f"no_time_to_generate: an answer takes about {takes_ms:.0f} ms and {max(0.0, left_ms):.0f} ms are left; "
        "excerpts instead"
    )
