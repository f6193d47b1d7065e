"""Owns the judgement that two passages say the same: the second is folded into the first.

Must not know ranking or the store.

Copies of a text differ in layout, hyphens and a word here and there. But in a manual one word may be the whole point:
a figure, its unit, a "not", or the very thing that is asked for. So two passages say the same when

    their figures (with the word after each), numerals and negations are the same, in the same order,
    they have the same words of the question,
    and of their runs of three words at least 4 in 5 are common to both.

The cosine of their vectors is not asked: it hardly changes with a figure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from itertools import pairwise

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_WORDS = re.compile(rf"[{_CJK}]|[-+\u00b1\u2212<>\u2264\u2265=~]?\d[\d.,:]*\d|[-+\u2212]?\d|(?:(?![{_CJK}\d_])\w)+")
_HYPHEN = re.compile(r"(?<=[a-z])[-\u00ad\u2010]\s*\n\s*(?=[a-z])")  # a word broken over lines
_TELLING = frozenset(
    word
    for line in (
        "no not never none nor neither without except cannot un non minus only one two three four five six seven eight",
        "nine ten eleven twelve first second third half double open close on off left right in out up down min max",
        "before after less more least most over under above below",
    )
    for word in line.split()
) | frozenset("不未无無勿禁止非别別没沒零〇一二三四五六七八九十百千万两兩半前后後左右上下内外开開关關大小高低")
_ALIKE = 0.8


class Repeats:
    """The passages kept so far, to compare the next one with. Keeps what came first."""

    def __init__(self, query: str) -> None:
        self._asked = frozenset(_words(query))
        # By what must not differ; the runs of each.
        self._kept: dict[tuple[tuple[str, ...], frozenset[str]], list[tuple[int, frozenset[tuple[str, ...]]]]] = {}
        self._count = 0

    def first(self, text: str) -> int | None:
        """The number of the kept passage that says what `text` says, in the order they were kept; None: keep it."""
        words = _words(text)
        alike = self._kept.setdefault((_telling(words), self._asked.intersection(words)), [])
        runs: frozenset[tuple[str, ...]] = frozenset(zip(words, words[1:], words[2:], strict=False))
        runs = runs or frozenset([tuple(words)])
        for number, others in alike:
            if len(runs & others) >= _ALIKE * len(runs | others):
                return number
        alike.append((self._count, runs))
        self._count += 1
        return None


def _words(text: str) -> list[str]:
    return _WORDS.findall(_HYPHEN.sub("", unicodedata.normalize("NFKC", text).lower()))


def _telling(words: Collection[str]) -> tuple[str, ...]:
    """What must not differ: figures with the word after each, numerals, negations, directions."""
    found: list[str] = []
    for word, after in pairwise([*words, ""]):
        if any(map(str.isdigit, word)):
            found += [word, after]
        elif word in _TELLING:
            found.append(word)
    return tuple(found)
