"""Owns BM25 as the lexical index ranks: stemmed English words, Chinese words and character bigrams.

Must not know models.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

RUN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]+|[^\W_\u3400-\u9fff\uf900-\ufaff]+")
CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")


def analyser() -> Callable[[str], list[str]]:
    """Text to terms: lowercase, Snowball stems; for Chinese, character bigrams and longer words."""
    import rjieba
    import snowballstemmer

    stem = snowballstemmer.stemmer("english").stemWord
    known: dict[str, str] = {}

    def terms(text: str) -> list[str]:
        found: list[str] = []
        for run in RUN.findall(text.lower()):
            if CJK.match(run):
                bigrams = [run[i : i + 2] for i in range(len(run) - 1)] or [run]
                found += bigrams
                found += [word for word in rjieba.cut_for_search(run) if len(word) != 2]
            else:
                if run not in known:
                    known[run] = stem(run)
                found.append(known[run])
        return found

    return terms


class Bm25:
    """An inverted index in memory over `texts`; k1 = 1.5, b = 0.75."""

    def __init__(self, texts: list[str], terms: Callable[[str], list[str]], k1: float = 1.5, b: float = 0.75) -> None:
        self._terms = terms
        self._count = len(texts)
        postings: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
        lengths = np.zeros(len(texts), np.float32)
        for number, text in enumerate(texts):
            counts = collections.Counter(terms(text))
            lengths[number] = counts.total()
            for term, count in counts.items():
                postings[term].append((number, count))
        average = max(float(lengths.mean()), 1e-9)
        self._postings: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = {}
        for term, entries in postings.items():
            numbers = np.array([n for n, _ in entries])
            times = np.array([t for _, t in entries], np.float32)
            idf = math.log(1 + (len(texts) - len(entries) + 0.5) / (len(entries) + 0.5))
            weight = idf * times * (k1 + 1) / (times + k1 * (1 - b + b * lengths[numbers] / average))
            self._postings[term] = (numbers, weight.astype(np.float32))

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """(texts,) scores; 0 where no term of the query occurs."""
        scores = np.zeros(self._count, np.float32)
        for term in self._terms(query):
            if term in self._postings:
                numbers, weight = self._postings[term]
                scores[numbers] += weight
        return scores
