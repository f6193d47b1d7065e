"""Owns the one question that routing asks of a text: is it in a language that the generator speaks?

Must not know models. Decided by script, not by language: Latin text counts as any Latin-script language.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable

_SCRIPT_OF_LANGUAGE = {
    "zh": "CJK",
    "ja": "CJK",
    "ko": "HANGUL",
    "ru": "CYRILLIC",
    "uk": "CYRILLIC",
    "el": "GREEK",
}
_SCRIPT_OF_LANGUAGE |= {"ar": "ARABIC", "he": "HEBREW", "hi": "DEVANAGARI", "th": "THAI"}
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "BOPOMOFO", "FULLWIDTH", "HALFWIDTH")
# One ideograph carries about as much as this many Latin letters.
_CJK_WEIGHT = 3


def script_of(text: str) -> str:
    """The script that most of the text's letters are in, e.g. `LATIN` or `CJK`; `""` when it has no letters."""
    counts: Counter[str] = Counter()
    for character in text:
        if character.isalpha():
            script = unicodedata.name(character, "").partition(" ")[0]
            if script.startswith(_CJK):
                counts["CJK"] += _CJK_WEIGHT
            else:
                counts[script] += 1
    return counts.most_common(1)[0][0] if counts else ""


def speaks(languages: Iterable[str], text: str) -> bool:
    """True when one of `languages` (ISO 639-1) is written in the text's script, or it has no letters."""
    script = script_of(text)
    return not script or any(_SCRIPT_OF_LANGUAGE.get(language, "LATIN") == script for language in languages)


def is_chinese(text: str) -> bool:
    """True when the text is mostly ideographs: the appliance's own sentences are then given in Chinese."""
    return script_of(text) == "CJK"
