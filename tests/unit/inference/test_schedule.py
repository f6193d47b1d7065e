"""Which items go together next: a simulated machine runs what the policy says, and a plain account is kept of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.inference.schedule import FIRST_ITEMS, Batch, Limits, Request, Schedule

RATE = 0.001  # seconds a padded token
LIMITS = Limits(items=16, tokens=512, waste=1.25)


@dataclass
class Machine:
    """Runs batches one after the other on a clock of its own; some take longer than others of their size."""

    schedule: Schedule
    slowness: list[float] = field(default_factory=lambda: [1.0])
    now: float = 0.0
    batches: list[Batch] = field(default_factory=list)
    ended: dict[Request, dict[int, float]] = field(default_factory=dict)

    def add(self, widths: list[int], budget: float = math.inf) -> Request:
        request = Request(widths, self.now, self.now + budget)
        self.schedule.add(request)
        self.ended[request] = {}
        return request

    def step(self) -> Batch | None:
        self.now += self.schedule.patience(self.now)
        batch = self.schedule.take(self.now)
        if batch is None:
            return None
        seconds = RATE * batch.padded_tokens * self.slowness[len(self.batches) % len(self.slowness)]
        self.now += seconds
        self.batches.append(batch)
        for request, place in batch.items:
            assert place not in self.ended[request], "each item once"
            self.ended[request][place] = self.now
        self.schedule.finish(batch, seconds)
        return batch

    def run(self) -> None:
        while self.step():
            pass


def widths_of(batch: Batch) -> list[int]:
    return [request.widths[place] for request, place in batch.items]


def callers(batch: Batch) -> set[Request]:
    return {request for request, _ in batch.items}


WIDTHS = st.lists(st.integers(1, 600), max_size=40)
ARRIVALS = st.lists(st.tuples(st.integers(0, 30), WIDTHS, st.none() | st.floats(0.0, 5.0)), max_size=12)


@given(
    arrivals=ARRIVALS,
    slowness=st.lists(st.floats(0.2, 20.0), min_size=1, max_size=5),
    limits=st.builds(Limits, st.integers(1, 16), st.integers(1, 2000), st.floats(1.0, 3.0)),
)
def test_every_item_at_most_once_within_limits_and_all_where_no_deadline_is(
    arrivals: list[tuple[int, list[int], float | None]], slowness: list[float], limits: Limits
) -> None:
    machine = Machine(Schedule(limits), slowness)
    waiting = sorted(arrivals, key=lambda one: one[0])
    requests: list[Request] = []
    collected: list[Request] = []
    for turn in range(10_000):
        while waiting and waiting[0][0] <= turn:
            _, widths, budget = waiting.pop(0)
            requests.append(machine.add(widths, math.inf if budget is None else budget))
        batch = machine.step()
        collected += machine.schedule.collect()
        if batch is None and not waiting:
            break
        if batch is not None:
            widths = widths_of(batch)
            assert len(widths) <= limits.items
            assert batch.width == max(widths)
            if len(widths) > 1:
                assert batch.padded_tokens <= min(limits.tokens, limits.waste * sum(widths))
    assert sorted(collected, key=lambda one: one.number) == requests, "each is collected once"
    assert not machine.schedule.open_requests()
    for request in requests:
        if request.deadline == math.inf:
            assert sorted(machine.ended[request]) == list(range(len(request.widths)))


@given(widths=st.lists(st.integers(1, 300), min_size=1, max_size=60), budget=st.floats(0.01, 20.0))
def test_a_steady_machine_keeps_the_budget_and_leaves_out_the_tail(widths: list[int], budget: float) -> None:
    machine = Machine(Schedule(LIMITS))
    machine.add([256])  # tells the pace
    machine.run()
    request = machine.add(widths, budget)
    deadline = request.deadline
    machine.run()
    done = machine.ended[request]
    assert sorted(done) == list(range(len(done)))
    first = {place for asked, place in machine.batches[1].items if asked is request}
    assert len(first) <= FIRST_ITEMS or all(done[place] <= deadline for place in first)
    assert all(end <= deadline + 1e-9 for place, end in done.items() if place not in first)
    if len(done) < len(widths):  # nothing more would have fitted
        assert machine.now + RATE * widths[len(done)] >= deadline - 1e-9


@given(
    loads=st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=30), min_size=2, max_size=6),
    joins=st.lists(st.integers(0, 20), min_size=6, max_size=6),
)
def test_who_waits_together_is_served_alike(loads: list[list[int]], joins: list[int]) -> None:
    machine = Machine(Schedule(LIMITS))
    requests: list[Request] = []
    for turn in range(1000):
        requests += [
            machine.add(load)
            for load, join in zip(loads, joins, strict=False)
            if join == turn  # an arrival
        ]
        if machine.step() is None and turn >= max(joins):
            break
        served = [request.served for request in requests if request.waiting]
        # Between two turns of one of them, another gets one batch at most.
        assert not served or max(served) - min(served) <= LIMITS.tokens + 300


def test_one_with_much_does_not_hold_up_one_with_little() -> None:
    machine = Machine(Schedule(LIMITS))
    machine.add([250] * 100)
    for _ in range(10):
        machine.step()
    small = machine.add([250] * 3)
    machine.run()
    assert max(machine.ended[small].values()) <= RATE * 512 * (10 + 3)
    # And one that goes on for ever does not starve what was there before.
    machine = Machine(Schedule(LIMITS))
    old = machine.add([250] * 10)
    for _ in range(60):
        machine.add([250] * 2)
        machine.step()
    assert not old.waiting


def test_callers_share_a_batch_and_like_lengths_go_together() -> None:
    machine = Machine(Schedule(LIMITS))
    first, second = machine.add([10, 200, 11, 210]), machine.add([12, 190, 9])
    machine.run()
    assert [sorted(widths_of(batch)) for batch in machine.batches] == [[9, 10, 11, 12], [190, 200], [210]]
    assert callers(machine.batches[0]) == {first, second}


def test_best_first_where_time_is_short() -> None:
    machine = Machine(Schedule(LIMITS))
    machine.add([200])
    machine.run()
    request = machine.add([10, 200, 10, 200, 10, 200], budget=0.5)
    machine.run()
    assert [widths_of(batch) for batch in machine.batches[1:]] == [[10], [200], [10], [200], [10]]
    assert sorted(machine.ended[request]) == [0, 1, 2, 3, 4]


def test_the_first_items_are_tried_though_the_estimate_is_against_it() -> None:
    machine = Machine(Schedule(LIMITS), slowness=[1000.0, 1.0])
    machine.add([100])
    machine.run()
    assert machine.now > 100.0
    request = machine.add([100] * 9, budget=2.0)
    machine.run()
    assert len(machine.ended[request]) == FIRST_ITEMS
    for _ in range(20):  # the estimate recovers, and with it how much is tried
        request = machine.add([100] * 9, budget=5.0)
        machine.slowness = [1.0]
        machine.run()
    assert len(machine.ended[request]) == 9


def test_what_comes_too_late_is_not_begun() -> None:
    machine = Machine(Schedule(LIMITS))
    late = machine.add([10], budget=0.1)
    machine.now = 0.1
    assert machine.step() is None
    assert machine.ended[late] == {}
    assert late in machine.schedule.collect()


def test_a_window_for_company_that_a_full_batch_does_not_wait_for() -> None:
    schedule = Schedule(LIMITS)
    assert schedule.patience(0.0) == 0.0
    schedule.add(Request([100], arrived=1.0))
    assert schedule.patience(1.0) == pytest.approx(LIMITS.window_s)
    assert schedule.patience(1.0015) == pytest.approx(0.0005)
    assert schedule.patience(2.0) == 0.0
    schedule.add(Request([100], arrived=2.0))
    assert schedule.patience(1.0) == pytest.approx(LIMITS.window_s), "the oldest counts"
    schedule.add(Request([412], arrived=2.0))
    assert schedule.patience(1.0) == 0.0


def test_a_failed_batch_teaches_no_pace_and_a_closed_request_is_done_when_it_stands_still() -> None:
    schedule = Schedule(LIMITS)
    request = Request([10] * 40, arrived=0.0)
    schedule.add(request)
    batch = schedule.take(1.0)
    assert batch is not None
    schedule.close(request)
    assert schedule.collect() == []
    schedule.finish(batch, None)
    assert schedule.collect() == [request]
    tight = Request([10] * 16, arrived=1.0, deadline=1.1)
    schedule.add(tight)
    batch = schedule.take(1.0)
    assert batch is not None and len(batch.items) == FIRST_ITEMS, "nothing is known yet"
