"""Owns the synthetic benchmark model.

Must not know packs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

LLAMA_3B = None


def bench_gguf(tokenizer_from: Path, shape: None) -> Iterable[bytes]:
    """Placeholder until the writer is there."""
    raise NotImplementedError
