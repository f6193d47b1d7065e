"""Owns sentences and the words that matter in them: what excerpts and citations are weighed by.

Must not know where the text comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_END = re.compile(r"(?<=[。！？；!?])|(?<=[.;])(?=\s)|\n+")
_IDEOGRAPHS = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]+")
_LETTERS = r"[^\W_\u3400-\u9fff\uf900-\ufaff]+"
_WORD = re.compile(rf"{_IDEOGRAPHS.pattern}|{_LETTERS}(?:[-/.]{_LETTERS})*")
_FUNCTION_WORDS = """
a an and are as at be been but by can do does for from had has have how if in into is it its may more must no not of
on or shall should so such than that the their then there these they this to was were what when where which who why
will with would you your
"""
_STOP = frozenset(_FUNCTION_WORDS.split())


def split(text: str) -> list[str]:
    """The sentences of `text`, stripped, in order; lines end sentences too."""
    return [part for part in (piece.strip() for piece in _END.split(text)) if part]


def terms(text: str) -> frozenset[str]:
    """What the text is about: words without function words, lightly stemmed; character pairs of ideographs."""
    found: set[str] = set()
    for match in _WORD.finditer(text.lower()):
        word = match.group()
        if _IDEOGRAPHS.match(word):
            found |= {word[i : i + 2] for i in range(len(word) - 1)} or {word}
        elif word not in _STOP:
            found.add(_stem(word))
    return frozenset(found)


def numbers(wanted: Iterable[str]) -> frozenset[str]:
    """Those of `wanted` that hold a digit: a claim about a figure is only supported by that figure."""
    return frozenset(term for term in wanted if any(character.isdigit() for character in term))


def _stem(word: str) -> str:
    # Not a linguist's stem: enough that "bolts" meets "bolt" and "tightened" meets "tighten".
    for suffix in ("ing", "ed", "es", "s"):
        if word.endswith(suffix) and len(word) - len(suffix) >= 3 and not word.endswith("ss"):
            return word[: -len(suffix)]
    return word
