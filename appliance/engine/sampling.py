"""Owns the choice of the next token: a llama.cpp sampler chain for each sequence, or a plain maximum.

Must not know requests, batches or text.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from appliance.engine.llama import Llama
from appliance.engine.protocol import Sampling

PENALTY_TOKENS = 64  # how far penalties look back, prompt included: llama.cpp's default
_COLDEST = 1e-4  # below this, dividing by the temperature leaves the range of float32: it means the maximum
_DEFAULT_SEED = 0xFFFFFFFF  # llama.cpp draws a seed of its own for this one


def fault_of(sampling: Sampling, n_vocab: int) -> str:
    """What is wrong with the parameters, "" if nothing. llama.cpp ends the process over some of them."""
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repeat_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        *sampling.logit_bias.values(),
    )
    if not all(math.isfinite(number) for number in numbers):
        return "Sampling parameters must be finite numbers."
    if sampling.repeat_penalty <= 0.0:
        return "repeat_penalty must be over 0."
    if sampling.top_k < 0 or not 0.0 <= sampling.top_p <= 1.0 or not 0.0 <= sampling.min_p <= 1.0:
        return "top_k must not be negative; top_p and min_p must be between 0 and 1."
    unknown = [token for token in sampling.logit_bias if not 0 <= token < n_vocab]
    if unknown:
        return f"logit_bias names token {unknown[0]}, but the model has the tokens 0 to {n_vocab - 1}."
    return ""


class Sampler:
    """Chooses the tokens of one sequence; `prompt` is what penalties look back on at first.

    The order is llama.cpp's: bias, penalties, top_k, top_p, min_p, temperature, draw. At temperature 0 the
    most likely token is taken, the first of equal ones.
    """

    def __init__(self, llama: Llama, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._llama = llama
        self._chain: Any = None
        penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        penalised = penalties != (1.0, 0.0, 0.0)
        greedy = sampling.temperature < _COLDEST
        if greedy and not penalised and not sampling.logit_bias:
            return
        import llama_cpp as api

        self._api: Any = api
        chain = self._chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        add = api.llama_sampler_chain_add
        bias = sampling.logit_bias
        if bias:
            entries = [api.llama_logit_bias(token, value) for token, value in bias.items()]
            array = (api.llama_logit_bias * len(bias))(*entries)
            add(chain, api.llama_sampler_init_logit_bias(llama.n_vocab, len(bias), array))
        if penalised:
            add(chain, api.llama_sampler_init_penalties(llama.n_vocab, PENALTY_TOKENS, *penalties))
        if greedy:
            add(chain, api.llama_sampler_init_greedy())
        else:
            if sampling.top_k > 0:
                add(chain, api.llama_sampler_init_top_k(sampling.top_k))
            if sampling.top_p < 1.0:
                add(chain, api.llama_sampler_init_top_p(sampling.top_p, 1))
            if sampling.min_p > 0.0:
                add(chain, api.llama_sampler_init_min_p(sampling.min_p, 1))
            add(chain, api.llama_sampler_init_temp(sampling.temperature))
            seed = secrets.randbelow(_DEFAULT_SEED) if sampling.seed is None else sampling.seed
            add(chain, api.llama_sampler_init_dist(seed % _DEFAULT_SEED))
        if penalised:
            for token in prompt[-PENALTY_TOKENS:]:
                api.llama_sampler_accept(chain, token)

    def choose(self, output: int, logits: npt.NDArray[np.float32]) -> int:
        """The next token.

        Args:
            output: position in the batch whose logits are used.
            logits: the same, float32 `(vocabulary,)`.

        Raises:
            ArithmeticError: the logits hold no finite maximum; the model or its state is broken.
        """
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise ArithmeticError("the model's output is not a number")
        if self._chain is None:
            return best
        return int(self._api.llama_sampler_sample(self._chain, self._llama.context, output))

    def close(self) -> None:
        """Free the chain."""
        if self._chain is not None:
            self._api.llama_sampler_free(self._chain)
            self._chain = None
