"""Owns the proof of the engine's policy over plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine.policy import CLASSES, MIN_PREFILL_TOKENS, Chunk, Refusal, Running, Waiting, admit, plan
from appliance.engine.protocol import Priority

# A busy machine is no counterexample.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
AGING_S = 10.0
RANK = {"interactive": 0, "normal": 1, "batch": 2}


@dataclass
class Speed:
    """A pace that is known."""

    token_s: float = 0.0
    doubts: int = 0

    def prefill_s(self, tokens: int) -> float:
        return tokens * self.token_s

    def doubt(self) -> None:
        self.doubts += 1


def waiting(
    number: int,
    priority: Priority = "normal",
    *,
    arrived: float = 0.0,
    deadline: float = math.inf,
    cells: int = 10,
    prefill: int = 5,
) -> Waiting:
    return Waiting(number, priority, arrived, deadline, cells, prefill)


def running(
    number: int,
    priority: Priority = "normal",
    *,
    deadline: float = math.inf,
    started: float = 0.0,
    cells: int = 10,
    pending: int = 1,
    decoding: bool = True,
    preempted: int = 0,
) -> Running:
    return Running(number, priority, deadline, started, cells, pending, decoding, preempted)


PRIORITY = st.sampled_from(CLASSES)
DEADLINE = st.one_of(st.just(math.inf), st.floats(0, 60))
WAITING = st.lists(
    st.builds(
        waiting,
        st.just(0),
        PRIORITY,
        arrived=st.floats(0, 40),
        deadline=DEADLINE,
        cells=st.integers(1, 60),
        prefill=st.integers(1, 30),
    ),
    max_size=12,
).map(lambda rows: [row._replace(id=number) for number, row in enumerate(rows)])
RUNNING = st.lists(
    st.builds(
        running,
        st.just(0),
        PRIORITY,
        deadline=DEADLINE,
        started=st.floats(0, 40),
        cells=st.integers(1, 60),
        preempted=st.integers(0, 3),
    ),
    max_size=7,
).map(lambda rows: [row._replace(id=100 + number) for number, row in enumerate(rows)])


def test_the_classes_are_ordered_as_declared() -> None:
    assert CLASSES == ("interactive", "normal", "batch")


@UNHURRIED
@given(WAITING, RUNNING, st.integers(0, 4), st.integers(0, 200), st.floats(0, 60), st.floats(0, 1))
def test_only_what_fits_is_admitted_and_only_lower_classes_pay_for_it(
    queue: list[Waiting], batch: list[Running], sequences: int, cells: int, now: float, token_s: float
) -> None:
    speed = Speed(token_s)
    result = admit(now, queue, batch, free_sequences=sequences, free_cells=cells, aging_s=AGING_S, pace=speed)
    of = {request.id: request for request in queue}
    victims = [sequence for sequence in batch if sequence.id in result.preempt]
    assert len(set(result.admit)) == len(result.admit) and len(set(result.preempt)) == len(result.preempt)
    assert len(result.admit) <= sequences + len(victims)
    assert sum(of[number].cells for number in result.admit) <= cells + sum(victim.cells for victim in victims)
    assert set(result.expired) == {request.id for request in queue if now >= request.deadline_s}
    late = {
        request.id: request.prefill * token_s
        for request in queue
        if request.id not in result.expired and now + request.prefill * token_s > request.deadline_s
    }
    assert {refusal.id: refusal.estimate_s for refusal in result.refused} == late
    assert speed.doubts == bool(late)
    assert not set(result.admit) & (set(result.expired) | set(late))
    for victim in victims:
        assert now - victim.started_s >= victim.preempted * AGING_S, "its turn is not over"
    if victims:
        highest = min(RANK[of[number].priority] for number in result.admit)
        assert all(RANK[victim.priority] > highest for victim in victims)


@UNHURRIED
@given(WAITING, st.integers(0, 8), st.integers(0, 300))
def test_in_order_of_class_deadline_and_arrival_and_nobody_overtakes(
    queue: list[Waiting], sequences: int, cells: int
) -> None:
    now = 40.0
    result = admit(now, queue, [], free_sequences=sequences, free_cells=cells, aging_s=math.inf, pace=Speed())
    alive = [request for request in queue if now < request.deadline_s]
    alive.sort(key=lambda r: (RANK[r.priority], r.deadline_s, r.arrived_s, r.id))
    expected: list[int] = []
    for request in alive:
        if len(expected) == sequences or request.cells > cells:
            break
        cells -= request.cells
        expected.append(request.id)
    assert result.admit == expected


def admitted(
    now: float, queue: list[Waiting], batch: list[Running], *, sequences: int = 1, cells: int = 10
) -> list[int]:
    return admit(now, queue, batch, free_sequences=sequences, free_cells=cells, aging_s=AGING_S, pace=Speed()).admit


def test_one_that_waited_counts_as_a_class_higher_for_each_period() -> None:
    old, fresh = waiting(1, "batch", arrived=0), waiting(2, "normal", arrived=9)
    assert admitted(9.9, [old, fresh], []) == [2]
    assert admitted(10.1, [old, fresh._replace(deadline_s=50)], []) == [2], "as a normal one, without a deadline"
    assert admitted(10.1, [old, fresh], []) == [1], "as a normal one that came earlier"
    urgent = waiting(3, "interactive", arrived=29, deadline=40)
    assert admitted(29.9, [old, urgent], []) == [3]
    assert admitted(30.1, [old, urgent], []) == [1], "past the highest class's fresh ones at last"


def test_an_old_queue_of_batch_work_does_not_stand_before_a_person() -> None:
    queue = [waiting(number, "batch", arrived=0) for number in range(50)] + [waiting(99, "interactive", arrived=99)]
    assert admitted(100, queue, [running(100, "batch")]) == [99]
    assert admitted(100, queue, [running(100, "interactive")]) == [0], "but one of it runs, always"


def test_within_a_class_a_period_counts_more_than_a_deadline() -> None:
    queue = [waiting(1, arrived=0), waiting(2, arrived=9, deadline=20)]
    busy = [running(100, "normal")]
    assert admitted(9.5, queue, busy) == [2]
    assert admitted(10.5, queue, busy) == [1]


def test_a_small_one_does_not_slip_past_a_big_one_that_waits() -> None:
    queue = [waiting(1, "normal", cells=11), waiting(2, "normal", arrived=1, cells=1), waiting(3, "batch", cells=1)]
    assert admitted(2, queue, []) == []
    assert admitted(2, [*queue, waiting(4, "interactive", arrived=2, cells=1)], []) == [4]


def test_a_deadline_that_cannot_be_met_is_refused_with_the_estimate() -> None:
    queue = [waiting(1, deadline=10.0, prefill=100), waiting(2, deadline=10.0, prefill=80)]
    speed = Speed(0.1)
    result = admit(1.5, queue, [], free_sequences=2, free_cells=100, aging_s=AGING_S, pace=speed)
    assert result.refused == [Refusal(1, 10.0)] and result.admit == [2] and speed.doubts == 1


def preempted(
    head: Waiting, batch: list[Running], *, cells: int = 0, sequences: int = 1, now: float = 30.0
) -> tuple[list[int], list[int]]:
    result = admit(now, [head], batch, free_sequences=sequences, free_cells=cells, aging_s=AGING_S, pace=Speed())
    return result.preempt, result.admit


def test_victims_are_of_the_lowest_class_then_the_latest_deadline_then_the_latest_start() -> None:
    head = waiting(1, "interactive", arrived=30)
    batch = [
        running(10, "normal", started=9),
        running(11, "batch", deadline=40, started=9),
        running(12, "batch", started=3),
        running(13, "batch", started=4),
    ]
    assert preempted(head, batch) == ([13], [1])
    assert preempted(head, batch[:3]) == ([12], [1])
    assert preempted(head, batch[:2]) == ([11], [1])
    assert preempted(head, batch[:1]) == ([10], [1])
    assert preempted(head._replace(cells=15), batch[:3]) == ([12, 11], [1]), "no normal one where two batch ones do"


def test_nobody_is_preempted_in_vain_or_by_age_or_by_his_like() -> None:
    batch = [running(10, "batch"), running(11, "normal")]
    assert preempted(waiting(1, "interactive", cells=21), batch) == ([], [])
    assert preempted(waiting(1, "normal", arrived=0, cells=11), batch) == ([], []), "aged, but no higher class"
    assert preempted(waiting(1, "batch", arrived=0), [running(10, "batch")]) == ([], [])
    assert preempted(waiting(1, "interactive", cells=10), batch, cells=10) == ([], [1]), "it fits"
    assert preempted(waiting(1, "interactive", cells=10), batch, cells=10, sequences=0) == ([10], [1])


def test_a_preempted_one_has_its_next_turn_for_itself() -> None:
    head = waiting(1, "interactive", arrived=30)
    assert preempted(head, [running(10, "batch", started=25, preempted=1)], now=34.9) == ([], [])
    assert preempted(head, [running(10, "batch", started=25, preempted=1)], now=35.0) == ([10], [1])
    assert preempted(head, [running(10, "batch", started=25, preempted=2)], now=44.9) == ([], [])


def test_what_a_victim_left_over_goes_to_nobody_of_its_class_in_the_same_step() -> None:
    queue = [waiting(1, "interactive", cells=5), waiting(2, "batch", cells=5), waiting(3, "normal", cells=5)]
    batch = [running(10, "batch", cells=20), running(11, "normal")]
    result = admit(1, queue, batch, free_sequences=3, free_cells=0, aging_s=AGING_S, pace=Speed())
    assert (result.preempt, result.admit) == ([10], [1, 3])


@UNHURRIED
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(["normal", "batch"])), max_size=7),
    st.integers(1, 120),
    st.integers(0, 1),
)
def test_the_victims_are_the_fewest(rows: list[tuple[int, Priority]], cells: int, sequences: int) -> None:
    batch = [running(number, priority, cells=size) for number, (size, priority) in enumerate(rows)]
    victims, started = preempted(waiting(99, "interactive", cells=cells), batch, sequences=sequences)
    low = [sequence for sequence in batch if sequence.priority == "batch"]
    pool = low if sum(sequence.cells for sequence in low) >= cells else batch
    fewest = next(
        (n for n in range(len(pool) + 1) for c in combinations(pool, n) if sum(s.cells for s in c) >= cells), None
    )
    assert (len(victims) if started else None) == fewest
    assert all(pool_id in {sequence.id for sequence in pool} for pool_id in victims)


# --- a whole queue, in ticks of a second ---


@dataclass
class Job:
    """A request of the simulated queue. Preempted, it loses all that was computed: the worst case."""

    request: Waiting
    work: int
    done: int = 0
    started: float = 0.0
    preempted: int = 0
    ended: float = math.nan


@dataclass
class Queue:
    """An engine of a few sequences that computes a unit of each running job a tick."""

    cells: int
    sequences: int
    waiting: dict[int, Job] = field(default_factory=dict)
    running: dict[int, Job] = field(default_factory=dict)
    now: float = 0.0

    def tick(self) -> None:
        result = admit(
            self.now,
            [job.request for job in self.waiting.values()],
            [
                running(
                    number,
                    job.request.priority,
                    deadline=job.request.deadline_s,
                    started=job.started,
                    cells=job.request.cells,
                    preempted=job.preempted,
                )
                for number, job in self.running.items()
            ],
            free_sequences=self.sequences - len(self.running),
            free_cells=self.cells - sum(job.request.cells for job in self.running.values()),
            aging_s=AGING_S,
            pace=Speed(),
        )
        for number in result.preempt:
            job = self.waiting[number] = self.running.pop(number)
            job.done, job.preempted = 0, job.preempted + 1
        for number in result.expired:
            self.waiting.pop(number).ended = self.now
        for number in result.admit:
            job = self.running[number] = self.waiting.pop(number)
            job.started = self.now
        assert len(self.running) <= self.sequences
        assert sum(job.request.cells for job in self.running.values()) <= self.cells
        self.now += 1
        for number, job in list(self.running.items()):
            job.done += 1
            if job.done >= job.work:
                self.running.pop(number).ended = self.now


JOBS = st.lists(
    st.tuples(PRIORITY, st.integers(0, 60), st.integers(1, 100), st.integers(1, 30), st.booleans()),
    min_size=1,
    max_size=25,
)


@UNHURRIED
@given(JOBS, st.integers(1, 4))
def test_every_request_ends(rows: list[tuple[Priority, int, int, int, bool]], sequences: int) -> None:
    jobs = [
        Job(waiting(n, priority, arrived=at, cells=cells, deadline=at + 100 if hurried else math.inf), work)
        for n, (priority, at, cells, work, hurried) in enumerate(rows)
    ]
    queue = Queue(100, sequences)
    # Work that is lost to preemption is bounded: by turns of n periods, no longer than the longest job.
    turns = 2 + 30 / AGING_S
    limit = 60 + sum(job.work * turns for job in jobs)
    while any(math.isnan(job.ended) for job in jobs):
        for job in jobs:
            if job.request.arrived_s == queue.now:
                queue.waiting[job.request.id] = job
        queue.tick()
        assert queue.now <= limit + 1, "the queue stands still, or turns in a circle"


@pytest.mark.parametrize("priority", ["normal", "batch"])
@pytest.mark.parametrize("cells", [1, 100])
@pytest.mark.parametrize("deadline", [25.0, math.inf])
def test_an_endless_stream_of_higher_ones_starves_nobody(priority: Priority, cells: int, deadline: float) -> None:
    queue = Queue(100, 4)
    low = queue.waiting[0] = Job(waiting(0, priority, cells=cells), work=35)
    number = 0
    while math.isnan(low.ended) and queue.now < 1000:
        for _ in range(2):  # each keeps a quarter of the cells for 4 ticks: twice what there is room for
            number += 1
            urgent = waiting(number, "interactive", arrived=queue.now, deadline=queue.now + deadline, cells=25)
            queue.waiting[number] = Job(urgent, work=4)
        queue.tick()
    assert low.ended < 600
    assert low.preempted <= 4


def test_a_stream_of_its_own_class_with_deadlines_starves_nobody() -> None:
    queue = Queue(100, 4)
    patient = queue.waiting[0] = Job(waiting(0, "interactive"), work=5)
    for number in range(1, 400):
        urgent = waiting(number, "interactive", arrived=queue.now, deadline=queue.now + 60)
        queue.waiting[number] = Job(urgent, work=5)
        queue.tick()
    assert patient.ended < 60


# --- steps ---

STEP = st.lists(
    st.builds(
        running,
        st.just(0),
        PRIORITY,
        deadline=DEADLINE,
        started=st.floats(0, 9),
        pending=st.integers(1, 300),
        decoding=st.booleans(),
    ),
    max_size=40,
).map(
    lambda rows: [
        row._replace(id=number, pending=1 + row.pending % 9 if row.decoding else row.pending)
        for number, row in enumerate(rows)
    ]
)


@UNHURRIED
@given(STEP, st.integers(1, 600))
def test_a_step_decodes_all_then_fills_up_with_prompts(batch: list[Running], budget: int) -> None:
    chunks = plan(batch, budget)
    assert plan(batch, budget, 10_000) == chunks
    of = {sequence.id: sequence for sequence in batch}
    decodes = [sequence for sequence in batch if sequence.decoding]
    first, rest = chunks[: len(decodes)], chunks[len(decodes) :]
    assert {chunk.id: chunk.tokens for chunk in first} == {sequence.id: sequence.pending for sequence in decodes}
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    assert all(1 <= chunk.tokens <= of[chunk.id].pending for chunk in rest)
    spent = sum(chunk.tokens for chunk in rest)
    room = max(budget - sum(chunk.tokens for chunk in first), MIN_PREFILL_TOKENS)
    prompts = [sequence for sequence in batch if not sequence.decoding]
    assert spent == min(room, sum(sequence.pending for sequence in prompts)), "no token is left unused, none is over"
    if prompts:
        order = sorted(prompts, key=lambda s: (RANK[s.priority], s.deadline_s, s.started_s, s.id))
        oldest = min(prompts, key=lambda s: (s.started_s, s.id))
        share = {chunk.id: chunk.tokens for chunk in rest}
        assert share.get(oldest.id, 0) >= min(oldest.pending, spent / 8)
        others = [sequence for sequence in order if sequence is not oldest]
        part = [share.get(sequence.id, 0) for sequence in others]
        whole = [sequence.pending for sequence in others]
        full = next((n for n, (got, asked) in enumerate(zip(part, whole, strict=True)) if got < asked), len(others))
        assert not any(part[full + 1 :]), "one prompt after the other"
        before = [s for s in others[full:] if order.index(s) < order.index(oldest)]
        if before:
            assert share.get(oldest.id, 0) <= -(-spent // 8), "no more than its share while a higher one waits"


@UNHURRIED
@given(STEP, st.integers(1, 600), st.integers(4, 120))
def test_a_step_never_exceeds_the_batch(batch: list[Running], budget: int, capacity: int) -> None:
    chunks = plan(batch, budget, capacity)
    of = {sequence.id: sequence for sequence in batch}
    assert sum(chunk.tokens for chunk in chunks) <= capacity
    assert all(1 <= chunk.tokens <= of[chunk.id].pending for chunk in chunks)
    prompts = sum(sequence.pending for sequence in batch if not sequence.decoding)
    read = sum(chunk.tokens for chunk in chunks if not of[chunk.id].decoding)
    assert read >= min(prompts, MIN_PREFILL_TOKENS, capacity // 2), "a prompt moves on"
    decodes = [chunk for chunk in chunks if of[chunk.id].decoding]
    if len(decodes) < sum(sequence.decoding for sequence in batch):
        assert all(chunk.tokens == 1 for chunk in decodes), "drafts are left out before decodes are"


def test_a_prompt_that_others_overtake_gets_an_eighth() -> None:
    low = running(1, "batch", started=0, pending=500, decoding=False)
    high = running(2, "interactive", started=5, pending=500, decoding=False)
    assert plan([low, high], 80) == [Chunk(2, 70), Chunk(1, 10)]
    assert plan([low, high, running(3, pending=4)], 0) == [Chunk(3, 4), Chunk(2, 14), Chunk(1, 2)]
