"""Owns the policy: who is admitted, preempted or refused, and whose tokens the next step computes.

Must not know llama.cpp, sockets or clocks: pure functions over plain data.

Why nothing starves. Inside a class those who waited more whole periods of `aging_s` come first, so that only a
bounded set of arrivals can ever be ahead of a request. Of a class that has waiters and runs none of them, the first
is lifted by a class for each period, and past the fresh ones of the highest after that; a class that runs something
needs no lift, so a long queue of old batch work does not turn priorities into first come, first served. Nobody
overtakes one that waits for room. And a sequence preempted n times is left alone for the first n periods of its next
turn, so it ends after finitely many turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, get_args

from appliance.engine.protocol import Priority

CLASSES: tuple[Priority, ...] = get_args(Priority)  # the highest first
MIN_PREFILL_TOKENS = 16  # of a step, however many sequences decode: a prompt always moves on
_OLDEST_SHARE = 8  # one part in so many of a step's prefill goes to the prompt that began first


class Waiting(NamedTuple):
    """A request in the queue; one that was preempted keeps its arrival."""

    id: int
    priority: Priority
    arrived_s: float
    deadline_s: float
    cells: int  # KV cells that it may need at most, beyond what it shares
    prefill: int  # tokens to compute before its next token of text


class Running(NamedTuple):
    """A sequence in the batch."""

    id: int
    priority: Priority
    deadline_s: float
    started_s: float  # when it was admitted last
    cells: int  # freed by preempting it
    pending: int  # tokens that are known (or guessed) and not computed yet
    decoding: bool  # its prompt is computed: `pending` is the token chosen last, and drafts
    preempted: int = 0  # how often it was


class Chunk(NamedTuple):
    """The next `tokens` tokens of sequence `id`."""

    id: int
    tokens: int


class Refusal(NamedTuple):
    """Request `id` could not meet its deadline if it started now: its prefill takes about `estimate_s`."""

    id: int
    estimate_s: float


class Admission(NamedTuple):
    """Changes to the queue: `preempt` these first, then start `admit` in this order; the rest of it ends."""

    admit: list[int]
    preempt: list[int]
    expired: list[int]
    refused: list[Refusal]


class Estimate(Protocol):
    """What admission asks of the pace."""

    def prefill_s(self, tokens: int) -> float:
        """Seconds that a prompt of `tokens` takes on the idle machine."""

    def doubt(self) -> None:
        """A request was refused for the estimate, so that nothing tests it."""


def admit(
    now_s: float,
    waiting: Iterable[Waiting],
    running: Sequence[Running],
    *,
    free_sequences: int,
    free_cells: int,
    aging_s: float,
    pace: Estimate,
) -> Admission:
    """Class, then deadline, then arrival. KV is admitted, not hoped for: the worst case must fit what is not promised.

    Preemption goes by declared classes only: age never pushes anybody out.
    """
    result = Admission([], [], [], [])
    alive = []
    for request in waiting:
        if now_s >= request.deadline_s:
            result.expired.append(request.id)
            continue
        estimate = pace.prefill_s(request.prefill)
        if now_s + estimate > request.deadline_s:
            result.refused.append(Refusal(request.id, estimate))
        else:
            alive.append(request)
    if result.refused:
        pace.doubt()
    candidates = [
        sequence
        for sequence in running
        if now_s - sequence.started_s >= sequence.preempted * aging_s and _rank(sequence)
    ]
    if not alive or not (free_sequences or candidates):
        return result
    candidates.sort(key=turn, reverse=True)
    ceiling = len(CLASSES)  # whoever was preempted in this step is not overtaken by his like in the same one
    for request in _in_order(now_s, alive, running, aging_s):
        if _rank(request) >= ceiling:
            break
        victims: list[Running] = []
        if free_sequences < 1 or request.cells > free_cells:
            lower = [sequence for sequence in candidates if _rank(sequence) > _rank(request)]
            victims = _victims(lower, request.cells - free_cells, least=1 if free_sequences < 1 else 0)
            if not victims:
                break
        for victim in victims:
            candidates.remove(victim)
            result.preempt.append(victim.id)
            ceiling = min(ceiling, _rank(victim))
            free_cells += victim.cells
            free_sequences += 1
        result.admit.append(request.id)
        free_cells -= request.cells
        free_sequences -= 1
    return result


def _rank(request: Waiting | Running) -> int:
    return CLASSES.index(request.priority)


def _in_order(now_s: float, alive: list[Waiting], running: Sequence[Running], aging_s: float) -> list[Waiting]:
    """The queue, the next to start first."""

    def periods(request: Waiting) -> int:
        return int(max(0.0, now_s - request.arrived_s) // aging_s)

    def key(request: Waiting, lift: int) -> tuple[int, int, float, float, int]:
        return _rank(request) - lift, lift - periods(request), request.deadline_s, request.arrived_s, request.id

    keys = {request.id: key(request, 0) for request in alive}
    served = {sequence.priority for sequence in running}
    for priority in set(CLASSES) - served:
        if of_class := [request for request in alive if request.priority == priority]:
            first = min(of_class, key=lambda request: keys[request.id])
            keys[first.id] = key(first, min(_rank(first), periods(first)))
    return sorted(alive, key=lambda request: keys[request.id])


def _victims(lower: list[Running], cells: int, *, least: int) -> list[Running]:
    """The fewest of `lower` (the dearest last) that free `cells`, at least `least`; none if all do not suffice.

    No higher class is touched where lower ones suffice; among equally few, those early in `lower` go first.
    """
    for rank in sorted({_rank(sequence) for sequence in lower}, reverse=True):
        pool = [sequence for sequence in lower if _rank(sequence) >= rank]
        if sum(sequence.cells for sequence in pool) >= cells and len(pool) >= least:
            break
    else:
        return []
    count = least
    while _most(pool, count) < cells:
        count += 1
    victims: list[Running] = []
    for place, sequence in enumerate(pool):
        left = count - len(victims)
        if left == 0:
            break
        if sequence.cells + _most(pool[place + 1 :], left - 1) >= cells:
            victims.append(sequence)
            cells -= sequence.cells
    return victims


def _most(pool: list[Running], count: int) -> int:
    """The cells of the `count` largest."""
    return sum(sorted((sequence.cells for sequence in pool), reverse=True)[:count])


def turn(sequence: Running) -> tuple[int, float, float, int]:
    """Sort key of a step: class, deadline, start."""
    return _rank(sequence), sequence.deadline_s, sequence.started_s, sequence.id


def plan(running: Sequence[Running], budget_tokens: int, capacity_tokens: int | None = None) -> list[Chunk]:
    """One step: every decode first, with its drafts, then prompts up to `budget_tokens` in all.

    A prompt always moves on, by `MIN_PREFILL_TOKENS` at least. Prompts go by class, deadline and start, but an
    eighth of their share goes to the one that began first, so that it ends whoever comes after it. No more than
    `capacity_tokens`, the size of the batch, are planned: drafts are left out first, then decodes of low class.
    """
    order = sorted(running, key=turn)
    decodes = [sequence for sequence in order if sequence.decoding]
    prompts = [sequence for sequence in order if not sequence.decoding]
    asked = sum(sequence.pending for sequence in prompts)
    least = min(asked, MIN_PREFILL_TOKENS)
    drafts_room = sum(sequence.pending for sequence in decodes)
    if capacity_tokens is not None:
        least = min(least, max(1, capacity_tokens // 2))
        decodes = decodes[: capacity_tokens - least]
        drafts_room = capacity_tokens - least - len(decodes)
    chunks = []
    for sequence in decodes:
        drafts = min(sequence.pending - 1, drafts_room)
        drafts_room -= drafts
        chunks.append(Chunk(sequence.id, 1 + drafts))
    left = min(asked, max(budget_tokens - sum(chunk.tokens for chunk in chunks), least))
    if capacity_tokens is not None:
        left = min(left, capacity_tokens - sum(chunk.tokens for chunk in chunks))
    if not left:
        return chunks
    oldest = min(prompts, key=lambda s: (s.started_s, s.id))
    reserved = min(oldest.pending, -(-left // _OLDEST_SHARE))
    for sequence in prompts:
        room = left if sequence is oldest else left - reserved
        tokens = min(sequence.pending, room)
        if sequence is oldest:
            reserved = 0
        if tokens:
            chunks.append(Chunk(sequence.id, tokens))
            left -= tokens
    return chunks
