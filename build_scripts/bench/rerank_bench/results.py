"""Owns what a measurement of the reranker leaves behind.

Must not know how figures were made or how they are shown.
"""

from __future__ import annotations

import msgspec

from build_scripts.bench._lib.conditions import Conditions

from .memory import Held


class Measured(msgspec.Struct, frozen=True):
    """One task: a figure of each side in each round, the first side being the one that others are compared with."""

    title: str
    unit: str
    conditions: Conditions
    rounds: dict[str, list[float]]
    goals: dict[str, float] = {}  # by side: how many times its figure the first side's should be
    note: str = ""


class MemoryMeasured(msgspec.Struct, frozen=True):
    """What a process held after the first calls, and after all."""

    conditions: Conditions
    held: Held


class Results(msgspec.Struct):
    """What was measured, each task when it was measured last."""

    tasks: dict[str, Measured] = {}
    memory: MemoryMeasured | None = None


def merge(old: Results, new: Results) -> Results:
    """The newer of each task."""
    return Results(old.tasks | new.tasks, new.memory or old.memory)
