"""Owns the way from a request to a sequence: what is wrong with it, its tokens, what chooses and shows the next ones.

Must not know what else is asked or computed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from appliance.config import EngineSettings
from appliance.engine.compiling import Compiler, TooSlow
from appliance.engine.grammar import Grammar, Grammars, UnsupportedConstraint
from appliance.engine.llama import Llama
from appliance.engine.protocol import Constraint, Submit
from appliance.engine.sampling import Sampler, fault_of
from appliance.engine.sequence import Sequence
from appliance.engine.speculate import Drafter
from appliance.engine.text import TextStream

MOST_DRAFT = 16  # tokens that are guessed of one sequence in a step
# No tokenizer packs this many bytes into each token of a real text: a longer prompt is refused before the
# second that it would take to tokenize it, in which nobody else would be served.
_MOST_BYTES_PER_TOKEN = 32

_log = logging.getLogger(__name__)


class Refused(Exception):
    """A request that cannot be taken, with the code and message of its `Failed`, and what of it is at fault."""

    def __init__(self, code: str, message: str, param: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class Intake:
    """Makes sequences for one model.

    Args:
        llama: the model.
        settings: whether answers are guessed ahead.
        wake: called, by any thread, when `compiled` has something new.
    """

    def __init__(self, llama: Llama, settings: EngineSettings, wake: Callable[[], None]) -> None:
        self._llama = llama
        self._compiler = Compiler(Grammars(llama), wake)
        self._guesses = settings.speculation and not settings.deterministic

    def read(self, request: Submit, now_s: float) -> Sequence:
        """The sequence of a request that arrived at `now_s`, with what an earlier engine made of its answer.

        Where it is `compiling`, `compiled` tells when its constraint is there for `constrain`.

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
                "messages",
            )
        tokens = [*prompt, *request.generated]
        sequence = Sequence(
            request=request,
            tokens=tokens,
            prompt_tokens=len(prompt),
            pinned_tokens=len(self._llama.tokenize_prompt(request.prompt[: request.pinned])) if request.pinned else 0,
            arrived_s=now_s,
            deadline_s=math.inf if request.deadline_ms is None else now_s + request.deadline_ms / 1000,
            sampler=Sampler(self._llama, request.sampling, tokens, len(prompt)),
            text=self._resumed(request),
            drafter=Drafter(tokens, MOST_DRAFT) if self._guesses else None,
            keep=request.keep,
        )
        if request.constraint is not None:
            grammar = self._compiler.find(request.constraint)
            if grammar is not None:
                self.constrain(sequence, grammar)
            else:
                self._compiler.start(request.constraint)
        return sequence

    def compiled(self) -> list[tuple[Constraint, Grammar | BaseException]]:
        """Constraints that were compiled since the last call, or why they can't be: for `constrain`."""
        return self._compiler.results()

    def constrain(self, sequence: Sequence, outcome: Grammar | BaseException) -> None:
        """Put a sequence under its constraint.

        Raises:
            Refused: it can't be enforced, or the answer so far is none of its texts.
        """
        request = sequence.request
        try:
            if not isinstance(outcome, Grammar):
                raise outcome
            matcher = outcome.matcher()
            sequence.sampler = Sampler(self._llama, request.sampling, sequence.tokens, sequence.prompt_tokens, matcher)
            sequence.matcher = matcher
        except TooSlow as error:
            raise Refused("invalid_request" if error.began else "overloaded", str(error)) from error
        except UnsupportedConstraint as error:
            raise Refused("invalid_request", error.message, error.param or "") from error
        except ArithmeticError as error:
            raise Refused("invalid_request", str(error)) from error
        except BaseException as error:
            _log.exception("a constraint can't be compiled")
            raise Refused("invalid_request", f"The constraint can't be compiled: {error}.") from error

    def give_up(self, constraint: Constraint) -> None:
        """No sequence waits for this constraint any more."""
        self._compiler.give_up(constraint)

    def close(self) -> None:
        """Wait for what other threads do with the model."""
        self._compiler.close()

    def _resumed(self, request: Submit) -> TextStream:
        """The text where an earlier engine left it. More was sent than can be sent before the end: it had ended."""
        text = TextStream(request.stop)
        shown = sum(len(text.feed(self._llama.piece(token))) for token in request.generated)
        if request.sent > shown:
            text.finish()
            text.stopped = len(request.generated) < request.max_tokens
        return text

    def _check(self, request: Submit) -> None:
        if request.max_tokens < 1:
            raise Refused("invalid_request", "max_tokens must be at least 1.", "max_tokens")
        if fault := fault_of(request.sampling, self._llama.n_vocab):
            raise Refused("invalid_request", fault)
        if not all(0 <= token < self._llama.n_vocab for token in request.generated):
            raise Refused("invalid_request", "A generated token is not of this model.")
        size = sum(len(segment.text.encode("utf-8", "replace")) for segment in request.prompt)
        limit = self._llama.context_tokens
        if size > limit * _MOST_BYTES_PER_TOKEN:
            message = f"A prompt of {size} bytes is too long: the context holds {limit} tokens."
            raise Refused("context_length_exceeded", message, "messages")
