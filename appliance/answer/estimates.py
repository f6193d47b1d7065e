"""Owns running estimates: how long each stage of an answer takes, by how much else is going on.

Must not know what the stages do, nor clocks: it is told.
"""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.15  # of the newest measurement
_DEVIATIONS = 2.0  # above the mean: what is promised should hold nearly always
_TRUST_LOST = 0.9  # of an estimate that keeps a stage from running: nothing else would ever correct it


@dataclass(slots=True)
class _Seen:
    mean: float
    deviation: float


class Estimates:
    """Mean and mean deviation of each stage, apart for loads of 0, 1, 2–3, 4–7, … others."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, _Seen]] = {}

    def observe(self, stage: str, load: int, ms: float) -> None:
        """A stage took `ms` milliseconds beside `load` others."""
        levels = self._seen.setdefault(stage, {})
        seen = levels.get(load.bit_length())
        if seen is None:
            levels[load.bit_length()] = _Seen(ms, ms / 4)
            return
        seen.deviation += _WEIGHT * (abs(ms - seen.mean) - seen.deviation)
        seen.mean += _WEIGHT * (ms - seen.mean)

    def mean_ms(self, stage: str, load: int) -> float:
        """About how long a stage takes beside `load` others; 0.0 while nothing is known of it."""
        found, scale = self._nearest(stage, load)
        return found.mean * scale if found else 0.0

    def promise_ms(self, stage: str, load: int) -> float:
        """How long it takes, with what it hardly ever exceeds; 0.0 while nothing is known of it."""
        found, scale = self._nearest(stage, load)
        return (found.mean + _DEVIATIONS * found.deviation) * scale if found else 0.0

    def doubt(self, stage: str, load: int) -> None:
        """The stage was left out because it takes too long, as far as is known."""
        found, _ = self._nearest(stage, load)
        if found:
            found.mean *= _TRUST_LOST
            found.deviation *= _TRUST_LOST

    def _nearest(self, stage: str, load: int) -> tuple[_Seen | None, float]:
        """What was seen at the nearest load, and by how much more or less it is at this one: as one in a queue."""
        levels = self._seen.get(stage)
        if not levels:
            return None, 1.0
        wanted = load.bit_length()
        level = min(levels, key=lambda known: (abs(known - wanted), known))
        return levels[level], 2.0 ** (wanted - level)
