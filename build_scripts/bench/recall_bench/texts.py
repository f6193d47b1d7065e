"""Owns the words of whole searches: passages of made-up words in Zipf's proportions, the same for the same seed.

Must not know vectors, stores or time.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from appliance.retrieval.analyzer import STOP_WORDS

_SEED = 20261201
_WORDS = 200_000
_LONGEST = 4  # syllables of a word
_EXPONENT = 1.07
_LENGTHS = (60, 100)  # words of a passage
_ASKED = (4, 10)  # words of a question, out of one passage
_SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bcdfghjklmnprstvwz" for vowel in ("a", "e", "i", "o", "u"))


class ZipfTexts:
    """Passages and questions. The most frequent words are those that the analyzer leaves out, as in English."""

    def __init__(self) -> None:
        rng = np.random.default_rng(_SEED)
        syllables = np.array(_SYLLABLES)[rng.integers(0, len(_SYLLABLES), (2 * _WORDS, _LONGEST))]
        syllables[np.arange(_LONGEST) >= rng.integers(2, _LONGEST + 1, 2 * _WORDS)[:, None]] = ""
        made = functools.reduce(np.strings.add, syllables.T)
        self._words = np.array(list(dict.fromkeys([*sorted(STOP_WORDS), *made.tolist()]))[:_WORDS])
        weights = np.arange(1, len(self._words) + 1) ** -_EXPONENT
        self._cumulative = np.cumsum(weights / weights.sum())

    def passages(self, begin: int, count: int) -> list[str]:
        """The passages from number `begin` on."""
        return [self._text(np.random.default_rng([_SEED, 1, number])) for number in range(begin, begin + count)]

    def questions(self, count: int) -> list[str]:
        """Words out of made passages that are not among those."""
        questions = []
        for number in range(count):
            rng = np.random.default_rng([_SEED, 2, number])
            words = self._text(rng).split()
            questions.append(" ".join(rng.choice(words, rng.integers(*_ASKED, endpoint=True), replace=False)) + "?")
        return questions

    def _text(self, rng: np.random.Generator) -> str:
        ranks: npt.NDArray[np.int64] = np.searchsorted(self._cumulative, rng.random(rng.integers(*_LENGTHS)))
        return " ".join(self._words[np.minimum(ranks, len(self._words) - 1)]) + "."
