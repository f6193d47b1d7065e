"""Owns the rankings that are compared, each made from the same candidates.

Must not know figures.
"""

from __future__ import annotations

import math

import numpy as np

from appliance.retrieval import fuse

from .bed import Candidates, Floats

RRF_K = 60  # Cormack et al. 2009
# The columns, in their order; what each is.
LEXICAL, LEXICAL_OTHER, DENSE, RRF, HYBRID, RERANKER, RERANKED = (
    "lexical",
    "lexical, k1 1.5",
    "dense",
    "RRF",
    "hybrid",
    "reranker alone",
    "hybrid + rerank",
)


def by_score(candidates: Candidates, scores: Floats) -> list[int]:
    """Passages best first, those without a score left out; ties by place."""
    known = ~np.isnan(scores)
    order = fuse.ranking(scores[known], candidates.places[known])
    return [int(place) for place in candidates.places[known][order]]


def reciprocal(candidates: Candidates) -> Floats:
    """Scores `(n,)` of plain reciprocal rank fusion of the two halves."""
    total = np.zeros(len(candidates.places))
    for scores in (candidates.bm25, candidates.cosine):
        ranks = {place: n for n, place in enumerate(by_score(candidates, scores), start=1)}
        total += [1 / (RRF_K + ranks.get(int(place), math.inf)) for place in candidates.places]
    return total


def first_stage(weights: fuse.FusedWeights, candidates: Candidates) -> Floats:
    """Logits `(n,)` of the first stage."""
    return fuse.first_stage(weights, candidates.bm25, candidates.cosine, candidates.mass)


def order(candidates: Candidates, first: Floats) -> list[int]:
    """Which candidates (not which passages) are best by the first stage."""
    return [int(n) for n in fuse.ranking(first, candidates.places)]


def reranked(weights: fuse.FinalWeights, candidates: Candidates, first: Floats, logits: Floats) -> list[int]:
    """Passages best first: those that were reranked by the final mix, then the others as they were."""
    scored = np.isfinite(logits)
    final = np.where(scored, fuse.final_stage(weights, first, np.nan_to_num(logits)), np.nan)
    rest = np.where(scored, np.nan, first)
    return by_score(candidates, final) + by_score(candidates, rest)
