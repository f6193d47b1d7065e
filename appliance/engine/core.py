"""Owns requests inside the engine (queued, admitted, prefilled, decoded, ended) and all that they hold.

Must not know sockets or processes: messages go in by methods and come out of `take_messages`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from appliance.config import EngineSettings
from appliance.engine.llama import NO_KV_SLOT, Llama
from appliance.engine.protocol import (
    Cancel,
    Count,
    Counted,
    Done,
    Failed,
    FinishReason,
    FromEngine,
    Heartbeat,
    Started,
    Submit,
    Token,
)
from appliance.engine.sampling import Sampler, fault_of
from appliance.engine.scheduler import Chunk, Pace, Running, Waiting, admit, plan
from appliance.engine.text import TextStream

# No tokenizer packs this many bytes into each token of a real text: a longer prompt is refused before the
# second that it would take to tokenize it, in which nobody else would be served.
_MOST_BYTES_PER_TOKEN = 32

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sequence:
    """One request. `tokens[:computed]` are in the KV cells of `slot`; the rest is still to be computed."""

    request: Submit
    tokens: list[int]
    prompt_tokens: int
    waiting: Waiting
    arrived_s: float
    sampler: Sampler
    text: TextStream
    slot: int = -1
    computed: int = 0
    started_s: float = 0.0  # when it left the queue first; 0: not yet
    first_token_s: float = 0.0  # when its prompt was computed; 0: not yet
    unsent: list[int] = field(default_factory=list)  # tokens since the last `Token` message

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def running(self) -> Running:
        pending = len(self.tokens) - self.computed
        return Running(self.request.id, pending, decoding=self.generated > 0 and pending == 1)


@dataclass(slots=True)
class StepTimes:
    """Where the time of the steps went, in seconds; for measurements."""

    steps: int = 0
    decode_s: float = 0.0  # inside llama.cpp
    total_s: float = 0.0


@dataclass
class Core:
    """All requests of one engine and the one context that computes them."""

    llama: Llama
    settings: EngineSettings
    times: StepTimes = field(default_factory=StepTimes)

    def __post_init__(self) -> None:
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._running: OrderedDict[int, _Sequence] = OrderedDict()  # in order of admission
        self._free_slots = list(range(self.llama.max_sequences))[::-1]
        self._pace = Pace(self.settings.batch_tokens)
        self._out: list[FromEngine] = []
        self._closed = False  # to admission, after llama.cpp found no room: until a sequence ends

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._running or self._waiting)

    def take_messages(self) -> list[FromEngine]:
        """What is to be sent, oldest first; each message is returned once."""
        out, self._out = self._out, []
        return out

    def heartbeat(self) -> Heartbeat:
        """The state, with the KV cells as llama.cpp itself counts them."""
        used = sum(self.llama.used(slot) for slot in range(self.llama.max_sequences))
        return Heartbeat(len(self._running), len(self._waiting), used, self.llama.kv_tokens)

    def submit(self, request: Submit) -> None:
        """Queue a request, or answer `Failed` at once."""
        limit = self.llama.context_tokens
        if request.id in self._waiting or request.id in self._running:
            return self._refuse(request.id, "invalid_request", f"Request id {request.id} is in use.")
        queued = len(self._waiting)
        if queued >= self.settings.max_queue:
            return self._refuse(request.id, "overloaded", f"{queued} requests are waiting already.")
        if request.max_tokens < 1:
            return self._refuse(request.id, "invalid_request", "max_tokens must be at least 1.")
        if fault := fault_of(request.sampling, self.llama.n_vocab):
            return self._refuse(request.id, "invalid_request", fault)
        size = sum(len(segment.text.encode("utf-8", "replace")) for segment in request.prompt)
        if size > limit * _MOST_BYTES_PER_TOKEN:
            message = f"A prompt of {size} bytes is too long: the context holds {limit} tokens."
            return self._refuse(request.id, "context_length_exceeded", message)
        tokens = self.llama.tokenize_prompt(request.prompt)
        if not tokens:
            return self._refuse(request.id, "invalid_request", "The prompt is empty.")
        cells = len(tokens) + request.max_tokens
        if cells > limit:
            message = (
                f"The prompt has {len(tokens)} tokens and {request.max_tokens} more are asked for: "
                f"{cells} in all, but the context holds {limit}."
            )
            return self._refuse(request.id, "context_length_exceeded", message)
        now = time.monotonic()
        deadline = math.inf if request.deadline_ms is None else now + request.deadline_ms / 1000
        self._waiting[request.id] = _Sequence(
            request=request,
            tokens=tokens,
            prompt_tokens=len(tokens),
            waiting=Waiting(request.id, cells, deadline),
            arrived_s=now,
            sampler=Sampler(self.llama, request.sampling, tokens),
            text=TextStream(request.stop),
        )

    def cancel(self, message: Cancel) -> None:
        """End a request at once. One that has ended already is not known any more: nothing to do."""
        sequence = self._waiting.get(message.id) or self._running.get(message.id)
        if sequence is not None:
            self._finish(sequence, "cancelled")

    def count(self, message: Count) -> None:
        """Answer how many tokens texts have as content."""
        counts = tuple(len(self.llama.tokenize(text, special=False)) for text in message.texts)
        self._out.append(Counted(message.id, counts))

    def step(self) -> None:
        """Admit, compute one batch, choose the next tokens."""
        begin = time.monotonic()
        self._apply_deadlines(begin)
        self._admit(begin)
        if not self._running:
            return
        chunks = plan([sequence.running() for sequence in self._running.values()], self._pace.budget_tokens)
        wanted = self._fill(chunks)
        decode_begin = time.monotonic()
        code = self.llama.decode()
        decode_s = time.monotonic() - decode_begin
        if code == 0:
            self._pace.observe(sum(chunk.tokens for chunk in chunks), decode_s)
            for chunk in chunks:
                self._running[chunk.id].computed += chunk.tokens
            self._choose(wanted)
        else:
            self._recover(code, chunks)
        self.times.steps += 1
        self.times.decode_s += decode_s
        self.times.total_s += time.monotonic() - begin

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless slots and cells are held by running sequences, and only by them."""
        held = {sequence.slot: sequence.computed for sequence in self._running.values()}
        assert len(held) == len(self._running), "two sequences in one slot"  # noqa: S101
        assert sorted([*held, *self._free_slots]) == list(range(self.llama.max_sequences)), "a slot is lost"  # noqa: S101
        for slot in range(self.llama.max_sequences):
            used = self.llama.used(slot)
            assert used == held.get(slot, 0), f"slot {slot} holds {used} cells, not {held.get(slot, 0)}"  # noqa: S101
        claimed = sum(sequence.waiting.cells for sequence in self._running.values())
        assert claimed <= self.llama.kv_tokens, "more cells are promised than there are"  # noqa: S101
        for sequence in self._waiting.values():
            assert sequence.slot == -1 and sequence.computed == 0, "a waiting request holds cells"  # noqa: S101

    def _apply_deadlines(self, now: float) -> None:
        for sequence in [s for s in self._running.values() if now >= s.waiting.deadline_s]:
            self._expire(sequence, now)

    def _admit(self, now: float) -> None:
        if not self._waiting or (self._closed and self._running):
            return
        claimed = sum(sequence.waiting.cells for sequence in self._running.values())
        decision = admit(
            now,
            [sequence.waiting for sequence in self._waiting.values()],
            free_sequences=len(self._free_slots),
            free_cells=self.llama.kv_tokens - claimed,
        )
        for request_id in decision.expired:
            self._expire(self._waiting[request_id], now)
        for request_id in decision.admit:
            sequence = self._waiting.pop(request_id)
            sequence.slot = self._free_slots.pop()
            self._running[request_id] = sequence
            if not sequence.started_s:  # a preempted one has told its start before
                sequence.started_s = now
                queue_ms = (now - sequence.arrived_s) * 1000
                self._out.append(Started(request_id, sequence.prompt_tokens, 0, queue_ms))

    def _fill(self, chunks: Iterable[Chunk]) -> list[_Sequence]:
        """Lay out the batch; return the sequences whose next token it decides, in order of its outputs."""
        batch = self.llama.batch
        batch.clear()
        wanted = []
        for chunk in chunks:
            sequence = self._running[chunk.id]
            end = sequence.computed + chunk.tokens
            last = end == len(sequence.tokens)
            tokens = sequence.tokens[sequence.computed : end]
            batch.add(tokens, sequence.computed, sequence.slot, want_logits=last)
            if last:
                wanted.append(sequence)
        return wanted

    def _choose(self, wanted: list[_Sequence]) -> None:
        if not wanted:
            return
        logits = self.llama.logits()
        now = time.monotonic()
        for row, (position, sequence) in enumerate(zip(self.llama.batch.outputs, wanted, strict=True)):
            if not sequence.first_token_s:
                sequence.first_token_s = now
            try:
                token = sequence.sampler.choose(position, logits[row])
            except ArithmeticError as error:
                self._fail(sequence, "engine_error", f"Generation failed: {error}.")
                continue
            self._advance(sequence, token)

    def _advance(self, sequence: _Sequence, token: int) -> None:
        if self.llama.is_end(token):
            self._finish(sequence, "stop")
            return
        sequence.tokens.append(token)
        sequence.unsent.append(token)
        self._say(sequence, sequence.text.feed(self.llama.piece(token)))
        if sequence.text.stopped:
            self._finish(sequence, "stop")
        elif sequence.generated >= sequence.request.max_tokens:
            self._finish(sequence, "length")

    def _say(self, sequence: _Sequence, text: str) -> None:
        if text:
            self._out.append(Token(sequence.request.id, text, tuple(sequence.unsent)))
            sequence.unsent.clear()

    def _finish(self, sequence: _Sequence, reason: FinishReason, *, deadline_hit: bool = False) -> None:
        now = time.monotonic()
        if reason != "cancelled":
            self._say(sequence, sequence.text.finish())
        self._release(sequence)
        started = sequence.started_s or now
        prefilled = sequence.first_token_s or now
        self._out.append(
            Done(
                id=sequence.request.id,
                finish_reason=reason,
                prompt_tokens=sequence.prompt_tokens,
                cached_tokens=0,
                generated_tokens=sequence.generated,
                queue_ms=(started - sequence.arrived_s) * 1000,
                prefill_ms=(prefilled - started) * 1000,
                decode_ms=(now - prefilled) * 1000,
                deadline_hit=deadline_hit,
            )
        )

    def _expire(self, sequence: _Sequence, now: float) -> None:
        if sequence.generated:
            self._finish(sequence, "length", deadline_hit=True)
            return
        waited = round((now - sequence.arrived_s) * 1000)
        doing = "being read" if sequence.slot >= 0 else "waiting"
        deadline = f"The deadline of {sequence.request.deadline_ms:g} ms passed"
        message = f"{deadline}: the request was {doing} for {waited} ms."
        self._fail(sequence, "deadline_exceeded", message)

    def _refuse(self, request_id: int, code: str, message: str) -> None:
        self._out.append(Failed(request_id, code, message))

    def _fail(self, sequence: _Sequence, code: str, message: str) -> None:
        self._release(sequence)
        self._refuse(sequence.request.id, code, message)

    def _release(self, sequence: _Sequence) -> None:
        """Take a request out of everything it may be in; free all it holds."""
        self._waiting.pop(sequence.request.id, None)
        if sequence.slot >= 0:
            self._vacate(sequence)
            self._closed = False
        sequence.sampler.close()

    def _vacate(self, sequence: _Sequence) -> None:
        """Take a sequence out of the batch and free its cells; it keeps its tokens, none of them computed."""
        del self._running[sequence.request.id]
        self.llama.truncate(sequence.slot, 0)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        sequence.computed = 0

    def _recover(self, code: int, chunks: list[Chunk]) -> None:
        """A batch was not computed. No room: the youngest sequence is queued again. Else: all of it fail."""
        _log.error("llama_decode returned %d for %d sequences", code, len(chunks))
        in_batch = [self._running[chunk.id] for chunk in chunks]
        if code == NO_KV_SLOT and len(self._running) > 1:
            for sequence in in_batch:
                self.llama.truncate(sequence.slot, sequence.computed)
            self._preempt(next(reversed(self._running.values())))
            return
        for sequence in in_batch:
            self._fail(sequence, "engine_error", f"The model could not compute this request ({code}).")

    def _preempt(self, sequence: _Sequence) -> None:
        """Back to the head of the queue; its tokens stay and are computed again later."""
        self._vacate(sequence)
        self._waiting[sequence.request.id] = sequence
        self._waiting.move_to_end(sequence.request.id, last=False)
        self._closed = True
