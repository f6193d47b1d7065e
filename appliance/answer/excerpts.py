"""Owns answers made of quotations alone: what the service gives when it does not generate.

Must not know why it does not: the caller names the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from appliance.answer.language import is_chinese
from appliance.retrieval.types import Passage
from appliance.sentences import sentences

MAX_EXCERPTS = 3
Terms = Callable[[str], frozenset[str]]  # what a text is about, as recall sees it
Why = Literal["instead", "not_found", "unsupported"]
# Why quotations are given → the line above them, in English and in Chinese.
FRAMES: dict[Why, tuple[str, str]] = {
    "instead": ("The most relevant passages of the documents:", "文档中最相关的原文："),
    "not_found": (
        "The documents do not seem to answer this. The nearest passages:",
        "文档中没有找到这个问题的答案。最接近的内容：",
    ),
    "unsupported": ("The documents themselves say:", "文档原文："),
}
NOTHING = ("Nothing about this was found in the documents.", "文档中没有找到相关内容。")
# A quotation carries its neighbours up to this many characters, so that it can be understood alone.
MAX_CHARACTERS = 320
CELL_JOINER = " | "  # how rows of tables are written in passages


def split(text: str) -> list[str]:
    """The sentences of `text`, without the white space around them."""
    return [part for part in (text[start:end].strip() for start, end in sentences(text)) if part]


def best_quote(question: str, text: str, terms: Terms, weights: dict[str, float] | None = None) -> str:
    """The sentence of `text` that shares most with `question`, with what follows it while it stays short."""
    parts = split(text)
    if not parts:
        return ""
    wanted = terms(question)

    def shared(part: str) -> float:
        return sum((weights or {}).get(term, 1.0) for term in wanted & terms(part))

    # Between equals, one with a figure: a row of a table says more than its header.
    best = max(range(len(parts)), key=lambda i: (shared(parts[i]), any(map(str.isdigit, parts[i])), -i))
    quote = parts[best]
    if CELL_JOINER in quote:
        return quote[:MAX_CHARACTERS]  # a row of a table: the rows below it say other things
    glue = "" if is_chinese(quote) else " "
    for following in parts[best + 1 :]:
        if len(quote) + len(following) > MAX_CHARACTERS:
            break
        quote += glue + following
    return quote if len(quote) <= 2 * MAX_CHARACTERS else quote[: 2 * MAX_CHARACTERS].rstrip() + "…"


def compose(question: str, passages: Sequence[Passage], why: Why, terms: Terms) -> str:
    """An answer of at most three quotations, best first, each with its source number.

    Args:
        question: decides the language of the frame and the sentence that is quoted first.
        passages: best first; passage i has source number i + 1.
        why: `instead` of a generated answer, the answer was `not_found`, or what was generated is `unsupported`.
        terms: what the sentences are weighed by.
    """
    language = 1 if is_chinese(question) else 0
    if not passages:
        return NOTHING[language]
    frame = FRAMES[why][language]
    weights = _rarity(passages, terms)
    lines = [frame]
    for number, passage in enumerate(passages[:MAX_EXCERPTS], start=1):
        quote = best_quote(question, passage.text, terms, weights)
        lines.append(f"「{quote}」[{number}]" if is_chinese(quote) else f"“{quote}” [{number}]")
    return "\n\n".join(lines)


def _rarity(passages: Sequence[Passage], terms: Terms) -> dict[str, float]:
    """Inverse document frequency of each term over the passages: what tells them apart weighs more."""
    frequency: dict[str, int] = {}
    for passage in passages:
        for term in terms(passage.text):
            frequency[term] = frequency.get(term, 0) + 1
    return {term: math.log(1 + len(passages) / count) for term, count in frequency.items()}
