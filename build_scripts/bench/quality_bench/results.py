"""Owns what a measurement of ranking leaves behind.

Must not know how figures were made or how they are shown.
"""

from __future__ import annotations

import msgspec

from build_scripts.bench._lib.conditions import Conditions

from .abstention import Bin, Judged
from .figures import Figures


class Difference(msgspec.Struct, frozen=True):
    """Mean of nDCG@10 differences over the questions of a set, and where 95 % of resampled means lie."""

    mean: float
    low: float
    high: float


class SetResult(msgspec.Struct, frozen=True):
    """One set: the figures of each ranking, and how far two of them differ."""

    name: str
    language: str
    train: bool
    passages: int
    of_passages: int
    questions: int
    of_questions: int
    figures: dict[str, Figures]
    differences: dict[str, Difference]


class Abstention(msgspec.Struct, frozen=True):
    """Whether it is told when documents do not answer, in one language: with the reranker's scores or without."""

    judged: Judged
    bins: list[Bin]


class Results(msgspec.Struct, frozen=True):
    """Everything measured in one run."""

    conditions: Conditions
    letters: int  # of a pool at most
    depth: int  # candidates that were reranked
    threshold: float
    sets: list[SetResult]
    abstention: dict[str, dict[str, Abstention]]  # by stage, then by language
