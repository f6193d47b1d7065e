"""Owns the two seams of the way of a question: what it needs of recall and of the generator.

Must not know what is behind them: an engine process here, another OpenAI-compatible server some day.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from appliance.engine.protocol import Constraint, Done, Priority, Ready, Sampling, Segment, Started, Token
from appliance.retrieval.types import SearchRequest, SearchResult


class Searcher(Protocol):
    """Recall, blocking: called in a thread."""

    def search(self, request: SearchRequest) -> SearchResult:
        """Passages, best first. Raises `NotFound` for a missing collection."""

    def terms(self, text: str) -> frozenset[str]:
        """What a text is about, as search sees it: sentences are weighed by these."""


class Generator(Protocol):
    """The generation engine."""

    @property
    def ready(self) -> Ready | None:
        """What the engine said of its model when it last became ready; None while it never was."""

    @property
    def state(self) -> str:
        """`ready` when a request can be taken now."""

    @property
    def memory(self) -> int:
        """Another number whenever documents had to be forgotten; to be read before they are searched."""

    def generate(
        self,
        *,
        prompt: Sequence[Segment],
        max_tokens: int,
        sampling: Sampling,
        stop: Sequence[str] = (),
        priority: Priority = "interactive",
        deadline_ms: float | None = None,
        label: str = "",
        constraint: Constraint | None = None,
        pinned: int = 0,
        memory: int | None = None,
    ) -> AsyncIterator[Started | Token | Done]:
        """Generate; closing the iterator cancels. `pinned`: how many segments at the front are worth keeping.
        `memory`: what that was before the documents in the prompt were found; of a prompt whose documents may be gone
        since, nothing is kept.

        Raises `BadRequest`, `EngineDied`, `Unavailable`, `Overloaded`.
        """

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until requests can be sent. Raises `Unavailable` when that takes longer, or cannot be hoped for."""

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
