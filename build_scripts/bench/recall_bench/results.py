"""Owns what a measurement of recall leaves behind: figures with all that they depend on.

Must not know how they were made or how they are shown.
"""

from __future__ import annotations

import msgspec

from build_scripts.bench._lib.conditions import Conditions

from .building import Built
from .memory import Memory


class Round(msgspec.Struct, frozen=True):
    """All questions once, one after another."""

    p50_ms: float
    p99_ms: float
    recall: float


class Start(msgspec.Struct, frozen=True):
    """From the loaded library to the first answer, ms; once for each time it was tried."""

    warm_ms: list[float]  # the files being in the page cache
    cold_ms: list[float]  # read from the disk


class SideMeasured(msgspec.Struct, frozen=True):
    """One way to search vectors."""

    title: str
    settings: str
    tried: dict[str, float]  # recall on the questions for tuning, by effort
    rounds: list[Round]
    memory: Memory
    built: Built
    start: Start
    files_mib: float


class Vectors(msgspec.Struct, frozen=True):
    """All ways to search one set of vectors, by key, ours first."""

    conditions: Conditions
    vectors: int
    questions: int
    wanted: float  # recall@10 for which each was set up
    sides: dict[str, SideMeasured]


class WholeRound(msgspec.Struct, frozen=True):
    """p50 and p99, ms."""

    p50_ms: dict[str, float]  # by mode, and by stage of the mode hybrid
    p99_ms: dict[str, float]


class Whole(msgspec.Struct, frozen=True):
    """Whole searches."""

    conditions: Conditions
    passages: int
    questions: int
    rounds: list[WholeRound]
    open_ms: list[float]
    memory: Memory
    built: Built


class LiveRound(msgspec.Struct, frozen=True):
    """A turn without and one with writes."""

    quiet_p50_ms: float
    quiet_p99_ms: float
    writing_p50_ms: float
    writing_p99_ms: float


class LiveMeasured(msgspec.Struct, frozen=True):
    """Whole searches beside writes."""

    conditions: Conditions
    passages: int
    rounds: list[LiveRound]
    added_per_s: float
    deleted_per_s: float
    write_p50_ms: float
    write_p99_ms: float


class Results(msgspec.Struct, frozen=True):
    """What was measured at one scale, each part when it was measured last."""

    scale: str
    vectors: Vectors | None = None
    whole: Whole | None = None
    live: LiveMeasured | None = None


def merge(old: Results, new: Results) -> Results:
    """The newer of each part."""
    return Results(new.scale, new.vectors or old.vectors, new.whole or old.whole, new.live or old.live)
