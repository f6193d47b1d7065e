"""Owns how the scores of the stages become one: the calibrated mix, as pure functions over arrays.

Must not know where scores come from.

Plain reciprocal rank fusion loses to dense search alone where BM25 is weak, so the stages are weighed: a
logistic model over features of each candidate, fitted with the reranker and shipped in its configuration.

    lex     BM25 / the most of this query's candidates, 0 where the lexical index did not find it
    loglex  log(1 + BM25), 0 where not found
    dense   cosine of the embedder's vectors, exact
    ce      the cross-encoder's logit; in the final score only

All weights are at least 0: a score never falls when a stage likes a passage more.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.errors import ModelCorrupt

Floats = npt.NDArray[np.float64]


class FusedWeights(msgspec.Struct, frozen=True):
    """Weights of the first stage."""

    lex: float
    loglex: float
    dense: float
    bias: float


class FinalWeights(msgspec.Struct, frozen=True):
    """Weights of the candidates that the cross-encoder scored."""

    lex: float
    loglex: float
    dense: float
    ce: float
    bias: float


class Mix(msgspec.Struct, frozen=True):
    """Both stages' weights."""

    fused: FusedWeights
    final: FinalWeights


# For packs whose reranker brings no mix, or that have none. The proportions of `fused` are those of a listwise
# fit on nine training sets in English and Chinese with multilingual-e5-small. On their held-out questions it
# ranks at least as well as BM25, the vectors and reciprocal rank fusion in eight of nine. Biases set by hand.
DEFAULT_MIX = Mix(
    fused=FusedWeights(lex=2.0, loglex=0.1, dense=38.0, bias=-34.2),
    final=FinalWeights(lex=0.3, loglex=0.0, dense=6.0, ce=1.0, bias=-5.4),
)


def mix_of(config: dict[str, Any] | None) -> Mix:
    """The mix in a reranker's configuration, the default one when there is none.

    Raises:
        ModelCorrupt: a weight is missing, not finite or negative.
    """
    if not config:
        return DEFAULT_MIX
    try:
        mix = msgspec.convert(config, Mix, strict=False)
    except msgspec.ValidationError as error:
        raise ModelCorrupt(f"The reranker's mix of scores cannot be read: {error}.") from error
    for stage in (mix.fused, mix.final):
        weights = msgspec.structs.asdict(stage)
        bias = weights.pop("bias")
        if not np.isfinite(bias) or any(not (np.isfinite(w) and w >= 0) for w in weights.values()):
            raise ModelCorrupt("The reranker's mix of scores has a weight that is negative or not finite.")
    return mix


def fused_scores(weights: FusedWeights, bm25: Floats, cosine: Floats) -> Floats:
    """Probability of each candidate from the first stage, `(n,)` in [0, 1].

    Args:
        bm25: `(n,)`, 0 or NaN where the lexical index did not find the candidate.
        cosine: `(n,)`, 0 or NaN where it is not known.
    """
    return sigmoid(_first_stage(weights, bm25, cosine, bm25))


def final_scores(weights: FinalWeights, bm25: Floats, cosine: Floats, ce: Floats, all_bm25: Floats) -> Floats:
    """Probability of each reranked candidate, `(n,)` in [0, 1]; `all_bm25` `(m,)` is of all candidates."""
    return sigmoid(_first_stage(weights, bm25, cosine, all_bm25) + weights.ce * ce)


def ranking(scores: Floats, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places from best to worst; ties by id."""
    return np.lexsort((ids, -scores))


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)), np.float64)


def _first_stage(weights: FusedWeights | FinalWeights, bm25: Floats, cosine: Floats, all_bm25: Floats) -> Floats:
    found = np.nan_to_num(bm25, nan=0.0)
    top = float(np.nan_to_num(all_bm25, nan=0.0).max(initial=0.0))
    lex = found / top if top > 0 else np.zeros_like(found)
    dense = np.nan_to_num(cosine, nan=0.0)
    lexical = weights.lex * lex + weights.loglex * np.log1p(found)
    return np.asarray(lexical + weights.dense * dense + weights.bias, np.float64)
