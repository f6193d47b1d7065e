"""Owns the way from a request to a sequence: what is wrong with it, its tokens, what chooses and shows the next ones.

Must not know what else is asked or computed.
"""

from __future__ import annotations

import math

from appliance.config import EngineSettings
from appliance.engine.grammar import Grammars, UnsupportedConstraint
from appliance.engine.llama import Llama
from appliance.engine.protocol import Submit
from appliance.engine.sampling import Sampler, fault_of
from appliance.engine.sequence import Sequence
from appliance.engine.speculate import Drafter
from appliance.engine.text import TextStream

MOST_DRAFT = 16  # tokens that are guessed of one sequence in a step
# No tokenizer packs this many bytes into each token of a real text: a longer prompt is refused before the
# second that it would take to tokenize it, in which nobody else would be served.
_MOST_BYTES_PER_TOKEN = 32


class Refused(Exception):
    """A request that cannot be taken, with the code and message of its `Failed`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Intake:
    """Makes sequences for one model."""

    def __init__(self, llama: Llama, settings: EngineSettings) -> None:
        self._llama = llama
        self._grammars = Grammars(llama)
        self._guesses = settings.speculation and not settings.deterministic

    def read(self, request: Submit, now_s: float) -> Sequence:
        """The sequence of a request that arrived at `now_s`, with what an earlier engine made of its answer.

        Raises:
            Refused: the request is faulty, or does not fit the context.
        """
        self._check(request)
        prompt = self._llama.tokenize_prompt(request.prompt)
        if not prompt:
            raise Refused("invalid_request", "The prompt is empty.")
        cells, limit = len(prompt) + request.max_tokens, self._llama.context_tokens
        if cells > limit:
            raise Refused(
                "context_length_exceeded",
                f"The prompt has {len(prompt)} tokens and {request.max_tokens} more are asked for: "
                f"{cells} in all, but the context holds {limit}.",
            )
        tokens = [*prompt, *request.generated]
        try:
            matcher = self._grammars.matcher(request.constraint) if request.constraint else None
            sampler = Sampler(self._llama, request.sampling, tokens, len(prompt), matcher)
        except (UnsupportedConstraint, ArithmeticError) as error:
            raise Refused("invalid_request", str(error)) from error
        text = TextStream(request.stop)
        for token in request.generated:
            text.feed(self._llama.piece(token))  # it was sent by the earlier engine
        return Sequence(
            request=request,
            tokens=tokens,
            prompt_tokens=len(prompt),
            pinned_tokens=len(self._llama.tokenize_prompt(request.prompt[: request.pinned])) if request.pinned else 0,
            arrived_s=now_s,
            deadline_s=math.inf if request.deadline_ms is None else now_s + request.deadline_ms / 1000,
            sampler=sampler,
            matcher=matcher,
            text=text,
            drafter=Drafter(tokens, MOST_DRAFT) if self._guesses else None,
        )

    def _check(self, request: Submit) -> None:
        if request.max_tokens < 1:
            raise Refused("invalid_request", "max_tokens must be at least 1.")
        if fault := fault_of(request.sampling, self._llama.n_vocab):
            raise Refused("invalid_request", fault)
        if not all(0 <= token < self._llama.n_vocab for token in request.generated):
            raise Refused("invalid_request", "A generated token is not of this model.")
        size = sum(len(segment.text.encode("utf-8", "replace")) for segment in request.prompt)
        limit = self._llama.context_tokens
        if size > limit * _MOST_BYTES_PER_TOKEN:
            message = f"A prompt of {size} bytes is too long: the context holds {limit} tokens."
            raise Refused("context_length_exceeded", message)
