"""Owns the choice of the next token of a sequence, from the model's logits and what the request asks for.

Must not know requests, batches or text, nor how a constraint decides what is allowed.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from appliance.engine.dry import Dry
from appliance.engine.protocol import Sampling, TokenLogprob

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]

PENALTY_TOKENS = 64  # how far penalties look back, prompt included: llama.cpp's default
MAX_LOGPROBS = 20
_COLDEST = 1e-4  # below this, dividing by the temperature leaves the range of float32: it means the maximum
_SMALLEST, _LARGEST = 1e-6, 1e9  # parameters beyond lead out of float32
_SEED_BITS = (1 << 64) - 1
_BLOCK = 256
_LEAST_WEIGHTS = (1e-2, 1e-4, 1e-6, 0.0)  # of a token for `top_p` to look at it, the best one's being 1


class Vocabulary(Protocol):
    """What is needed of the model."""

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""


class Matcher(Protocol):
    """What is needed of a constraint."""

    def mask(self, logits: Logits) -> None:
        """Set to minus infinity, in place, what must not come next."""

    def accept(self, token: int) -> None:
        """The text goes on with `token`."""


class Chosen(NamedTuple):
    """The next token; `logprob` where asked for."""

    token: int
    logprob: TokenLogprob | None


def fault_of(sampling: Sampling, n_vocab: int) -> str:
    """What is wrong with the parameters, "" if nothing."""
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repeat_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        sampling.dry_multiplier,
        sampling.dry_base,
        *sampling.logit_bias.values(),
    )
    if not all(abs(number) <= _LARGEST for number in numbers):
        return f"Sampling parameters must be finite numbers, none beyond {_LARGEST:.0e}."
    if sampling.repeat_penalty < _SMALLEST:
        return f"repeat_penalty must be over 0, at least {_SMALLEST}."
    if sampling.top_k < 0 or not 0.0 <= sampling.top_p <= 1.0 or not 0.0 <= sampling.min_p <= 1.0:
        return "top_k must not be negative; top_p and min_p must be between 0 and 1."
    if sampling.dry_multiplier < 0.0 or sampling.dry_base < 1.0:
        return "dry_multiplier must not be negative; dry_base must be at least 1."
    if sampling.dry_allowed_length < 1 or sampling.dry_penalty_last_n < -1:
        return "dry_allowed_length must be at least 1; dry_penalty_last_n at least 0, or -1 for all tokens."
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        return f"logprobs must be between 0 and {MAX_LOGPROBS}."
    unknown = [token for token in sampling.logit_bias if not 0 <= token < n_vocab]
    if unknown:
        return f"logit_bias names token {unknown[0]}, but the model has the tokens 0 to {n_vocab - 1}."
    return ""


class Sampler:
    """Chooses the tokens of one sequence.

    The order is llama.cpp's: bias, constraint, penalties, DRY, top_k, top_p, min_p, temperature, draw. At
    temperature 0 the most likely token is taken; of equal ones the first.

    The draw for the i-th generated token follows from the seed and i alone. So a text goes on as it would have
    when another process takes it over with the tokens so far, and a token that was guessed ahead is right exactly
    if it is the one that would have been drawn.

    Args:
        vocabulary: tells the bytes of tokens.
        sampling: free of faults, see `fault_of`.
        tokens: the prompt, and what was generated of the answer already.
        prompt_tokens: how many of them are the prompt.
        matcher: of the constraint, at its beginning; it is brought to where the answer is.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        sampling: Sampling,
        tokens: Sequence[int],
        prompt_tokens: int,
        matcher: Matcher | None = None,
    ) -> None:
        self._piece = vocabulary.piece
        self._sampling = sampling
        self._generated = len(tokens) - prompt_tokens
        self._matcher = matcher
        if matcher is not None:
            for token in tokens[prompt_tokens:]:
                matcher.accept(token)
        self._seed = (secrets.randbits(64) if sampling.seed is None else sampling.seed) & _SEED_BITS
        self._bias = (
            np.fromiter(sampling.logit_bias.keys(), np.int64),
            np.fromiter(sampling.logit_bias.values(), np.float32),
        )
        penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        penalised = penalties != (1.0, 0.0, 0.0)
        self._recent = deque(tokens[-PENALTY_TOKENS:], PENALTY_TOKENS) if penalised else None
        self._dry = None
        if sampling.dry_multiplier and sampling.dry_penalty_last_n:
            self._dry = Dry(
                sampling.dry_multiplier,
                sampling.dry_base,
                sampling.dry_allowed_length,
                sampling.dry_penalty_last_n,
                tokens,
                vocabulary.piece,
            )
        self._changes = bool(sampling.logit_bias or matcher or penalised or self._dry)

    def choose(self, logits: Logits) -> Chosen:
        """The next token, which the sequence then goes on with.

        Args:
            logits: of the model, float32 `(vocabulary,)`; overwritten.

        Raises:
            ArithmeticError: the logits hold no finite maximum, the model or its state is broken; or nothing that
                may come next is left.
        """
        best = int(logits.argmax())
        if not math.isfinite(logits[best]):
            raise ArithmeticError("the model's output is not a number")
        wanted = self._sampling.logprobs
        raw = None if wanted is None else logits.copy()
        if self._changes:
            self._change(logits)
            best = int(logits.argmax())
            if not math.isfinite(logits[best]):
                raise ArithmeticError("no token is left that may come next")
        if self._sampling.temperature < _COLDEST:
            token = best
        else:
            tokens, weights = candidates(logits, float(logits[best]), self._sampling)
            place = pick(weights, _uniform(self._seed, self._generated))
            token = place if tokens is None else int(tokens[place])
        self._accept(token)
        return Chosen(token, None if raw is None or wanted is None else self._logprob(raw, token, wanted))

    def _change(self, logits: Logits) -> None:
        tokens, values = self._bias
        if tokens.size:
            logits[tokens] += values
        if self._matcher is not None:
            self._matcher.mask(logits)
        if self._recent is not None:
            self._penalise(logits, Counter(self._recent))
        if self._dry is not None:
            self._dry.apply(logits)

    def _penalise(self, logits: Logits, counts: Counter[int]) -> None:
        sampling = self._sampling
        tokens = np.fromiter(counts.keys(), np.int64)
        times = np.fromiter(counts.values(), np.float32)
        values = logits[tokens]
        values = np.where(values > 0.0, values / sampling.repeat_penalty, values * sampling.repeat_penalty)
        logits[tokens] = values - (times * sampling.frequency_penalty + sampling.presence_penalty)

    def _accept(self, token: int) -> None:
        self._generated += 1
        if self._matcher is not None:
            self._matcher.accept(token)
        if self._recent is not None:
            self._recent.append(token)
        if self._dry is not None:
            self._dry.accept(token)

    def _logprob(self, raw: Logits, token: int, wanted: int) -> TokenLogprob:
        peak = raw.max()
        normaliser = float(peak) + math.log(float(np.exp(raw - peak).sum(dtype=np.float64)))

        def of(token: int) -> float:
            return float(raw[token]) - normaliser

        best = top(raw, min(wanted, raw.size)).tolist() if wanted else []
        return TokenLogprob(token, self._piece(token), of(token), tuple((t, self._piece(t), of(t)) for t in best))


