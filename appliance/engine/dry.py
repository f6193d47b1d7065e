"""Owns the DRY penalty: the longer a run of tokens a token would repeat, the less likely it becomes.

Must not know how tokens are chosen otherwise. The meaning is llama.cpp's, with its default breakers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

# A repetition does not reach back over a token with one of these in it: structure may repeat.
BREAKERS = (b"\n", b":", b'"', b"*")
# A longer repetition is penalised as if it were this long.
LONGEST_REPEAT = 512
_LARGEST_EXPONENT = 88.7228391  # natural logarithm of float32's largest number


class Dry:
    """The penalty over one sequence's tokens.

    Args:
        multiplier: penalty of a repetition of `allowed_length` tokens; grows by `base` (1 or more) with each further.
        allowed_length: 1 or more.
        last_n: how many of the last tokens are looked at; -1: all.
        tokens: what is known of the sequence.
        piece: the bytes of a token.
    """

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        tokens: Sequence[int],
        piece: Callable[[int], bytes],
    ) -> None:
        self._multiplier, self._base, self._allowed, self._last_n = multiplier, base, allowed_length, last_n
        self._piece = piece
        self._largest_exponent = _LARGEST_EXPONENT / math.log(base) if base > 1.0 else math.inf
        self._count = len(tokens)
        self._buffer = np.zeros(max(64, 2 * self._count), np.int32)
        self._buffer[: self._count] = tokens
        # After the last breaker: as far back as matters.
        self._clear = 0
        for token in reversed(tokens[-LONGEST_REPEAT:]):
            if self._breaks(token):
                break
            self._clear += 1

    def accept(self, token: int) -> None:
        """The sequence goes on with `token`."""
        if self._count == len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros_like(self._buffer)])
        self._buffer[self._count] = token
        self._count += 1
        self._clear = 0 if self._breaks(token) else self._clear + 1

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        """Lower in `logits` `(vocabulary,)` each token that would prolong a repetition."""
        for token, length in self._repeats().items():
            if not self._breaks(token):
                exponent = min(length - self._allowed, self._largest_exponent)
                logits[token] -= self._multiplier * self._base**exponent

    def _repeats(self) -> dict[int, int]:
        """Each token that would prolong a repetition, and how long the longest is without it."""
        begin = 0 if self._last_n < 0 else max(0, self._count - self._last_n)
        tokens = self._buffer[begin : self._count]
        reach = min(self._clear, len(tokens), LONGEST_REPEAT)
        if reach < self._allowed:
            return {}
        longest: dict[int, int] = {}
        # `places` are where a token follows `length` tokens that are also the last ones.
        places = np.arange(1, len(tokens))
        for length in range(reach + 1):
            if length >= self._allowed:
                longest.update(dict.fromkeys(tokens[places].tolist(), length))
            if length == reach:
                break
            places = places[places > length]
            places = places[tokens[places - length - 1] == tokens[-length - 1]]
            if not places.size:
                break
        return longest

    def _breaks(self, token: int) -> bool:
        piece = self._piece(token)
        return any(breaker in piece for breaker in BREAKERS)
