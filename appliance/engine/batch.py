"""Owns the memory of one `llama_batch`: tokens of several sequences, laid out for one decode.

Must not know requests or policy. The arrays belong to llama.cpp; numpy only looks into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Batch:
    """A reusable batch of at most `capacity` tokens, each of one sequence."""

    def __init__(self, capacity: int) -> None:
        import llama_cpp

        self._free = llama_cpp.llama_batch_free
        self.raw: Any = llama_cpp.llama_batch_init(capacity, 0, 1)
        self.capacity = capacity
        shape = (capacity,)
        self._token = np.ctypeslib.as_array(self.raw.token, shape)
        self._pos = np.ctypeslib.as_array(self.raw.pos, shape)
        self._logits = np.ctypeslib.as_array(self.raw.logits, shape)
        np.ctypeslib.as_array(self.raw.n_seq_id, shape).fill(1)
        # Each token's own list of sequences has one element and lives as long as the batch.
        self._seq_id = self.raw.seq_id
        self.outputs: list[int] = []  # batch positions whose logits are wanted, in order

    def clear(self) -> None:
        """Forget all tokens."""
        self.raw.n_tokens = 0
        self.outputs.clear()

    def add(self, tokens: Sequence[int], position: int, sequence: int, *, outputs: int) -> None:
        """Append tokens of one sequence at positions `position…`; the logits after the last `outputs` are wanted."""
        start = self.raw.n_tokens
        end = start + len(tokens)
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit a batch of {self.capacity}")
        self._token[start:end] = tokens
        self._pos[start:end] = range(position, position + len(tokens))
        self._logits[start:end] = 0
        for index in range(start, end):
            self._seq_id[index][0] = sequence
        self._logits[end - outputs : end] = 1
        self.outputs += range(end - outputs, end)
        self.raw.n_tokens = end

    def close(self) -> None:
        """Free the arrays; the batch can't be used afterwards."""
        self._free(self.raw)
