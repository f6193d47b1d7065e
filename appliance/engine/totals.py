"""Owns what an engine counts of its work since it started; its signs of life tell it.

Must not know requests, llama.cpp or messages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Sums since the start."""

    steps: int = 0
    sequences: int = 0  # in all steps together: divided by `steps`, how full a batch is
    preempted: int = 0
    prompt_tokens: int = 0  # of the requests that started, and of them …
    cached_tokens: int = 0  # … found computed
    drafted_tokens: int = 0  # guessed ahead, and of them …
    accepted_tokens: int = 0  # … right
    decode_s: float = 0.0  # inside llama.cpp
    total_s: float = 0.0  # in steps
