"""Owns the figures of a ranking, and how far a difference between two rankings may be chance.

Must not know what ranked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
RESAMPLES = 2000
_SEED = 5


class Figures(msgspec.Struct, frozen=True):
    """Of one ranking for one question."""

    ndcg10: float
    mrr10: float
    recall5: float
    recall50: float


def figures(ranked: Sequence[int], grades: Mapping[int, int]) -> Figures:
    """Figures of passages `ranked` best first, without repetitions; `grades` of those that are relevant.

    nDCG has gains of 2^grade - 1 and discounts of log2(1 + place) (Burges et al. 2005); its ideal ranking is
    that of all relevant passages, found or not.
    """
    gains = [2.0 ** grades.get(place, 0) - 1 for place in ranked[:10]]
    ideal = sorted((2.0**grade - 1 for grade in grades.values()), reverse=True)[:10]
    first = next((n for n, place in enumerate(ranked[:10], start=1) if place in grades), math.inf)
    return Figures(
        ndcg10=_discounted(gains) / _discounted(ideal),
        mrr10=1 / first,
        recall5=sum(place in grades for place in ranked[:5]) / len(grades),
        recall50=sum(place in grades for place in ranked[:50]) / len(grades),
    )


def mean(some: Sequence[Figures]) -> Figures:
    """Over questions."""
    return Figures(*np.mean([msgspec.structs.astuple(one) for one in some], axis=0).tolist())


def interval(differences: Sequence[float] | Floats) -> tuple[float, float]:
    """The middle 95 % of means of `differences` when its questions are drawn again and again (paired bootstrap).

    A difference is noise when 0 lies inside.
    """
    values = np.asarray(differences, np.float64)
    drawn = np.random.default_rng(_SEED).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975)).tolist()
    return low, high


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(1 + place) for place, gain in enumerate(gains, start=1))
