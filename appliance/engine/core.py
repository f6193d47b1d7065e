"""Owns requests inside the engine (queued, admitted, prefilled, decoded, ended) and all that they hold.

Must not know sockets or processes: messages go in by methods and come out of `take_messages`.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from appliance.config import EngineSettings
from appliance.engine.intake import MOST_DRAFT, Intake, Refused
from appliance.engine.llama import DRAFT_TOKENS, NO_KV_SLOT, WARM_UP_TOKENS, Llama
from appliance.engine.pace import Pace
from appliance.engine.persist import PrefixFiles
from appliance.engine.policy import Chunk, admit, plan, turn
from appliance.engine.prefix import PrefixCache
from appliance.engine.protocol import (
    Cancel,
    Constraint,
    Count,
    Counted,
    Failed,
    FinishReason,
    Forget,
    Forgotten,
    FromEngine,
    Heartbeat,
    Started,
    Submit,
    TokenLogprob,
)
from appliance.engine.radix import common_length
from appliance.engine.sequence import Sequence
from appliance.engine.totals import Totals

_QUOTED = 16  # requests of the queue whose place in the prefix cache is looked up anew in each step
_KEPT_AT_END = 4  # prefixes that a stop hands to the disk at most: it must be over soon
# On a CPU, cells that a prompt must not see still cost it: each tile of the attention looks at their masks (2,800 idle
# cells made prompts a quarter slower, 11,200 more than half; 512 made each decoded token a fifth slower), while a range
# comes back from memory in milliseconds.
_IDLE_CELLS = 0
_WORTH_WAITING = 32  # tokens that another is about to compute: fewer are computed twice rather than waited for

_log = logging.getLogger(__name__)


@dataclass
class Core:
    """All requests of one engine and the one context that computes them."""

    llama: Llama
    settings: EngineSettings
    files: PrefixFiles | None = None  # prefixes that survive a restart
    wake: Callable[[], None] = lambda: None  # called, by any thread, when `collect` has something to do
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        settings = self.settings
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._running: OrderedDict[int, Sequence] = OrderedDict()  # in order of admission
        self._free_slots = list(range(self.llama.max_sequences))[::-1]
        ids = () if settings.deterministic else self.llama.prefix_sequences
        idle = None if self.llama.device == "gpu" else _IDLE_CELLS
        self.cache = PrefixCache(self.llama, self.llama.kv_tokens, ids, settings.host_cache_bytes, idle)
        warm = (WARM_UP_TOKENS, self.llama.warm_up_s)
        self._pace = Pace(settings.batch_tokens, settings.itl_target_ms / 1000, warm=warm)
        self._intake = Intake(self.llama, settings, self.wake)
        self._out: list[FromEngine] = []
        self._landed: queue.SimpleQueue[FromEngine] = queue.SimpleQueue()  # from other threads
        if self.files is not None:
            for saved in self.files.load():
                header = saved.header
                self.cache.adopt(header.label, header.tokens, saved, pinned=header.pinned)
        self._closed = False  # to admission, after llama.cpp found no room: until a sequence ends

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._running) or not all(sequence.compiling for sequence in self._waiting.values())

    def take_messages(self) -> list[FromEngine]:
        """What is to be sent, oldest first; each message is returned once."""
        out, self._out = self._out, []
        return out

    def heartbeat(self) -> Heartbeat:
        """The state of the queue and of the KV cells."""
        own = sum(s.computed - s.lease.shared for s in self._running.values() if s.lease)
        cached, stats, totals = self.cache.cached_cells, self.cache.stats, self.totals
        oldest_s = min((s.arrived_s for s in self._waiting.values()), default=0.0)
        return Heartbeat(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_used_tokens=own + cached,
            kv_total_tokens=self.llama.kv_tokens,
            kv_cached_tokens=cached,
            host_cache_bytes=self.cache.host_bytes,
            kv_pinned_tokens=self.cache.pinned_cells,
            kv_evicted_tokens=stats.evicted_tokens,
            kv_restored_tokens=stats.restored_tokens,
            oldest_wait_ms=(time.monotonic() - oldest_s) * 1000 if oldest_s else 0.0,
            steps=totals.steps,
            step_sequences=totals.sequences,
            step_ms=totals.total_s * 1000,
            decode_ms=totals.decode_s * 1000,
            preempted=totals.preempted,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            drafted_tokens=totals.drafted_tokens,
            accepted_tokens=totals.accepted_tokens,
        )

    def submit(self, request: Submit) -> None:
        """Queue a request, or answer `Failed` at once."""
        queued = len(self._waiting)
        if request.id in self._waiting or request.id in self._running:
            return self._refuse(request.id, "invalid_request", f"Request id {request.id} is in use.")
        if queued >= self.settings.max_queue:
            return self._refuse(request.id, "overloaded", f"{queued} requests are waiting already.")
        try:
            sequence = self._intake.read(request, time.monotonic())
        except Refused as error:
            return self._refuse(request.id, error.code, error.message, error.param)
        self._waiting[request.id] = sequence
        if sequence.text.stopped:  # an earlier engine ended before it could say so
            self._finish(sequence, "stop")
        elif sequence.generated >= request.max_tokens:
            self._finish(sequence, "length")

    def cancel(self, message: Cancel) -> None:
        """End a request at once. One that has ended already is not known any more: nothing to do."""
        sequence = self._waiting.get(message.id) or self._running.get(message.id)
        if sequence is not None:
            self._finish(sequence, "cancelled")

    def collect(self) -> None:
        """Take in what other threads have done, and give up what they do too late."""
        now = time.monotonic()
        while not self._landed.empty():
            self._out.append(self._landed.get())
        for constraint, outcome in self._intake.compiled():
            for sequence in self._compiling(constraint):
                try:
                    self._intake.constrain(sequence, outcome)
                except Refused as error:
                    self._fail(sequence, error.code, error.message, error.param)
        for sequence in [s for s in self._waiting.values() if s.compiling and now >= s.deadline_s]:
            self._expire(sequence, now)

    def _compiling(self, constraint: Constraint) -> list[Sequence]:
        return [s for s in self._waiting.values() if s.compiling and s.request.constraint == constraint]

    def count(self, message: Count) -> None:
        """Answer how many tokens texts have as content."""
        counts = tuple(len(self.llama.tokenize(text, special=False)) for text in message.texts)
        self._out.append(Counted(message.id, counts))

    def forget(self, message: Forget) -> None:
        """Give up kept prefixes; of all requests that are here, nothing is kept either. Answered when that is sure."""
        for sequence in [*self._running.values(), *self._waiting.values()]:
            sequence.keep = False
        self.cache.forget()
        if self.files is None:
            self._out.append(Forgotten(message.id))
        else:
            self.files.after_writes(lambda: self._land(Forgotten(message.id)))

    def _land(self, message: FromEngine) -> None:
        self._landed.put(message)
        self.wake()

    def step(self) -> None:
        """Admit, compute one batch, choose the next tokens."""
        begin = time.monotonic()
        self._apply_deadlines(begin)
        self._admit(begin)
        if not self._running:
            return
        self._draft()
        chunks = self._plan()
        wanted = self._fill(chunks)
        decode_begin = time.monotonic()
        code = self.llama.decode()
        if code == 0 and wanted:
            self.llama.logits()  # waits for the device
        decode_s = time.monotonic() - decode_begin
        if code == 0:
            self._computed(chunks, decode_s)
            self._choose(wanted)
        else:
            self._recover(code, chunks)
        totals = self.totals
        totals.steps += 1
        totals.sequences += len(chunks)
        totals.decode_s += decode_s
        totals.total_s += time.monotonic() - begin

    def close(self) -> None:
        """Give up all that is held: requests without an answer, cached prefixes, the thread that writes files."""
        for sequence in [*self._running.values(), *self._waiting.values()]:
            self._release(sequence)
        for _ in range(_KEPT_AT_END):  # an engine that answers one question has no idle moment before
            self.idle()
        self.cache.clear()
        self._intake.close()
        if self.files is not None:
            self.files.close()
            self.files = None

    def idle(self) -> None:
        """Use a moment in which nothing is asked: hand one prefix that is worth it to the disk."""
        if self.files is None or (found := self.cache.to_keep()) is None:
            return
        label, node, data = found
        node.kept = self.files.write(label, self.cache.path_tokens(node), node.start, data, pinned=node.pinned)

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless slots and cells are held by running sequences, and only by them."""
        held = {s.lease.slot: s.computed for s in self._running.values() if s.lease}
        assert len(held) == len(self._running), "two sequences in one slot, or none"  # noqa: S101
        assert sorted([*held, *self._free_slots]) == list(range(self.llama.max_sequences)), "a slot is lost"  # noqa: S101
        for slot in range(self.llama.max_sequences):
            used = self.llama.used(slot)
            assert used == held.get(slot, 0), f"slot {slot} holds {used} cells, not {held.get(slot, 0)}"  # noqa: S101
        nodes = {node.sequence: node.end for _, node in self.cache.nodes() if node.in_context}
        for sequence in self.llama.prefix_sequences:
            used = self.llama.used(sequence)
            assert used == nodes.get(sequence, 0), f"prefix {sequence} ends at {used}"  # noqa: S101
        assert self.cache.free_cells >= 0, "more cells are promised than there are"  # noqa: S101
        for waiting in self._waiting.values():
            assert waiting.lease is None and waiting.computed == 0, "a waiting request holds cells"  # noqa: S101

    def _apply_deadlines(self, now: float) -> None:
        for sequence in [s for s in self._running.values() if now >= s.deadline_s]:
            self._expire(sequence, now)

    def _admit(self, now: float) -> None:
        if not self._waiting or (self._closed and self._running):
            return
        waiting = []
        for number, sequence in enumerate(s for s in self._waiting.values() if not s.compiling):
            need, cached = sequence.cells, 0
            if number < _QUOTED and self._free_slots:
                need, cached = self.cache.quote(sequence.request.label, sequence.tokens, sequence.cells)
            waiting.append(sequence.waiting(need, len(sequence.tokens) - cached))
        decision = admit(
            now,
            waiting,
            [s.running(self.cache.freed(s.lease)) for s in self._running.values() if s.lease],
            free_sequences=len(self._free_slots),
            free_cells=self.cache.room(),
            aging_s=self.settings.aging_s,
            pace=self._pace,
        )
        for request_id in decision.expired:
            self._expire(self._waiting[request_id], now)
        for refusal in decision.refused:
            deadline = self._waiting[refusal.id].request.deadline_ms
            message = (
                f"The deadline of {deadline:g} ms cannot be met: "
                f"reading the prompt takes about {refusal.estimate_s * 1000:.0f} ms."
            )
            self._fail(self._waiting[refusal.id], "deadline_exceeded", message)
        for request_id in decision.preempt:
            self._preempt(self._running[request_id])
        for request_id in decision.admit:
            self._start(self._waiting[request_id], now)

    def _start(self, sequence: Sequence, now: float) -> None:
        request = sequence.request
        lease = self.cache.acquire(request.label, sequence.tokens, sequence.cells, self._free_slots[-1])
        if lease is None:  # what it shares is smaller than it seemed: the next step decides anew
            return
        self._free_slots.pop()
        del self._waiting[request.id]
        self._running[request.id] = sequence
        sequence.lease = lease
        sequence.computed = lease.shared
        sequence.admitted_s = now
        if sequence.cached_tokens < 0:  # a preempted one has told its start before
            sequence.started_s = now
            sequence.cached_tokens = min(lease.shared, sequence.prompt_tokens)
            self.totals.prompt_tokens += sequence.prompt_tokens
            self.totals.cached_tokens += sequence.cached_tokens
            queue_ms = (now - sequence.arrived_s) * 1000
            self._out.append(Started(request.id, sequence.prompt_tokens, sequence.cached_tokens, queue_ms))

    def _draft(self) -> None:
        """Guess what decoding sequences will say next, as far as that pays."""
        room = DRAFT_TOKENS
        marginal = self._pace.marginal(sum(sequence.decoding for sequence in self._running.values()))
        for sequence in self._running.values():
            sequence.drafts = []
            if sequence.drafter is None or not sequence.decoding or room == 0:
                continue
            most = min(room, MOST_DRAFT, sequence.request.max_tokens - sequence.generated - 1)
            if most < 1:
                continue
            drafts = sequence.matcher.forced(most) if sequence.matcher else []
            sequence.forced = bool(drafts)
            sequence.drafts = drafts or sequence.drafter.draft(marginal)[:most]
            room -= len(sequence.drafts)

    def _plan(self) -> list[Chunk]:
        """Who computes what: a prompt that begins as one before it in the batch waits for the part they share."""
        reading = sorted((s for s in self._running.values() if not s.decoding), key=lambda s: turn(s.running()))
        for sequence in reading:
            assert sequence.lease is not None  # noqa: S101
            if len(reading) > 1 and sequence.lease.shared == sequence.computed:
                sequence.computed = self.cache.advance(sequence.lease, sequence.tokens)
        followers = {b.request.id for place, b in enumerate(reading) if any(self._leads(a, b) for a in reading[:place])}
        active = [s.running() for s in self._running.values() if s.request.id not in followers]
        decodes = sum(sequence.decoding for sequence in active)
        return plan(active, self._pace.budget(decodes), self.llama.batch.capacity)

    def _leads(self, first: Sequence, second: Sequence) -> bool:
        """Whether `first` is about to compute enough of what `second` needs next."""
        if first.request.label != second.request.label or not first.keep:
            return False
        common = second.common.get(first.request.id)
        if common is None:
            common = common_length(first.tokens, 0, second.tokens, 0, len(second.tokens))
            second.common[first.request.id] = common
        return min(common, len(second.tokens) - 1) - max(first.computed, second.computed) >= _WORTH_WAITING

    def _fill(self, chunks: Iterable[Chunk]) -> list[Sequence]:
        """Lay out the batch; return the sequences whose next token it decides, in order of its outputs."""
        batch = self.llama.batch
        batch.clear()
        wanted = []
        for chunk in chunks:
            sequence = self._running[chunk.id]
            assert sequence.lease is not None  # noqa: S101
            begin, end = sequence.computed, sequence.computed + chunk.tokens
            known = len(sequence.tokens)
            sequence.drafts = sequence.drafts[: max(0, end - known)]
            tokens = sequence.tokens[begin:end] + sequence.drafts
            outputs = len(sequence.drafts) + 1 if end >= known else 0
            batch.add(tokens, begin, sequence.lease.slot, outputs=outputs)
            if outputs:
                wanted.append(sequence)
        return wanted

    def _computed(self, chunks: Iterable[Chunk], decode_s: float) -> None:
        """The batch is in the KV cells: what of it are prompts can be shared from now on."""
        decode_tokens = prefill_tokens = 0
        for chunk in chunks:
            sequence = self._running[chunk.id]
            assert sequence.lease is not None  # noqa: S101
            if sequence.decoding:
                decode_tokens += chunk.tokens
                sequence.computed += 1
                continue
            prefill_tokens += chunk.tokens
            sequence.computed += chunk.tokens
            self.cache.extend(sequence.lease, sequence.tokens, sequence.kept)
            pinned = sequence.pinned_tokens
            if pinned and sequence.computed >= pinned > sequence.computed - chunk.tokens:
                self.cache.pin(sequence.lease, pinned)
        self._pace.observe(decode_tokens, prefill_tokens, decode_s)

    def _choose(self, wanted: list[Sequence]) -> None:
        if not wanted:
            return
        logits = self.llama.logits()
        now = time.monotonic()
        row = 0
        for sequence in wanted:
            if not sequence.first_token_s:
                sequence.first_token_s = now
            drafts, sequence.drafts = sequence.drafts, []
            rows = range(row, row + len(drafts) + 1)
            row = rows.stop
            sequence.drafted += len(drafts)
            accepted = 0
            try:
                for place, output in enumerate(rows):
                    chosen = sequence.sampler.choose(logits[output])
                    right = place < len(drafts) and chosen.token == drafts[place]
                    ended = self._advance(sequence, chosen.token, chosen.logprob, computed=right)
                    accepted += right
                    if ended or not right:
                        break
            except ArithmeticError as error:
                self._fail(sequence, "engine_error", f"Generation failed: {error}.")
                continue
            sequence.accepted += accepted
            self.totals.drafted_tokens += len(drafts)
            self.totals.accepted_tokens += accepted
            if drafts and not sequence.forced and sequence.drafter is not None:
                sequence.drafter.verified(len(drafts), accepted)
            if sequence.lease is not None and accepted < len(drafts):
                self.llama.remove(sequence.lease.slot, sequence.computed, -1)

    def _advance(self, sequence: Sequence, token: int, logprob: TokenLogprob | None, *, computed: bool) -> bool:
        """The text goes on with `token`, whose KV is `computed` already if it was guessed. Returns whether it ends."""
        if self.llama.is_end(token):
            self._finish(sequence, "stop")
            return True
        sequence.tokens.append(token)
        sequence.computed += computed
        sequence.unsent.append(token)
        if logprob is not None:
            sequence.logprobs.append(logprob)
        if sequence.drafter is not None:
            sequence.drafter.extend([token])
        text = sequence.text.feed(self.llama.piece(token))
        if text:
            self._out.append(sequence.token_message(text))
        if sequence.text.stopped:
            self._finish(sequence, "stop")
            return True
        if sequence.generated >= sequence.request.max_tokens:
            self._finish(sequence, "length")
            return True
        return False

    def _finish(self, sequence: Sequence, reason: FinishReason, *, deadline_hit: bool = False) -> None:
        if reason != "cancelled":
            text = sequence.text.finish()
            if text or sequence.logprobs:
                self._out.append(sequence.token_message(text))
        self._release(sequence)
        self._out.append(sequence.done_message(reason, time.monotonic(), deadline_hit=deadline_hit))

    def _expire(self, sequence: Sequence, now: float) -> None:
        if sequence.generated:
            self._finish(sequence, "length", deadline_hit=True)
            return
        waited = round((now - sequence.arrived_s) * 1000)
        doing = "being read" if sequence.lease else "waiting"
        deadline = f"The deadline of {sequence.request.deadline_ms:g} ms passed"
        message = f"{deadline}: the request was {doing} for {waited} ms."
        self._fail(sequence, "deadline_exceeded", message)

    def _refuse(self, request_id: int, code: str, message: str, param: str = "") -> None:
        self._out.append(Failed(request_id, code, message, param))

    def _fail(self, sequence: Sequence, code: str, message: str, param: str = "") -> None:
        self._release(sequence, keep=code != "engine_error")
        self._refuse(sequence.request.id, code, message, param)

    def _release(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a request out of everything it may be in; what it computed stays in the prefix cache if `keep`."""
        self._waiting.pop(sequence.request.id, None)
        if sequence.compiling and (constraint := sequence.request.constraint) and not self._compiling(constraint):
            self._intake.give_up(constraint)
        if sequence.lease is not None:
            self._vacate(sequence, keep=keep)
            self._closed = False

    def _vacate(self, sequence: Sequence, *, keep: bool) -> None:
        """Take a sequence out of the batch and free its slot; it keeps its tokens."""
        lease = sequence.lease
        assert lease is not None  # noqa: S101
        del self._running[sequence.request.id]
        if keep:
            self.cache.extend(lease, sequence.tokens, sequence.kept)
            self.cache.release(lease)
        else:
            self.cache.drop(lease)
        self._free_slots.append(lease.slot)
        sequence.lease = None
        sequence.computed = 0
        sequence.drafts = []

    def _recover(self, code: int, chunks: list[Chunk]) -> None:
        """A batch was not computed. No room: the youngest sequence is queued again. Else: all of it fail."""
        _log.error("llama_decode returned %d for %d sequences", code, len(chunks))
        in_batch = [self._running[chunk.id] for chunk in chunks]
        if code == NO_KV_SLOT and len(self._running) > 1:
            for sequence in in_batch:
                assert sequence.lease is not None  # noqa: S101
                self.llama.remove(sequence.lease.slot, sequence.computed, -1)
                sequence.drafts = []
            self._preempt(next(reversed(self._running.values())))
            self._closed = True
            return
        for sequence in in_batch:
            self._fail(sequence, "engine_error", f"The model could not compute this request ({code}).")

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue; what was computed stays in the prefix cache, in or outside the context, as others do."""
        self._vacate(sequence, keep=True)
        sequence.preempted += 1
        self.totals.preempted += 1
        self._waiting[sequence.request.id] = sequence
