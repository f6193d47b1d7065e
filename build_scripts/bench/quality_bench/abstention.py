"""Owns measuring whether it is told when documents do not answer: questions of both kinds, precision, reliability.

Must not know how weights are fitted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.retrieval import abstain, fuse

from .bed import Floats
from .gather import Row

Kind = Literal["answered", "removed", "foreign"]
# Of all weight: answerable questions have half; the others are asked where their answers were taken away, or are
# those of another set.
PARTS: dict[Kind, float] = {"answered": 0.5, "removed": 0.25, "foreign": 0.25}
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class Case(msgspec.Struct, frozen=True):
    """A question of which it is known whether the pool answers it, with what the scores say."""

    pool: str
    language: str
    kind: Kind
    test: bool  # of the half that nothing is fitted on
    seen: abstain.Evidence


class Judged(msgspec.Struct, frozen=True):
    """Of abstaining: the share of it that was right, and the share of unanswerable questions that it met."""

    cases: int
    precision: float
    recall: float


class Bin(msgspec.Struct, frozen=True):
    """Cases with a probability in one range."""

    cases: int
    predicted: float  # mean
    answered: float  # share, in truth


def case_of(row: Row, kind: Kind, first: Floats, logits: Floats) -> Case | None:
    """A case; None where nothing was found: then nothing is to be judged.

    Args:
        first: `(n,)` logits of the first stage.
        logits: `(n,)` of the reranker, NaN where it did not score.
    """
    best_first = logits[fuse.ranking(first, row.candidates.places)]
    seen = abstain.evidence(first, row.candidates.bm25, row.candidates.mass, best_first)
    if seen is None:
        return None
    return Case(row.pool, row.language, kind, is_test(row.question.text), seen)


def is_test(question: str) -> bool:
    """Half of all questions, by a hash of the text."""
    return hashlib.blake2b(question.encode(), digest_size=1, person=b"abstention").digest()[0] % 2 == 1


def weights(cases: Sequence[Case]) -> Floats:
    """`(n,)` that sum to 1: each pool counts the same, and in it each kind by its part."""
    pools = {case.pool for case in cases}
    counts: dict[tuple[str, Kind], int] = {}
    for case in cases:
        counts[case.pool, case.kind] = counts.get((case.pool, case.kind), 0) + 1
    found = np.array([PARTS[case.kind] / (len(pools) * counts[case.pool, case.kind]) for case in cases])
    return np.asarray(found / found.sum(), np.float64)


def judge(cases: Sequence[Case], probability: Callable[[abstain.Evidence], float], threshold: float) -> Judged:
    """What abstaining below `threshold` is worth."""
    share = weights(cases)
    abstained = np.array([probability(case.seen) < threshold for case in cases])
    unanswered = np.array([case.kind != "answered" for case in cases])
    right = float(share[abstained & unanswered].sum())
    return Judged(len(cases), _ratio(right, share[abstained]), _ratio(right, share[unanswered]))


def reliability(cases: Sequence[Case], probability: Callable[[abstain.Evidence], float]) -> list[Bin]:
    """What came true of each range of probabilities."""
    share = weights(cases)
    said = np.array([probability(case.seen) for case in cases])
    answered = np.array([case.kind == "answered" for case in cases], np.float64)
    places = np.clip(np.digitize(said, BINS) - 1, 0, len(BINS) - 2)
    bins = []
    for number in range(len(BINS) - 1):
        own = places == number
        bins.append(Bin(int(own.sum()), _mean(said[own], share[own]), _mean(answered[own], share[own])))
    return bins


def _ratio(part: float, whole: Floats) -> float:
    return part / float(whole.sum()) if len(whole) else float("nan")


def _mean(values: Floats, share: npt.NDArray[np.float64]) -> float:
    return float(values @ share / share.sum()) if len(values) else float("nan")
