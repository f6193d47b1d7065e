"""Owns what a measurement of the engine leaves behind: figures with all that they depend on.

Must not know how they were made or how they are shown.
"""

from __future__ import annotations

import msgspec

from build_scripts.bench._lib.conditions import Conditions

from .measure import Metrics
from .overhead import Overhead


class Measured(msgspec.Struct, frozen=True):
    """One workload: the metrics of each round of each column, and how the column was set up."""

    title: str
    conditions: Conditions
    settings: dict[str, str]
    rounds: dict[str, list[Metrics]]
    same_text: dict[str, float | None]  # share of the first round's answers that are those of the first column


class OverheadMeasured(msgspec.Struct, frozen=True):
    """Our own time in a step, over rounds."""

    conditions: Conditions
    rounds: list[Overhead]


class Results(msgspec.Struct):
    """What was measured with one model, each workload when it was measured last."""

    model: str
    workloads: dict[str, Measured] = {}
    overhead: OverheadMeasured | None = None


def merge(old: Results, new: Results) -> Results:
    """The newer of each workload."""
    return Results(new.model, old.workloads | new.workloads, new.overhead or old.overhead)
