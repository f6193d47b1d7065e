"""Owns how results are shown: tables for people, as Markdown that a terminal shows as well.

Must not know how figures are made.
"""

from __future__ import annotations

from build_scripts.bench._lib.figures import ratios, spread
from build_scripts.bench._lib.tables import number, rounds_text, spread_text, table

from .results import Measured, MemoryMeasured, Results

MEMORY_GOAL = 0.10  # of growth


def text(results: Results) -> str:
    """A section for each task."""
    parts = [task_text(key, measured) for key, measured in results.tasks.items()]
    if results.memory is not None:
        parts.append(memory_text(results.memory))
    return "\n".join(parts)


def task_text(key: str, measured: Measured) -> str:
    """One task: the figures of all sides, the ratio of the first to each other, goals."""
    (first, own), *others = measured.rounds.items()
    rows = [["", measured.unit, f"{first} / it"], [first, spread_text(spread(own)), ""]]
    for name, figures in others:
        ratio = ratios(own, figures)
        told = spread_text(ratio)
        if name in measured.goals:
            goal = measured.goals[name]
            told += f", goal ≥ {goal:g}: {'reached' if ratio.median >= goal else 'not reached'}"
        rows.append([name, spread_text(spread(figures)), told])
    note = f"{measured.note}\n\n" if measured.note else ""
    rounds = rounds_text(len(own))
    return f"### {key}: {measured.title}\n\n{table(rows)}\n\n{note}{measured.conditions} {rounds}.\n"


def memory_text(measured: MemoryMeasured) -> str:
    """What was held in the beginning and in the end."""
    held = measured.held
    growth = 100 * held.growth
    verdict = "reached" if abs(held.growth) <= MEMORY_GOAL else "not reached"
    rows = [
        ["", "resident, MB"],
        [f"after {held.first_calls} calls", number(held.first_bytes / 1e6)],
        [f"after {held.calls} calls", number(held.bytes / 1e6)],
        ["growth, %", f"{growth:+.1f}, goal within {100 * MEMORY_GOAL:g}: {verdict}"],
    ]
    return (
        f"### memory: {held.calls} calls of mixed lengths\n\n{table(rows)}\n\n"
        f"{held.pairs} pairs, from one word to far over what the model reads. {measured.conditions}\n"
    )
