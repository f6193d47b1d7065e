"""Owns answers made of quotations alone: what the service gives when it does not generate.

Must not know why it does not: the caller names the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from appliance.answer.language import is_chinese
from appliance.retrieval.types import Passage
from appliance.sentences import CELL_JOINER, sentences

MAX_EXCERPTS = 3
Terms = Callable[[str], frozenset[str]]  # what a text is about, as recall sees it
Why = Literal["instead", "not_found", "unsupported"]
# Why quotations are given → the line above them, in English and in Chinese.
FRAMES: dict[Why, tuple[str, str]] = {
    "instead": ("The most relevant passages of the documents:", "文档中最相关的原文："),
    "not_found": (
        "The documents do not seem to answer this. The nearest passage:",
        "文档中没有找到这个问题的答案。最接近的内容：",
    ),
    "unsupported": (
        "The text above is not borne out by the documents. They say:",
        "以上内容在文档中没有依据。文档原文：",
    ),
}
NOTHING = ("Nothing about this was found in the documents.", "文档中没有找到相关内容。")
# A quotation carries its neighbours up to this many characters, so that it can be understood alone.
MAX_CHARACTERS = 320


def split(text: str) -> list[str]:
    """The sentences of `text`, without the white space around them."""
    return [part for part in (text[start:end].strip() for start, end in sentences(text)) if part]


def best_quote(question: str, text: str, terms: Terms, weights: dict[str, float] | None = None) -> str:
    """The sentence of `text` that shares most with `question`, with what follows it while it stays short."""
    spans = [(start, end) for start, end in sentences(text) if text[start:end].strip()]
    if not spans:
        return ""
    parts = [text[start:end].strip() for start, end in spans]
    wanted = terms(question)

    def shared(part: str) -> float:
        return sum((weights or {}).get(term, 1.0) for term in wanted & terms(part))

    def best_of(places: Sequence[int]) -> int:
        # Between equals, one with a figure: a row of a table says more than its header.
        return max(places, key=lambda i: (shared(parts[i]), any(map(str.isdigit, parts[i])), -i))

    best = best_of(range(len(parts)))
    if CELL_JOINER in "".join(parts[best + 1 : best + 2]):
        # The title of a table: what is asked for stands in a row.
        best = best_of([i for i, part in enumerate(parts) if CELL_JOINER in part])
    if CELL_JOINER in parts[best]:
        return parts[best][:MAX_CHARACTERS]  # a row of a table: the rows below it say other things
    begin, end = spans[best]
    for _, following in spans[best + 1 :]:
        if following - begin > MAX_CHARACTERS:
            break
        end = following
    quote = " ".join(text[begin:end].split())  # line breaks as spaces: what stood apart does not run together
    return quote if len(quote) <= 2 * MAX_CHARACTERS else quote[: 2 * MAX_CHARACTERS].rstrip() + "…"


def best_quotes(question: str, passages: Sequence[Passage], terms: Terms) -> list[str]:
    """For each passage its `best_quote`; what tells these passages apart weighs more."""
    weights = _rarity(passages, terms)
    return [best_quote(question, passage.text, terms, weights) for passage in passages]


def compose(question: str, quotes: Sequence[tuple[int, str]], why: Why) -> str:
    """An answer of at most three quotations, best first, each with its source number.

    Args:
        question: decides the language of the frame.
        quotes: best first, each with the number of its source.
        why: `instead` of a generated answer, the answer was `not_found`, or what was generated is `unsupported`.
    """
    language = 1 if is_chinese(question) else 0
    if not quotes:
        return NOTHING[language]
    shown = quotes[: 1 if why == "not_found" else MAX_EXCERPTS]
    return "\n\n".join([FRAMES[why][language], *(quoted(n, quote) for n, quote in shown)])


def quoted(number: int, quote: str) -> str:
    """A quotation in its language's marks, with the number of its source."""
    return f"「{quote}」[{number}]" if is_chinese(quote) else f"“{quote}” [{number}]"


def _rarity(passages: Sequence[Passage], terms: Terms) -> dict[str, float]:
    """Inverse document frequency of each term over the passages: what tells them apart weighs more."""
    frequency: dict[str, int] = {}
    for passage in passages:
        for term in terms(passage.text):
            frequency[term] = frequency.get(term, 0) + 1
    return {term: math.log(1 + len(passages) / count) for term, count in frequency.items()}
