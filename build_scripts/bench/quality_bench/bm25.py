"""Owns BM25 with a k1 of our choice, over what the lexical index found: the index's own k1 is built in.

Must not know how the index stores anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from appliance.retrieval.analyzer import Analyzer

from .bed import Candidates, Floats

_B = 0.75


class Bm25:
    """The statistics of a pool."""

    def __init__(self, passages: Sequence[str], analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._counts = [Counter(analyzer.terms(text)) for text in passages]
        self._lengths = np.array([counts.total() for counts in self._counts], np.float64)
        self._average = max(1.0, float(self._lengths.mean()))
        self._frequency = Counter(term for counts in self._counts for term in counts)

    def rescored(self, question: str, candidates: Candidates, k1: float) -> Floats:
        """BM25 `(n,)` of the candidates that the index found, NaN for the others."""
        found = np.where(np.isnan(candidates.bm25), np.nan, 0.0)
        total = len(self._counts)
        for term, weight in self._analyzer.query_terms(question).items():
            having = self._frequency[term]
            idf = math.log1p((total - having + 0.5) / (having + 0.5))
            for n, place in enumerate(candidates.places.tolist()):
                times = self._counts[place][term]
                norm = k1 * (1 - _B + _B * self._lengths[place] / self._average)
                found[n] += weight * idf * times * (k1 + 1) / (times + norm)
        return found
