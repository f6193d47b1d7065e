"""Owns how results are shown: tables for people, as Markdown that a terminal shows as well.

Must not know how figures are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from build_scripts.bench._lib.conditions import Conditions
from build_scripts.bench._lib.figures import ratios, spread
from build_scripts.bench._lib.tables import number, rounds_text, spread_text, table

from .measure import Metrics
from .overhead import Overhead
from .plans import OVERHEAD_LIMIT, PLANS, Goal
from .results import Measured, OverheadMeasured, Results

# Name, and from the metrics of a round the figure and how it is written.
_ROWS: dict[str, tuple[str, Callable[[Metrics], float | None]]] = {
    "tokens_per_s": ("tokens/s", lambda m: m.tokens_per_s),
    "requests_per_s": ("requests/s", lambda m: m.requests_per_s),
    "ttft_p50_ms": ("first token p50, ms", lambda m: m.ttft_p50_ms),
    "ttft_p99_ms": ("first token p99, ms", lambda m: m.ttft_p99_ms),
    "itl_p50_ms": ("between tokens p50, ms", lambda m: m.itl_p50_ms),
    "itl_p99_ms": ("between tokens p99, ms", lambda m: m.itl_p99_ms),
    "long_ttft_p50_ms": ("long prompts: first token p50, ms", lambda m: m.long_ttft_p50_ms),
    "cached": ("prompt tokens from the cache, %", lambda m: 100 * m.cached_tokens / m.prompt_tokens),
    "accepted": ("guesses that were right, %", lambda m: _share(m.accepted_tokens, m.drafted_tokens)),
    "client_cpu": ("one core taken by the client, %", lambda m: 100 * m.client_cpu),
}
_WITHOUT_RATIO = ("cached", "accepted", "client_cpu")


def workload_text(key: str, measured: Measured) -> str:
    """One workload as a section: figures of all columns, ratios of the first to each other, goals."""
    plan = PLANS[key]
    first, *others = measured.rounds
    head = ["", first]
    for other in others:
        head += [other, f"{first} / {other}"]
    rows = [head]
    for metric, (name, figure) in _ROWS.items():
        values = {column: [_known(figure(m)) for m in rounds] for column, rounds in measured.rounds.items()}
        if all(math.isnan(value) for series in values.values() for value in series):
            continue
        row = [name, spread_text(spread(values[first]))]
        for other in others:
            row.append(spread_text(spread(values[other])))
            row.append("" if metric in _WITHOUT_RATIO else _ratio(metric, other, values, plan.goals))
        rows.append(row)
    same = [measured.same_text.get(other) for other in others]
    if any(share is not None for share in same):
        rows.append(["answers equal to the first column's, %", ""])
        for share in same:
            rows[-1] += ["–" if share is None else number(100 * share), ""]
    settings = "\n".join(f"- {column}: `{text}`" for column, text in measured.settings.items())
    return (
        f"### {key}: {measured.title}\n\n{table(rows)}\n\n{settings}\n\n{_conditions(measured.conditions, measured)}\n"
    )


def overhead_text(model: str, measured: OverheadMeasured) -> str:
    """Our own time in a step as a section."""
    limit = OVERHEAD_LIMIT[model]
    share = spread([100 * one.share for one in measured.rounds])
    verdict = "reached" if share.median <= 100 * limit else "not reached"

    def row(name: str, figure: Callable[[Overhead], float]) -> list[str]:
        return [name, spread_text(spread([figure(one) for one in measured.rounds]))]

    rows = [
        ["", "ours"],
        row("a step, ms", lambda one: one.step_ms),
        row("of it outside llama.cpp, ms", lambda one: one.outside_ms),
        ["of it outside llama.cpp, %", f"{spread_text(share)}, goal ≤ {100 * limit:g}: {verdict}"],
    ]
    return (
        f"### overhead: a step of 16 sequences\n\n{table(rows)}\n\n"
        f"{_conditions(measured.conditions)} {rounds_text(len(measured.rounds))}.\n"
    )


def results_text(results: Results) -> str:
    """A section for each thing measured with one model."""
    parts = [workload_text(key, results.workloads[key]) for key in PLANS if key in results.workloads]
    if results.overhead is not None:
        parts.append(overhead_text(results.model, results.overhead))
    return "\n".join(parts)


def _ratio(metric: str, other: str, values: dict[str, list[float]], goals: Sequence[Goal]) -> str:
    ours = next(iter(values.values()))
    if any(math.isnan(value) or not value for value in values[other]):
        return "–"
    ratio = ratios(ours, values[other])
    text = spread_text(ratio)
    for goal in goals:
        if (goal.metric, goal.over) == (metric, other):
            text += f", goal {goal}: {'reached' if goal.reached(ratio.median) else 'not reached'}"
    return text


def _conditions(conditions: Conditions, measured: Measured | None = None) -> str:
    text = str(conditions)
    if measured is None:
        return text
    one = next(iter(measured.rounds.values()))
    asked = f"{one[0].prompt_tokens} tokens of prompts and {one[0].generated_tokens} of answers"
    span = number(spread([m.span_s for m in one]).median)
    return f"{text} {rounds_text(len(one))}, in each {asked}: {span} s in the first column."


def _share(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def _known(value: float | None) -> float:
    return math.nan if value is None else value
