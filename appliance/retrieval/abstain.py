"""Owns the judgement whether what was found answers the question: a calibrated probability, as pure functions.

Must not know where scores come from, nor what is done when the documents do not answer.

Two logistic models over what the scores of all candidates say together, fitted with the reranker and shipped in
its configuration: one for a question whose best candidates the cross-encoder scored, one for the first stage alone.

    top     the best logit of the first stage
    gap     that, less the mean of the 4th to 10th: where the documents answer, a few passages stand out
    cover   BM25 of the best passage for the words, as a share of what one with all of them would get
    ce      the cross-encoder's best logit
    ce_gap  that, less the mean of the other logits

All weights are at least 0: the probability never falls when the best passage is liked more.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.errors import ModelCorrupt
from appliance.retrieval.fuse import check_weights

Floats = npt.NDArray[np.float64]
FEW = 3  # logits of the cross-encoder below which the first stage judges alone
HEARD = 10  # of the first stage's best, however many were reranked: the most of more numbers is larger


class FirstWeights(msgspec.Struct, frozen=True):
    """Weights of the first stage's evidence."""

    top: float
    gap: float
    cover: float
    bias: float


class RerankedWeights(msgspec.Struct, frozen=True):
    """Weights of all evidence."""

    top: float
    gap: float
    cover: float
    ce: float
    ce_gap: float
    bias: float


class Weights(msgspec.Struct, frozen=True):
    """Both models."""

    first: FirstWeights
    reranked: RerankedWeights


class Evidence(msgspec.Struct, frozen=True):
    """What the scores of a question's candidates say together; NaN in `ce` and `ce_gap` where few were reranked."""

    top: float
    gap: float
    cover: float
    ce: float = math.nan
    ce_gap: float = math.nan


def weights_of(config: dict[str, Any] | None) -> Weights | None:
    """The weights in a reranker's configuration; None when it has none: then nothing can be told.

    Raises:
        ModelCorrupt: a weight is missing, not finite or negative.
    """
    if not config or "abstain" not in config:
        return None
    try:
        weights = msgspec.convert(config["abstain"], Weights, strict=False)
    except msgspec.ValidationError as error:
        raise ModelCorrupt(f"The reranker's weights to abstain by cannot be read: {error}.") from error
    check_weights(weights.first)
    check_weights(weights.reranked)
    return weights


def evidence(first: Floats, bm25: Floats, mass: float, logits: Floats) -> Evidence | None:
    """The evidence of a question's candidates; None when there is none.

    Args:
        first: `(n,)` logits of the first stage, of all candidates.
        bm25: `(n,)` of the same, 0 or NaN where the lexical index did not find one.
        mass: what a passage of average length with each of the question's terms once would get.
        logits: `(m,)` of the cross-encoder for the best of the first stage, best first, NaN where it did not score.
    """
    if not len(first):
        return None
    best = np.sort(first)[::-1]
    others = best[3:10] if len(best) > 3 else best[1:]
    found = float(np.nan_to_num(bm25, nan=0.0).max(initial=0.0))
    heard = logits[:HEARD]
    scored = np.sort(heard[np.isfinite(heard)])[::-1]
    reranked = len(scored) >= FEW
    return Evidence(
        top=float(best[0]),
        gap=float(best[0] - others.mean()) if len(others) else 0.0,
        cover=min(1.0, found / mass) if mass > 0 else 0.0,
        ce=float(scored[0]) if reranked else math.nan,
        ce_gap=float(scored[0] - scored[1:].mean()) if reranked else math.nan,
    )


def probability(weights: Weights, seen: Evidence) -> float:
    """That the documents answer the question, in [0, 1]."""
    stage: FirstWeights | RerankedWeights = weights.first if math.isnan(seen.ce) else weights.reranked
    logit = stage.bias + stage.top * seen.top + stage.gap * seen.gap + stage.cover * seen.cover
    if isinstance(stage, RerankedWeights):
        logit += stage.ce * seen.ce + stage.ce_gap * seen.ce_gap
    return 0.5 * (1.0 + math.tanh(0.5 * logit))
