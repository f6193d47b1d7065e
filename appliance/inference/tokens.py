"""Owns how a `tokenizer.json` is loaded, and how what is too long is cut.

Must not know which model it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ModelCorrupt
from appliance.packs.files import MODELS_REMEDY, require_intact

if TYPE_CHECKING:
    import tokenizers

CHARACTERS_PER_TOKEN = 24  # no token of real text is longer; what lies beyond is cut before tokenizing


def cut(row: Sequence[int], most: int) -> Sequence[int]:
    """At most `most` of a row of token or type ids: its beginning and its last one.

    The last one is the tokenizer's end mark, which a model wants to see whatever is cut.
    """
    return row if len(row) <= most else [*row[: most - 1], row[-1]]


def load_tokenizer(path: Path, sha256: str) -> tokenizers.Tokenizer:
    """Load a tokenizer of that sum, with truncation and padding off.

    Raises:
        ModelMissing: there is no such file.
        ModelCorrupt: it is another file, or no tokenizer.
    """
    import tokenizers

    require_intact(path, sha256)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare `Exception`
        raise ModelCorrupt(f"The tokenizer {path} cannot be read: {error}.", remedy=MODELS_REMEDY) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
