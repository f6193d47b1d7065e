"""Owns the policy: who is admitted, who expires and how many tokens of whom are computed in the next step.

Must not know llama.cpp, sockets or clocks: pure functions over plain data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

STEP_TARGET_S = 0.5  # a step should not be longer: cancels, new arrivals and heartbeats wait for its end
MIN_PREFILL_TOKENS = 16  # of a step, however many sequences decode: a prompt always moves on
FIRST_BUDGET_TOKENS = 32  # until the speed is known: even 5 tokens/s are no hang then


class Waiting(NamedTuple):
    """A request in the queue."""

    id: int
    cells: int  # KV cells that it may need at most: prompt and answer
    deadline_s: float = math.inf


class Running(NamedTuple):
    """A sequence in the batch."""

    id: int
    pending: int  # tokens that are known and not computed yet
    decoding: bool  # its prompt is computed: `pending` is the one token just chosen


class Chunk(NamedTuple):
    """The next `tokens` tokens of sequence `id`."""

    id: int
    tokens: int


class Admission(NamedTuple):
    """Changes to the queue: these start now, those have passed their deadline."""

    admit: list[int]
    expired: list[int]


def admit(now_s: float, waiting: Iterable[Waiting], *, free_sequences: int, free_cells: int) -> Admission:
    """First come, first served. Nobody overtakes a request that waits for room: none starves.

    KV is admitted, not hoped for: a request starts when its worst case fits the cells that are not promised.
    """
    result = Admission([], [])
    blocked = False
    for request in waiting:
        if now_s >= request.deadline_s:
            result.expired.append(request.id)
        elif not blocked and free_sequences > 0 and request.cells <= free_cells:
            result.admit.append(request.id)
            free_sequences -= 1
            free_cells -= request.cells
        else:
            blocked = True
    return result


def plan(running: Sequence[Running], budget_tokens: int) -> list[Chunk]:
    """One step: every decode first, then prompts in order of arrival up to `budget_tokens` in all."""
    chunks = [Chunk(sequence.id, 1) for sequence in running if sequence.decoding]
    left = max(budget_tokens - len(chunks), MIN_PREFILL_TOKENS)
    for sequence in running:
        if sequence.decoding:
            continue
        if left == 0:
            break
        tokens = min(sequence.pending, left)
        chunks.append(Chunk(sequence.id, tokens))
        left -= tokens
    return chunks


class Pace:
    """Learns how many tokens fit a step of `STEP_TARGET_S` on this machine.

    Without it a chunk of 512 tokens of a 3B model takes 20 s on two small cores, and the loop seems to hang.
    """

    def __init__(self, batch_tokens: int) -> None:
        self._most = batch_tokens
        self.budget_tokens = min(FIRST_BUDGET_TOKENS, batch_tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`. Small steps say little of large ones: left out."""
        if tokens < MIN_PREFILL_TOKENS or tokens < self.budget_tokens // 2:
            return
        fit = tokens * STEP_TARGET_S / max(seconds, 1e-6)
        # At most doubled at once, and damped: one slow step (a busy machine) does not halve the speed.
        target = min(fit, 2.0 * self.budget_tokens)
        if target < self.budget_tokens:
            target = 0.5 * (self.budget_tokens + target)
        self.budget_tokens = max(MIN_PREFILL_TOKENS, min(self._most, round(target)))
