"""Constraints on their way: each compiled once, two at a time, none waited for longer than the limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.compiling import MAX_COMPILED, MOST_S, THREADS, Compiler, TooSlow
from appliance.engine.grammar import Grammar
from appliance.engine.protocol import Constraint
from appliance.engine.schema import UnsupportedConstraint


class StandIn(Grammar):
    """Stands in for a compiled grammar."""

    def __init__(self) -> None:
        self.is_worn = False

    @property
    def worn(self) -> bool:
        return self.is_worn


class Slow:
    """Stands in for `Grammars`: what is in `gates` waits for its gate; "bad" and "panic" fail."""

    def __init__(self) -> None:
        self.gates: dict[str, threading.Event] = {}
        self.compiled: list[str] = []
        self.changed = threading.Condition()
        self.woken = threading.Semaphore(0)
        self.spent_s = 0.0  # by each thread

    def compile(self, constraint: Constraint) -> Grammar:
        with self.changed:
            self.compiled.append(constraint.source)
            self.changed.notify_all()
        if gate := self.gates.get(constraint.source):
            assert gate.wait(30)
        if constraint.source == "bad":
            raise UnsupportedConstraint("bad")
        if constraint.source == "panic":
            raise BaseException("a panic")
        return StandIn()

    def wait_until_begun(self, *sources: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(sources) <= set(self.compiled), timeout=30)

    def gate(self, source: str) -> threading.Event:
        return self.gates.setdefault(source, threading.Event())


def of(source: str) -> Constraint:
    return Constraint("regex", source)


@pytest.fixture
def slow() -> Iterator[Slow]:
    grammars = Slow()
    yield grammars
    for gate in grammars.gates.values():
        gate.set()


def new(slow: Slow) -> Compiler:
    return Compiler(slow, slow.woken.release, lambda clock: slow.spent_s)  # type: ignore[arg-type]


def landed(slow: Slow, compiler: Compiler, count: int = 1) -> list[tuple[str, Any]]:
    """Results, after so many constraints were compiled."""
    for _ in range(count):
        assert slow.woken.acquire(timeout=30)
    return [(constraint.source, outcome) for constraint, outcome in compiler.results()]


def test_what_many_ask_for_is_compiled_once_and_found_from_then_on(slow: Slow) -> None:
    compiler = new(slow)
    slow.gate("a")
    for _ in range(3):
        assert compiler.find(of("a")) is None
        compiler.start(of("a"))
    slow.gates["a"].set()
    ((source, grammar),) = landed(slow, compiler)
    assert (source, slow.compiled) == ("a", ["a"])
    assert compiler.find(of("a")) is grammar
    assert compiler.results() == []


def test_what_is_worn_is_compiled_anew(slow: Slow) -> None:
    compiler = new(slow)
    compiler.start(of("a"))
    ((_, grammar),) = landed(slow, compiler)
    grammar.is_worn = True
    assert compiler.find(of("a")) is None
    compiler.start(of("a"))
    ((_, other),) = landed(slow, compiler)
    assert compiler.find(of("a")) is other is not grammar


@pytest.mark.parametrize(("source", "kind"), [("bad", UnsupportedConstraint), ("panic", BaseException)])
def test_why_one_cannot_be_compiled_is_told_and_not_kept(source: str, kind: type[BaseException], slow: Slow) -> None:
    compiler = new(slow)
    for _ in range(2):
        compiler.start(of(source))
        ((_, error),) = landed(slow, compiler)
        assert type(error) is kind
        assert compiler.find(of(source)) is None


def test_one_that_takes_long_is_given_up_and_found_when_it_comes_after_all(slow: Slow) -> None:
    compiler = new(slow)
    slow.gate("long")
    compiler.start(of("long"))
    slow.wait_until_begun("long")
    slow.spent_s = MOST_S
    assert compiler.results() == []
    slow.spent_s = MOST_S + 0.1
    ((constraint, error),) = compiler.results()
    assert isinstance(error, TooSlow) and error.began and constraint == of("long")
    slow.gates["long"].set()
    ((_, grammar),) = landed(slow, compiler)
    assert compiler.find(of("long")) is grammar


def test_one_that_takes_long_is_not_in_the_way_of_others(slow: Slow) -> None:
    compiler = new(slow)
    slow.gate("long")
    for source in ("long", "a", "b", "c"):
        compiler.start(of(source))
    found: list[str] = []
    while len(found) < 3:
        found += [source for source, _ in landed(slow, compiler)]
    assert sorted(found) == ["a", "b", "c"]


def test_those_for_which_no_thread_becomes_free_are_told_so(slow: Slow) -> None:
    compiler = new(slow)
    for number in range(THREADS):
        slow.gate(f"long {number}")
        compiler.start(of(f"long {number}"))
    compiler.start(of("late"))
    slow.wait_until_begun("long 0", "long 1")
    assert compiler.results() == []
    slow.spent_s = MOST_S + 0.1
    told = dict(compiler.results())
    assert {constraint.source: error.began for constraint, error in told.items() if isinstance(error, TooSlow)} == {
        "long 0": True,
        "long 1": True,
        "late": False,
    }
    for gate in slow.gates.values():
        gate.set()
    landed(slow, compiler, THREADS)
    assert "late" not in slow.compiled


def test_what_nobody_waits_for_any_more_is_not_begun(slow: Slow) -> None:
    compiler = new(slow)
    for number in range(THREADS):
        slow.gate(f"long {number}")
        compiler.start(of(f"long {number}"))
    compiler.start(of("cancelled"))
    compiler.give_up(of("cancelled"))
    compiler.give_up(of("long 0"))  # it can't be stopped
    compiler.give_up(of("never asked for"))
    for gate in slow.gates.values():
        gate.set()
    assert len(landed(slow, compiler, THREADS)) == THREADS
    assert "cancelled" not in slow.compiled


def test_what_counts_is_the_threads_own_time(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is kept waiting by a busy machine is not slow; one that computes is."""
    monkeypatch.setattr("appliance.engine.compiling.MOST_S", 0.2)
    computing = threading.Event()
    seen = threading.Event()

    class Busy(Slow):
        def compile(self, constraint: Constraint) -> Grammar:
            if constraint.source == "busy":
                begin = time.thread_time()
                while time.thread_time() - begin < 0.3:
                    pass
                computing.set()
                assert seen.wait(30)
                return StandIn()
            return super().compile(constraint)

    grammars = Busy()
    compiler = Compiler(grammars, grammars.woken.release)  # type: ignore[arg-type]
    grammars.gate("waiting")
    compiler.start(of("waiting"))
    compiler.start(of("busy"))
    assert computing.wait(30)
    assert [constraint.source for constraint, _ in compiler.results()] == ["busy"]
    seen.set()
    grammars.gates["waiting"].set()
    assert {source for source, outcome in landed(grammars, compiler, 2) if isinstance(outcome, Grammar)} == {
        "busy",
        "waiting",
    }


def test_a_close_waits_for_what_uses_the_model(slow: Slow) -> None:
    compiler = new(slow)
    slow.gate("long")
    compiler.start(of("long"))
    closed = threading.Event()

    def close() -> None:
        compiler.close()
        closed.set()

    threading.Thread(target=close).start()
    assert not closed.is_set()
    slow.gates["long"].set()
    assert closed.wait(30)


@settings(max_examples=30, deadline=None)
@given(sources=st.lists(st.integers(0, MAX_COMPILED + 3).map(str), max_size=80))
def test_those_used_last_are_kept(sources: list[str]) -> None:
    slow = Slow()
    compiler = new(slow)
    kept: dict[str, None] = {}  # oldest use first
    for source in sources:
        assert (compiler.find(of(source)) is not None) == (source in kept)
        if source not in kept:
            compiler.start(of(source))
            landed(slow, compiler)
        kept.pop(source, None)
        kept[source] = None
        if len(kept) > MAX_COMPILED:
            del kept[next(iter(kept))]
