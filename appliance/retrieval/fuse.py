"""Owns how the scores of the stages become one: the calibrated mix, as pure functions over arrays.

Must not know where scores come from.

Plain reciprocal rank fusion loses to dense search alone where BM25 is weak, so the stages are weighed: a
logistic model over features of each candidate, fitted with the reranker and shipped in its configuration.

    lex    BM25 / (t^(1/3) m^(2/3)), t being the most of this query's candidates and m what a passage with all of
           the question's terms would get; 0 where the lexical index did not find it. Divided by t alone, it would
           speak as loudly for the best passage when its words are a tenth of the question as when they are all
    dense  cosine of the embedder's vectors, exact
    first  the sum of both, weighed: the logit of the first stage
    ce     the cross-encoder's logit; in the final score only, beside `first`

All weights are at least 0: a score never falls when a stage likes a passage more.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.errors import ModelCorrupt

Floats = npt.NDArray[np.float64]
_OF_MASS = 2 / 3


class FusedWeights(msgspec.Struct, frozen=True):
    """Weights of the first stage."""

    lex: float
    dense: float
    bias: float


class FinalWeights(msgspec.Struct, frozen=True):
    """Weights of the candidates that the cross-encoder scored."""

    first: float
    ce: float
    bias: float


class Mix(msgspec.Struct, frozen=True):
    """Both stages' weights."""

    fused: FusedWeights
    final: FinalWeights


# For packs whose reranker brings no mix, or that have none. The proportions of `fused` are those of a listwise
# fit on training sets in English and Chinese with multilingual-e5-small; biases set by hand.
DEFAULT_MIX = Mix(fused=FusedWeights(lex=2.6, dense=38.0, bias=-34.2), final=FinalWeights(first=0.16, ce=1.0, bias=0.0))


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
    check_weights(mix.fused)
    check_weights(mix.final)
    return mix


def check_weights(weights: msgspec.Struct) -> None:
    """Refuse weights that are not finite, or negative where they are no bias.

    Raises:
        ModelCorrupt: one is.
    """
    for name, weight in msgspec.structs.asdict(weights).items():
        if not np.isfinite(weight) or (weight < 0 and name != "bias"):
            raise ModelCorrupt("The reranker's mix of scores has a weight that is negative or not finite.")


def lexical_share(bm25: Floats, mass: float) -> Floats:
    """The feature `lex` of each of a query's candidates, `(n,)`, at least 0.

    Args:
        bm25: `(n,)` of all candidates, 0 or NaN where the lexical index did not find one.
        mass: what a passage of average length with each of the question's terms once would get.
    """
    found = np.nan_to_num(bm25, nan=0.0)
    top = float(found.max(initial=0.0))
    if top <= 0 or mass <= 0:
        return np.zeros_like(found)
    return np.asarray(found / (top ** (1 - _OF_MASS) * mass**_OF_MASS), np.float64)


def first_stage(weights: FusedWeights, bm25: Floats, cosine: Floats, mass: float) -> Floats:
    """Logit of each candidate from the first stage, `(n,)`; `cosine` `(n,)` is 0 or NaN where it is not known."""
    lexical = weights.lex * lexical_share(bm25, mass)
    return np.asarray(lexical + weights.dense * np.nan_to_num(cosine, nan=0.0) + weights.bias, np.float64)


def final_stage(weights: FinalWeights, first: Floats, ce: Floats) -> Floats:
    """Logit of each reranked candidate, `(n,)`, from that of the first stage and the cross-encoder's."""
    return np.asarray(weights.first * first + weights.ce * ce + weights.bias, np.float64)


def ranking(scores: Floats, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places from best to worst; ties by id."""
    return np.lexsort((ids, -scores))


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)), np.float64)
