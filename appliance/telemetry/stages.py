"""Owns `StageTimes`: milliseconds per stage of one request, read off its spans.

Must not know which stages exist: the names come from the callers.
"""

from __future__ import annotations

import time
from types import TracebackType

from appliance.telemetry.spans import Attribute, Span


class StageTimes:
    """Wall-clock milliseconds spent in each named stage of one request.

    Each stage is a span, and its time is the span's. A stage entered twice adds up. Stages may overlap (recall runs
    two at once), so their sum may be more than `total`. A dot in a span's name is an underscore here:
    `recall.lexical` is told as `recall_lexical`.
    """

    def __init__(self) -> None:
        self._started_ns = time.perf_counter_ns()
        self._ms: dict[str, float] = {}

    def stage(self, name: str, **attributes: Attribute) -> Stage:
        """The stage as a span for a `with` block."""
        return Stage(self, name, attributes)

    def add(self, name: str, ms: float) -> None:
        """Add `ms` milliseconds of a stage that has its span elsewhere."""
        key = name.replace(".", "_")
        self._ms[key] = self._ms.get(key, 0.0) + ms

    def elapsed_ms(self) -> float:
        """Milliseconds since the request began."""
        return (time.perf_counter_ns() - self._started_ns) / 1e6

    def as_dict(self) -> dict[str, float]:
        """The times so far, rounded to a hundredth of a millisecond, with `total`."""
        return {name: round(ms, 2) for name, ms in {**self._ms, "total": self.elapsed_ms()}.items()}


class Stage(Span):
    """A span whose time is added to a request's stage times when it ends."""

    __slots__ = ("_times",)

    def __init__(self, times: StageTimes, name: str, attributes: dict[str, Attribute]) -> None:
        super().__init__(name, attributes)
        self._times = times

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self._times.add(self.name, self.ms)
