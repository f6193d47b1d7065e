"""Owns the pairs that are scored: a question and passages of known lengths, the same for the same seed.

Must not know who scores them.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from build_scripts.bench.engine_bench import texts

if TYPE_CHECKING:
    import tokenizers

_SEED = 20261201
_ROOT = Path(__file__).parents[3]
_LANGUAGES = {"en": ("hx-200", "dg-45"), "zh": ("kc-75",)}  # of the sample manuals
_HEAD = re.compile(r"\A\+\+\+.*?^\+\+\+$", re.MULTILINE | re.DOTALL)
_SHORT = 60  # letters; ideographs count as three


def question() -> str:
    """The question of all pairs."""
    return texts.question(random.Random(_SEED))


def prose(tokens: int) -> str:
    """Sentences of about so many tokens."""
    return texts.prose(random.Random(_SEED), tokens)


def passages(tokenizer: tokenizers.Tokenizer, lengths: Sequence[int]) -> list[str]:
    """A passage of each length, in tokens without special ones."""
    rng = random.Random(_SEED)
    found = []
    for length in lengths:
        text = texts.prose(rng, 2 * length + 20)
        row = tokenizer.encode(text, add_special_tokens=False)
        found.append(text[: row.offsets[length - 1][1]])
    return found


def mixed_lengths(count: int, most: int) -> list[int]:
    """Lengths from a twelfth of the longest to the longest, in no order."""
    rng = random.Random(_SEED)
    return [rng.randint(max(1, most // 12), most) for _ in range(count)]


def sampled(questions: int, passages: int) -> list[tuple[str, list[str]]]:
    """Questions about the sample manuals, half of them in each language, with paragraphs of the manuals."""
    rng = random.Random(_SEED)
    asked = tomllib.loads((_ROOT / "appliance/samples/questions.toml").read_text(encoding="utf-8"))["questions"]
    found = []
    for language, manuals in _LANGUAGES.items():
        paragraphs = [paragraph for manual in manuals for paragraph in _paragraphs(manual)]
        own = [one["question"] for one in asked if one["lang"] == language]
        found += [(one, rng.sample(paragraphs, passages)) for one in rng.sample(own, questions // 2)]
    return found


def _paragraphs(manual: str) -> list[str]:
    text = (_ROOT / f"build_scripts/make_samples/content/{manual}.txt").read_text(encoding="utf-8")
    paragraphs = (paragraph.strip() for paragraph in _HEAD.sub("", text).split("\n\n"))
    return [one for one in paragraphs if len(one.encode()) > _SHORT and not one.startswith("#")]
