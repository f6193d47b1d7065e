"""Owns who is measured in which workload: the engines, their settings, and what is to be reached.

Must not know how an engine is started or how figures are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .workloads import Order

# Their prompt cache in memory is as large as they make it by default (8 GiB); ours has 512 MiB.
_MANY = ("-kvu",)
_MANY_KEPT = ("-kvu", "--no-cache-idle-slots")
_NO_RAM = ("-kvu", "--cache-ram", "0")
_NGRAM = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "16")


@dataclass(frozen=True, slots=True)
class Column:
    """One engine in one workload. `options` are llama-server's, beside model, context, sequences and threads."""

    name: str
    ours: bool
    order: Order = "canonical"
    speculation: bool = True  # of ours
    kv_type: Literal["f16", "q8_0"] = "f16"  # of ours
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Goal:
    """What the ratio of a metric of the first column to that of another is to be: at least, or at most, `value`."""

    metric: str
    over: str
    value: float
    at_least: bool

    def reached(self, ratio: float) -> bool:
        """Whether `ratio` is good enough."""
        return ratio >= self.value if self.at_least else ratio <= self.value

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One workload's columns; `candidates` are what else a user of llama-server might try (`--tune`)."""

    title: str
    columns: tuple[Column, ...]
    goals: tuple[Goal, ...]
    candidates: tuple[tuple[str, ...], ...] = field(default=())


def _two(*options: str) -> tuple[Column, ...]:
    return (Column("ours", ours=True), Column("peer", ours=False, options=options))


def _throughput(value: float, over: str = "peer") -> Goal:
    return Goal("tokens_per_s", over, value, at_least=True)


def _first_token(value: float, over: str = "peer") -> Goal:
    return Goal("ttft_p50_ms", over, value, at_least=False)


PLANS: dict[str, Plan] = {
    "a": Plan(
        "one user, one request at a time",
        columns=_two(*_NO_RAM),
        goals=(_throughput(1.0),),
        candidates=((), _NO_RAM, (*_NO_RAM, *_NGRAM)),
    ),
    "b8": Plan(
        "8 users at once, shared instructions, own passages",
        columns=_two(*_MANY_KEPT),
        goals=(_throughput(1.0), _first_token(0.8)),
        candidates=(_MANY, _MANY_KEPT, _NO_RAM, (*_MANY_KEPT, *_NGRAM)),
    ),
    "b16": Plan(
        "16 users at once, shared instructions, own passages",
        columns=_two(*_MANY_KEPT),
        goals=(_throughput(1.0), _first_token(0.8)),
        candidates=(_MANY, _MANY_KEPT, _NO_RAM, (*_MANY_KEPT, *_NGRAM)),
    ),
    "c": Plan(
        "questions over 40 passages, five in each prompt",
        columns=(
            Column("ours", ours=True),
            Column("peer, by relevance", ours=False, order="relevance", options=_MANY),
            Column("peer, our order", ours=False, options=_MANY),
        ),
        goals=tuple(
            goal
            for over in ("peer, by relevance", "peer, our order")
            for goal in (_throughput(1.5, over), _first_token(0.5, over))
        ),
        candidates=(_MANY, _MANY_KEPT, _NO_RAM, (*_MANY, *_NGRAM)),
    ),
    "d": Plan(
        "conversations, more users than sequences",
        columns=_two(*_MANY),
        goals=(_throughput(1.5),),
        candidates=(_MANY, _MANY_KEPT, _NO_RAM, (*_MANY, *_NGRAM)),
    ),
    "e": Plan(
        "long prompts while others stream short answers",
        columns=_two(*_MANY, "-b", "256", "-ub", "256"),
        goals=(Goal("itl_p99_ms", "peer", 0.5, at_least=False),),
        candidates=(
            _MANY,
            (*_MANY, "-b", "512"),
            (*_MANY, "-b", "256", "-ub", "256"),
            (*_MANY, "-b", "128", "-ub", "128"),
            (*_MANY, "-b", "64", "-ub", "64"),
        ),
    ),
    "f": Plan(
        "answers that quote the prompt: speculation",
        columns=(
            Column("ours", ours=True),
            Column("ours, not guessing", ours=True, speculation=False),
            Column("peer", ours=False, options=(*_NO_RAM, *_NGRAM)),
        ),
        goals=(_throughput(1.3, "ours, not guessing"),),
        candidates=(
            _NO_RAM,
            (*_NO_RAM, "--spec-type", "ngram-simple"),
            (*_NO_RAM, *_NGRAM),
            (
                *_NO_RAM,
                "--spec-type",
                "ngram-map-k",
                "--spec-ngram-map-k-size-n",
                "4",
                "--spec-ngram-map-k-size-m",
                "16",
            ),
            (*_NO_RAM, "--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "8", "--spec-ngram-mod-n-min", "4"),
            (*_NO_RAM, "--spec-type", "ngram-cache"),
        ),
    ),
    "kv": Plan(
        "8 users at once, own passages: types of KV cells",
        columns=(Column("f16", ours=True), Column("q8_0", ours=True, kv_type="q8_0")),
        goals=(),
    ),
}
OVERHEAD = "overhead"  # of a step at 16 sequences: our engine alone
OVERHEAD_LIMIT = {"pocket": 0.03, "bench-3b": 0.005}
KEYS = (*PLANS, OVERHEAD)


def tuning(plan: Plan) -> tuple[Column, ...]:
    """A column for each thing that a user of llama-server might try, in the first peer's order of passages."""
    order: Order = next((column.order for column in plan.columns if not column.ours), "canonical")
    return tuple(
        Column(f"peer {number}", ours=False, order=order, options=options)
        for number, options in enumerate(plan.candidates, start=1)
    )
