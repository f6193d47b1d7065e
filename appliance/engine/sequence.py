"""Owns what is known of one request inside the engine: its tokens, how far they are computed, what it was told.

Must not know other requests, llama.cpp or policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.engine.grammar import Matcher
from appliance.engine.policy import Running, Waiting
from appliance.engine.prefix import Lease
from appliance.engine.protocol import Done, FinishReason, Submit, Token, TokenLogprob
from appliance.engine.sampling import Sampler
from appliance.engine.speculate import Drafter
from appliance.engine.text import TextStream


@dataclass(slots=True)
class Sequence:
    """One request. `tokens[:computed]` are in the KV cells of its lease's slot; the rest is still to be computed."""

    request: Submit
    tokens: list[int]
    prompt_tokens: int
    pinned_tokens: int
    arrived_s: float
    deadline_s: float
    sampler: Sampler
    text: TextStream
    drafter: Drafter | None
    matcher: Matcher | None = None  # None: it has no constraint, or that is not compiled yet
    keep: bool = True  # what is computed of it may stay in the prefix cache; False: the pinned beginning alone
    lease: Lease | None = None  # None: it waits
    computed: int = 0
    cached_tokens: int = -1  # of the prompt, when it started first; -1: it has not
    started_s: float = 0.0  # when it left the queue first …
    admitted_s: float = 0.0  # … and last
    preempted: int = 0
    first_token_s: float = 0.0  # when its prompt was computed; 0: not yet
    drafts: list[int] = field(default_factory=list)  # guessed for the step that is being computed
    forced: bool = False  # the constraint leaves no other way than these drafts
    drafted: int = 0
    accepted: int = 0
    unsent: list[int] = field(default_factory=list)  # tokens since the last `Token` message
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the unsent tokens, where asked for
    common: dict[int, int] = field(default_factory=dict)  # request id → length of the prefix shared with it

    @property
    def generated(self) -> int:
        """Tokens of the answer so far, those of an earlier engine included."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def compiling(self) -> bool:
        """Whether it waits for its constraint."""
        return self.request.constraint is not None and self.matcher is None

    @property
    def cells(self) -> int:
        """KV cells that it may need at most."""
        return self.prompt_tokens + self.request.max_tokens

    @property
    def kept(self) -> int:
        """How many of the computed tokens may stay in the prefix cache."""
        return self.computed if self.keep else min(self.computed, self.pinned_tokens)

    @property
    def decoding(self) -> bool:
        """Whether all but the token that was chosen last is computed."""
        return len(self.tokens) - self.computed == 1 and self.generated > 0

    def waiting(self, need: int, prefill: int) -> Waiting:
        """What the policy sees of it in the queue."""
        return Waiting(self.request.id, self.request.priority, self.arrived_s, self.deadline_s, need, prefill)

    def running(self, freed: int = 0) -> Running:
        """What the policy sees of it in the batch; `freed`: the cells that preempting it would give, for admission."""
        return Running(
            self.request.id,
            self.request.priority,
            self.deadline_s,
            self.admitted_s,
            freed,
            len(self.tokens) - self.computed + len(self.drafts),
            self.decoding,
            self.preempted,
        )

    def token_message(self, text: str) -> Token:
        """The text that may be sent now, with all tokens since the last message."""
        message = Token(self.request.id, text, tuple(self.unsent), tuple(self.logprobs))
        self.unsent.clear()
        self.logprobs.clear()
        return message

    def done_message(self, reason: FinishReason, now_s: float, *, deadline_hit: bool) -> Done:
        """The end of the request."""
        started = self.started_s or now_s
        prefilled = self.first_token_s or now_s
        return Done(
            id=self.request.id,
            finish_reason=reason,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=max(self.cached_tokens, 0),
            generated_tokens=self.generated,
            queue_ms=(started - self.arrived_s) * 1000,
            prefill_ms=(prefilled - started) * 1000,
            decode_ms=(now_s - prefilled) * 1000,
            deadline_hit=deadline_hit,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
        )
