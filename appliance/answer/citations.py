"""Owns the numbers in a generated answer: each names a source that bears the sentence out.

Must not know how text is generated or shown. A marker the model wrote is kept when it names a source and
dropped when it does not; a sentence without one gets the source that supports it, if one does: one sentence or
one row of a table must hold most of its words and every figure. Words and figures gathered from all over a passage
support anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from appliance.answer.excerpts import Terms, split

# Share of a sentence's terms that one sentence of its source must contain, and every figure besides: a number that
# is not borne out misleads more than a missing one.
MIN_SUPPORT = 0.75
# What a model says around a claim; no claim of its own.
_FRAME = "According to the document, the documents, the passage or the passages: it states, says, the answer is, so"
# A sentence of fewer characters may well be said twice.
_REPEATABLE = 12
_MARKER = re.compile(r"\s*\[(\d{1,3})\]")
_HALF_MARKER = re.compile(r"\s*\[\d{0,3}$|\s+$")


class Citer:
    """Passes generated text on as it comes and sets source numbers at the ends of sentences.

    Feeding a text in any pieces gives the same output. Text is held back only while it may be the start of
    a marker or is white space before one.
    """

    def __init__(self, passages: Sequence[str], terms: Terms) -> None:
        self._terms = terms
        self._sources = [[terms(part) for part in split(text)] for text in passages]
        self._said: set[str] = set()
        self._frame = terms(_FRAME)
        self._held = ""
        self._sentence = ""  # the running sentence, without markers
        self._cited = False  # the running sentence has a marker
        self._ended = False  # it has its full stop: what follows begins another
        self.used: set[int] = set()
        self.repeats = False  # a sentence came a second time: the model goes round in circles

    def feed(self, text: str) -> str:
        """More generated text; returns what can be shown now."""
        self._held += text
        return self._advance(final=False)

    def finish(self) -> str:
        """The rest, with the last sentence's number."""
        return self._advance(final=True) + self._close()

    def _advance(self, *, final: bool) -> str:
        out: list[str] = []
        while self._held:
            marker = _MARKER.match(self._held)
            if marker:
                if not final and marker.end() == len(self._held) and not self._held.endswith("]"):
                    break
                out.append(self._keep(int(marker.group(1))))
                self._held = self._held[marker.end() :]
                continue
            if not final and _HALF_MARKER.match(self._held):
                break
            out.append(self._pass_one())
        return "".join(out)

    def _pass_one(self) -> str:
        character, self._held = self._held[0], self._held[1:]
        closing = ""
        if self._ended and (character.isspace() or self._sentence[-1:] in "。！？"):
            closing = self._close()
        self._sentence += character
        if character in "。！？!?.\n":
            self._ended = True
        elif not character.isspace():
            self._ended = False
        return closing + character

    def _keep(self, number: int) -> str:
        if not 1 <= number <= len(self._sources):
            return ""
        self._cited = True
        self.used.add(number)
        return f" [{number}]"

    def _close(self) -> str:
        number = None if self._cited else self._supporting(self._sentence)
        said = self._sentence.strip()
        self.repeats = self.repeats or (len(said) >= _REPEATABLE and said in self._said)
        self._said.add(said)
        self._sentence, self._cited, self._ended = "", False, False
        if number is None:
            return ""
        self.used.add(number)
        return f" [{number}]"

    def _supporting(self, sentence: str) -> int | None:
        claimed = self._terms(sentence) - self._frame
        if not claimed:
            return None
        figures = {term for term in claimed if any(map(str.isdigit, term))}
        best: tuple[float, int] | None = None
        for number, source in enumerate(self._sources, start=1):
            for part in source:
                support = len(claimed & part) / len(claimed)
                if support >= MIN_SUPPORT and figures <= part and (best is None or support > best[0]):
                    best = (support, number)
        return best[1] if best else None
