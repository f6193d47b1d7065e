"""Callers of many threads share batches: everybody gets what is his, errors stay where they arose, all threads end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from appliance.errors import Unavailable
from appliance.inference.schedule import Limits
from appliance.inference.shared import SharedRuns

LIMITS = Limits(items=16, tokens=1600, waste=2.0)


class Gate:
    """A run that says when it begins, and waits until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.begun.release()
        assert self.open.wait(60)
        if any(item < 0 for item in items):
            raise ValueError("a negative item")
        return [2 * item for item in items]


def shared(run: Callable[[Sequence[int]], Sequence[int]], *, threads: int = 1) -> SharedRuns[int, int]:
    return SharedRuns(run, LIMITS, threads=threads, name="test")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def waiting(runs: SharedRuns[int, int]) -> int:
    with runs._changed:
        return sum(len(request.waiting) for request in runs._schedule.open_requests())


def submit(
    pool: ThreadPoolExecutor, runs: SharedRuns[int, int], items: list[int], **options: Any
) -> Future[list[int | None]]:
    return pool.submit(runs.ask, items, [100] * len(items), **options)


@pytest.mark.parametrize("threads", [1, 3])
def test_everybody_gets_what_is_his(threads: int) -> None:
    runs = shared(lambda items: [2 * item for item in items], threads=threads)

    def ask(caller: int) -> bool:
        for turn in range(20):
            items = [caller * 10_000 + turn * 100 + place for place in range(turn)]
            if runs.ask(items, [1 + (7 * item) % 90 for item in items]) != [2 * item for item in items]:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    until(lambda: not runs._threads)
    runs.close()


def test_callers_that_wait_together_share_a_batch() -> None:
    gate = Gate()
    runs = shared(gate)
    with ThreadPoolExecutor(4) as pool:
        found = [submit(pool, runs, [0])]
        gate.begun.acquire()
        found += [submit(pool, runs, [caller]) for caller in (1, 2, 3)]
        until(lambda: waiting(runs) == 3)
        gate.open.set()
        assert [one.result(60) for one in found] == [[0], [2], [4], [6]]
    assert [sorted(batch) for batch in gate.batches] == [[0], [1, 2, 3]]


def test_an_error_is_that_of_those_in_its_batch() -> None:
    gate = Gate()
    runs = shared(gate)
    with ThreadPoolExecutor(4) as pool:
        good = submit(pool, runs, [7])
        gate.begun.acquire()
        bad = submit(pool, runs, [-1] * 20)
        until(lambda: waiting(runs) == 20)
        gate.open.set()
        assert good.result(60) == [14]
        with pytest.raises(ValueError, match="negative"):
            bad.result(60)
        assert len(gate.batches) == 2, "what is left of a failed request is not tried"
        assert submit(pool, runs, [3]).result(60) == [6]


def test_a_run_that_gives_another_number_of_results_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 results for 2"):
        shared(lambda items: items[:1]).ask([1, 2], [100, 100])


def test_a_deadline_does_not_wait_for_the_batch_of_somebody_else() -> None:
    gate = Gate()
    runs = shared(gate)
    with ThreadPoolExecutor(2) as pool:
        other = submit(pool, runs, [1])
        gate.begun.acquire()
        assert runs.ask([2, 3], [100, 100], deadline=time.monotonic() + 0.01) == [None, None]
        assert not other.done()
        gate.open.set()
        assert other.result(60) == [2]
    assert gate.batches == [[1]]


def test_a_batch_that_runs_at_the_deadline_is_waited_for() -> None:
    gate = Gate()
    runs = shared(gate)
    with ThreadPoolExecutor(1) as pool:
        found = submit(pool, runs, list(range(20)), deadline=time.monotonic() + 0.2)
        gate.begun.acquire()
        time.sleep(0.25)
        gate.open.set()
        assert found.result(60) == [0, 2, 4, 6] + [None] * 16


def test_close_lets_the_running_batch_end_and_refuses_the_rest() -> None:
    gate = Gate()
    runs = shared(gate)
    with ThreadPoolExecutor(3) as pool:
        waits = submit(pool, runs, list(range(40)))
        gate.begun.acquire()
        closing = pool.submit(runs.close)
        until(lambda: runs._closed)
        with pytest.raises(Unavailable, match="stopping"):
            runs.ask([1], [100])
        assert not closing.done()
        gate.open.set()
        closing.result(60)
        with pytest.raises(Unavailable, match="stopping"):
            waits.result(60)
    assert len(gate.batches) == 1
    assert not runs._threads
    runs.close()


def test_several_batches_run_at_the_same_time_where_that_is_wanted() -> None:
    gate = Gate()
    runs = shared(gate, threads=2)
    with ThreadPoolExecutor(1) as pool:
        found = submit(pool, runs, list(range(40)))
        assert gate.begun.acquire(timeout=60) and gate.begun.acquire(timeout=60)
        gate.open.set()
        assert found.result(60) == [2 * item for item in range(40)]


def test_nothing_asked_for_is_nothing_found() -> None:
    runs = shared(lambda items: items)
    assert runs.ask([], []) == []
    assert not runs._threads