def candidates(logits: Logits, peak: float, sampling: Sampling) -> tuple[Tokens | None, Logits]:
    """What may be drawn: tokens (None: all, in order) and their weights, of which the best token's is 1.

    `peak` is the largest of `logits`.
    """
    tokens: Tokens | None = None
    kept = logits
    if 0 < sampling.top_k < logits.size:
        tokens = top(logits, sampling.top_k)
        kept = logits[tokens]
    if sampling.top_p < 1.0:
        places = _nucleus(np.exp(kept - np.float32(peak)), sampling.top_p)
        tokens, kept = _of(tokens, places), kept[places]
    if sampling.min_p > 0.0:
        places = np.flatnonzero(kept >= peak + math.log(sampling.min_p))
        tokens, kept = _of(tokens, places), kept[places]
    with np.errstate(over="ignore"):  # to minus infinity, which is a weight of 0
        return tokens, np.exp((kept - np.float32(peak)) / np.float32(sampling.temperature))


def top(logits: Logits, count: int) -> Tokens:
    """The tokens of the `count` largest of `logits`, largest first; of equal ones the first.

    `count` is 1 to the size of `logits`.
    """
    edge = logits.size - count
    least = np.partition(logits, edge)[edge]
    tokens = np.flatnonzero(logits >= least)
    # Equal ones at the edge may be too many: the sort is stable, and the cut leaves out the last of them.
    return tokens[np.argsort(-logits[tokens], kind="stable")][:count]


def pick(weights: Logits, share: float) -> int:
    """The place of `weights` where their running sum passes `share` (0 to below 1) of the whole sum.

    A place of weight 0 is never picked.
    """
    # Running sums of blocks first, then of the block alone: a third of the time for a whole vocabulary.
    sums = np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK), dtype=np.float64)
    block, rest = _passed(sums, share * float(sums.sum()))
    begin = block * _BLOCK
    return begin + _passed(weights[begin : begin + _BLOCK], rest)[0]


def _passed(weights: npt.NDArray[Any], point: float) -> tuple[int, float]:
    """Where the running sum passes `point`, and how much of that place's weight is needed for it."""
    cumulated = np.cumsum(weights, dtype=np.float64)
    # Rounding must not lead behind the last place that has a weight.
    point = min(point, math.nextafter(float(cumulated[-1]), 0.0))
    place = int(np.searchsorted(cumulated, point, side="right"))
    return place, point - (float(cumulated[place - 1]) if place else 0.0)


def _of(tokens: Tokens | None, places: Tokens) -> Tokens:
    return places if tokens is None else tokens[places]


def _nucleus(weights: Logits, share: float) -> Tokens:
    """The fewest places of `weights`, largest first, that together have `share` of their sum."""
    wanted = share * float(weights.sum(dtype=np.float64))
    places = np.arange(weights.size)
    # To sort a whole vocabulary takes milliseconds, and hardly ever is more needed than the first few.
    for least in _LEAST_WEIGHTS:
        places = np.flatnonzero(weights >= least)
        if weights[places].sum(dtype=np.float64) >= wanted:
            break
    places = places[np.argsort(-weights[places], kind="stable")]
    cumulated = np.cumsum(weights[places], dtype=np.float64)
    return places[: int(np.searchsorted(cumulated, wanted)) + 1]


def _uniform(seed: int, index: int) -> float:
    """A number from 0 to below 1, evenly distributed, that follows from `seed` (64 bits) and `index`."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed, index), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 11) / float(1 << 53)
