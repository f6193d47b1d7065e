"""Owns the guess what a ligature was whose character code in the file means nothing.

Must not know PDF: it works on words that hold the replacement character between letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from appliance.documents.model import REPLACEMENT, Parsed
from appliance.store.records import Loss

_WORD = re.compile(rf"[A-Za-z]*(?:{REPLACEMENT}[A-Za-z]+|[A-Za-z]+{REPLACEMENT})[A-Za-z]*")
_LIGATURES = ("fi", "ff", "fl", "ffi", "ffl")
_WORDS_MOST = 5000  # different ones; a document with more has a font that cannot be read at all


def restored(parsed: Parsed, count_tokens: Callable[[Sequence[str]], list[int]]) -> Parsed:
    """The document with broken ligatures made whole, and a loss that says so.

    Of the five Latin ligatures the one is taken that makes a word of fewest tokens: a tokenizer's vocabulary
    knows "efficient", and has to spell "eflcient".
    """
    words = sorted({word for block in parsed.blocks for word in _WORD.findall(block.text)})
    words = [word for word in words if word.count(REPLACEMENT) == 1]
    if not words or len(words) > _WORDS_MOST:
        return parsed
    candidates = [word.replace(REPLACEMENT, ligature) for word in words for ligature in _LIGATURES]
    tokens = count_tokens([f" {candidate}" for candidate in candidates])
    known: dict[str, str] = {}
    for place, word in enumerate(words):
        own = range(place * len(_LIGATURES), (place + 1) * len(_LIGATURES))
        known[word] = candidates[min(own, key=tokens.__getitem__)]

    def whole(text: str) -> str:
        return _WORD.sub(lambda found: known.get(found.group(), found.group()), text)

    blocks = tuple(
        msgspec.structs.replace(block, text=whole(block.text), header=whole(block.header)) for block in parsed.blocks
    )
    loss = Loss("ligatures_guessed", f"{len(words)} words held a character without a readable code")
    return msgspec.structs.replace(parsed, blocks=blocks, losses=(*parsed.losses, loss))
