"""Owns what came of one request, and when.

Must not know workloads, engines or statistics. Times are seconds of `time.perf_counter`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from .workloads import Kind, Request


@dataclass(slots=True)
class Answer:
    """The answer to a request, as it arrived: `arrivals` are moments, and how many tokens came in each."""

    kind: Kind
    asked_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt: not computed for this request
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Engine(Protocol):
    """An engine under test, as a process of its own."""

    async def start(self) -> None:
        """Load the model; afterwards requests are answered at once."""

    async def stop(self) -> None:
        """End the process."""

    async def ask(self, request: Request) -> Answer:
        """Answer with exactly `request.max_tokens` tokens, the most likely ones.

        Raises:
            ApplianceError: the engine failed, or did not do what was asked.
        """


def gaps_s(answer: Answer) -> list[float]:
    """Time between each token of an answer and the one before it; of tokens that come together, 0 but for the first."""
    gaps = []
    previous = 0.0
    for number, (moment, count) in enumerate(answer.arrivals):
        if number:
            gaps.append(moment - previous)
        gaps += [0.0] * (count - 1)
        previous = moment
    return gaps
