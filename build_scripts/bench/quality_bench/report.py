"""Owns how results are shown: tables for people, as Markdown that a terminal shows as well.

Must not know how figures are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from build_scripts.bench._lib.tables import table

from . import rankings
from .abstention import BINS, PARTS
from .figures import mean
from .results import Abstention, Difference, Results, SetResult

COLUMNS = (
    rankings.LEXICAL,
    rankings.DENSE,
    rankings.RRF,
    rankings.HYBRID,
    rankings.RERANKER,
    rankings.RERANKED,
)
FIGURES = {"nDCG@10": "ndcg10", "MRR@10": "mrr10", "recall@5": "recall5", "recall@50": "recall50"}
HYBRID_GAIN, RERANK_GAIN, K1_GAIN = "hybrid − better half", "+ rerank − hybrid", "k1 1.5 − 1.2"
FIRST, BOTH = "first stage alone", "with the reranker"
ALL = "all"
_GOAL = 0.8  # of precision and of recall


def text(results: Results) -> str:
    """The whole section."""
    by_set = [_by_set(results, title, field) for title, field in FIGURES.items()]
    parts = [by_set[0], _gains(results), *by_set[1:], _by_language(results.sets)]
    if results.abstention:
        parts.append(_abstention(results))
    return "\n\n".join([*parts, _conditions(results)]) + "\n"


def _by_set(results: Results, title: str, field: str) -> str:
    rows = [[title, "language", "questions", "passages", *COLUMNS]]
    for one in results.sets:
        values = {name: getattr(figure, field) for name, figure in one.figures.items() if name in COLUMNS}
        use = "held out" if one.train else "eval"
        counts = [f"{one.questions} of {one.of_questions}", f"{one.passages} of {one.of_passages}"]
        cells = [_cell(values.get(name), max(values.values())) for name in COLUMNS]
        rows.append([f"{one.name} ({use})", one.language, *counts, *cells])
    return table(rows)


def _gains(results: Results) -> str:
    titles = [title for title in (HYBRID_GAIN, RERANK_GAIN, K1_GAIN) if title in results.sets[0].differences]
    rows = [["differences in nDCG@10", *titles]]
    rows += [[one.name, *(_difference(one.differences[title]) for title in titles)] for one in results.sets]
    return (
        f"{table(rows)}\n\nIn brackets: where 95 % of means lie when the questions are drawn again; where 0 lies "
        "between, the difference is noise. Bold: it is not."
    )


def _by_language(sets: Sequence[SetResult]) -> str:
    rows = [["means over sets", "", *FIGURES]]
    for language in sorted({one.language for one in sets}):
        own = [one for one in sets if one.language == language]
        for name in COLUMNS:
            some = [one.figures[name] for one in own if name in one.figures]
            if some:
                average = mean(some)
                rows.append([language, name, *(f"{getattr(average, field):.4f}" for field in FIGURES.values())])
    return table(rows)


def _abstention(results: Results) -> str:
    rows = [["abstaining", "language", "cases", "precision", "recall", f"goal ≥ {_GOAL:g} each"]]
    for stage, languages in results.abstention.items():
        for language, found in languages.items():
            judged = found.judged
            verdict = "reached" if min(judged.precision, judged.recall) >= _GOAL else "not reached"
            figures = [f"{judged.precision:.3f}", f"{judged.recall:.3f}"]
            rows.append([stage, language, str(judged.cases), *figures, verdict])
    ranges = [f"{low:g}–{high:g}" for low, high in itertools.pairwise(BINS)]
    bins = [["probability said", "", *ranges]]
    for stage, languages in results.abstention.items():
        for language, found in languages.items():
            bins.append([stage, f"{language}: said → true", *_reliability(found)])
    shares = ", ".join(f"{100 * part:g} % {kind}" for kind, part in PARTS.items())
    return (
        f"{table(rows)}\n\nAt the default threshold of {results.threshold:g}, on the half of the questions that the "
        f"weights were not fitted on. Each set counts the same, and in it {shares}: `removed` is a question whose "
        "relevant passages, their near twins (cosine above .95) and all that hold an answer string were taken out of "
        "the pool, `foreign` one of the next set in the same language.\n\n" + table(bins)
    )


def _reliability(found: Abstention) -> list[str]:
    return ["–" if not one.cases else f"{one.predicted:.2f} → {one.answered:.2f} ({one.cases})" for one in found.bins]


def _conditions(results: Results) -> str:
    return (
        f"Pools are cut to {results.letters} letters (an ideograph counts as three), passages are uncut texts without "
        f"titles; the best {results.depth} of the hybrid list are reranked, without a budget of time. "
        f"{results.conditions}"
    )


def _cell(value: float | None, best: float) -> str:
    if value is None:
        return "–"
    return f"**{value:.4f}**" if value == best else f"{value:.4f}"


def _difference(one: Difference) -> str:
    body = f"{one.mean:+.4f} ({one.low:+.4f} to {one.high:+.4f})"
    return body if one.low <= 0 <= one.high else f"**{body}**"
