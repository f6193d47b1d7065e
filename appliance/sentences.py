"""Owns where a text may be cut: at sentence ends first, at spaces next, inside a long run at last.

Must not know tokens, chunks or answers. All functions are linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata

CELL_JOINER = " | "  # between the cells of a table's row, which is one line of text and is not cut

# A sentence ends after a CJK stop with its closing quotes, after a Latin stop that white space follows, and
# at a line break. White space belongs to the sentence before it, so that the sentences tile the text. The
# look-behinds let a long run of stops or spaces be tried once, not from each of its characters.
_END = re.compile(
    r"[。！？；…]+[」』”’）》】\"']*\s*"
    r"|(?<![.!?])[.!?]+[\"'”’)\]]*(?=\s)\s+"
    r"|(?<![^\S\n])[^\S\n]*\n\s*"
)
# A stop after one of these ends no sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Za-z]|\d{1,3}|[A-Z]\.[A-Z]|[eE]\.g|[iI]\.e|approx|max|min|[nN]o|[nN]os|[fF]igs?|[tT]ab|[cC]h"
    r"|[sS]ec|[pP]p?|[vV]ol|[rR]ef|[mM]rs?|[dD]r|[vV]s|[eE]tc|[cC]f|[aA]rt|[iI]nc|[lL]td|[cC]o|[sS]t)$"
)
_ABBREVIATION_LONGEST = 10
_BREAK = re.compile(r"[,;:，、：；)）\]】}>|/]\s*|\s+|(?<=[\u3040-\u9fff])(?=[^\u3040-\u9fff])")
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")
_CLUSTER_LONGEST = 32  # code points; a "character" with more marks than this is cut


def sentences(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """Spans of the sentences of `text[start:end]`, one after the other without a gap."""
    end = len(text) if end is None else end
    spans = []
    begin = start
    for found in _END.finditer(text, start, end):
        if found.end() >= end:
            break
        if text[found.start()] == ".":
            before = text[max(begin, found.start() - _ABBREVIATION_LONGEST) : found.start()]
            if _ABBREVIATION.search(before) or text[found.end()].islower():
                continue
        if not _is_border(text, found.end(), begin):  # a mark on the stop, or on the space behind it
            continue
        spans.append((begin, found.end()))
        begin = found.end()
    if begin < end:
        spans.append((begin, end))
    return spans


def windows(text: str, start: int, end: int, size: int, *, row: bool = False) -> list[tuple[int, int]]:
    """Spans that tile `text[start:end]`, each of at most `size` code points (`size` ≥ 2 * 32).

    Cut after punctuation or a space in a window's second half if there is one, else between graphemes; a table's
    `row` between two cells if one ends there.
    """
    spans = []
    while end - start > size:
        cut = start + size
        cell = text.rfind(CELL_JOINER, start + size // 2, cut) if row else -1
        if cell >= 0:
            cut = cell + len(CELL_JOINER)
        else:
            latest = None
            for latest in _BREAK.finditer(text, start + size // 2, cut):  # noqa: B007 - the last one is meant
                pass
            cut = latest.end() if latest else cut
        cut = grapheme_border(text, cut, start)
        spans.append((start, cut))
        start = cut
    if start < end:
        spans.append((start, end))
    return spans


def grapheme_border(text: str, place: int, floor: int = 0) -> int:
    """The nearest place at or before `place` where the text may be cut without taking a character apart.

    Args:
        floor: a place before `place` that is such a border.
    """
    for cut in range(place, max(place - _CLUSTER_LONGEST, floor), -1):
        if _is_border(text, cut, floor):
            return cut
    return place


def _is_border(text: str, place: int, floor: int) -> bool:
    if place <= 0 or place >= len(text):
        return True
    before, after = text[place - 1], text[place]
    if before in "\n\x0b\x0c\x85\u2028\u2029" or (before == "\r" and after != "\n"):
        return True  # nothing joins a line's end
    if after in _JOINERS or before == "\u200d" or (before == "\r" and after == "\n"):
        return False
    if unicodedata.category(after).startswith("M") or "\U0001f3fb" <= after <= "\U0001f3ff":
        return False
    if _is_regional(before) and _is_regional(after):
        # Flags are pairs: count the run before.
        run = 0
        while place - run > floor and _is_regional(text[place - 1 - run]):
            run += 1
        return run % 2 == 0
    # Hangul may be written in letters that make one syllable block.
    return not ("\u1100" <= before <= "\u11ff" and "\u1160" <= after <= "\u11ff")


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
