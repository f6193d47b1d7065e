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
from collections.abc import Sequence
from functools import cached_property

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_WORDS = re.compile(rf"[{_CJK}]|[-+\u00b1\u2212<>\u2264\u2265=~]?\d[\d.,:]*\d|[-+\u2212]?\d|[^\W\d_{_CJK}]+")
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
_DIGITS = re.compile(r"\d+")
_ALIKE = 0.8  # of the runs of both
_LONG_PIECES = 12  # characters between two spaces, on average
_FEW = 16  # longest words, or last characters by number


class _Passage:
    """A passage as it is compared: cheaply first, in full where that may be worth it."""

    def __init__(self, text: str) -> None:
        self.folded = _folded(text)
        pieces = self.folded.split()
        self.digits = tuple(_DIGITS.findall(self.folded))
        joined = "".join(pieces)
        # What is written without spaces is told by its characters. A few that others rarely have are enough.
        spaced = len(joined) <= _LONG_PIECES * len(pieces)
        every = sorted(sorted(set(pieces)), key=len) if spaced else sorted(set(joined))
        self._rough = frozenset(every[-_FEW:])

    def may_say(self, other: _Passage) -> bool:
        """Whether it is worth comparing in full: so for all that would be found to say the same, but for oddities."""
        common = len(self._rough & other._rough)
        return 2 * common >= min(len(self._rough), len(other._rough))

    @cached_property
    def words(self) -> list[str]:
        return _WORDS.findall(_HYPHEN.sub("", self.folded))

    @cached_property
    def telling(self) -> tuple[str, ...]:
        return _telling(self.words)

    @cached_property
    def runs(self) -> frozenset[tuple[str, ...]]:
        words = self.words
        return frozenset(zip(words, words[1:], words[2:], strict=False)) or frozenset([tuple(words)])

    def says(self, other: _Passage, asked: frozenset[str]) -> bool:
        return (
            self.telling == other.telling
            and asked.intersection(self.words) == asked.intersection(other.words)
            and len(self.runs & other.runs) >= _ALIKE * len(self.runs | other.runs)
        )


class Repeats:
    """The passages kept so far, to compare the next one with. Keeps what came first."""

    def __init__(self, query: str) -> None:
        self._asked = frozenset(_Passage(query).words)
        self._kept: dict[tuple[str, ...], list[tuple[int, _Passage]]] = {}  # by their digits
        self._count = 0

    def first(self, text: str) -> int | None:
        """The number of the kept passage that says what `text` says, in the order they were kept; None: keep it."""
        passage = _Passage(text)
        kept = self._kept.setdefault(passage.digits, [])
        for number, other in kept:
            if passage.may_say(other) and passage.says(other, self._asked):
                return number
        kept.append((self._count, passage))
        self._count += 1
        return None


def _folded(text: str) -> str:
    return (text if text.isascii() else unicodedata.normalize("NFKC", text)).lower()


def _telling(words: Sequence[str]) -> tuple[str, ...]:
    """What must not differ: figures with the word after each, numerals, negations, directions."""
    found: list[str] = []
    for place, word in enumerate(words):
        if word in _TELLING:
            found.append(word)
        elif not word.isalpha() and any(map(str.isdigit, word)):
            found += [word, *words[place + 1 : place + 2]]
    return tuple(found)
