"""Owns when constraints are compiled: by threads beside the engine's loop, each once, and for how long at most.

Must not know what a grammar enforces, or who asked for it. All calls are for the thread of the loop.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from appliance.engine.grammar import Grammar, Grammars
from appliance.engine.protocol import Constraint

MAX_COMPILED = 32
# The largest schema that is taken was seen to need a second. It is the thread's own time that counts: on a machine that
# is busy with other things, a second of it may take long. A thread can't be stopped: one that takes longer goes on, and
# what it finds is kept, but nobody waits for it.
MOST_S = 5.0
THREADS = 2  # so that one that takes long is not in the way of all others


class TooSlow(Exception):
    """It is not compiled in time.

    Attributes:
        began: False: others that take too long leave no thread for it.
    """

    def __init__(self, *, began: bool) -> None:
        what = (
            f"takes more than {MOST_S:g} s of processor time to compile"
            if began
            else "waits for others that take long to compile"
        )
        super().__init__(f"The constraint {what}.")
        self.began = began


@dataclass(slots=True)
class _Job:
    thread: threading.Thread | None = None  # None: it waits for one
    clock: int | None = None  # of that thread's time; None: it has not begun to run


class Compiler:
    """Compiled constraints of one model: those used last, and those that are on their way.

    Args:
        grammars: compiles; called by several threads.
        wake: called by them when `results` has something new.
        read_clock: seconds on the clock of a thread's time.
    """

    def __init__(
        self, grammars: Grammars, wake: Callable[[], None], read_clock: Callable[[int], float] = time.clock_gettime
    ) -> None:
        self._grammars = grammars
        self._wake = wake
        self._read_clock = read_clock
        self._compiled: OrderedDict[Constraint, Grammar] = OrderedDict()
        self._jobs: OrderedDict[Constraint, _Job] = OrderedDict()
        self._landed: queue.SimpleQueue[tuple[Constraint, Grammar | BaseException]] = queue.SimpleQueue()

    def find(self, constraint: Constraint) -> Grammar | None:
        """The grammar, if it is there."""
        grammar = self._compiled.get(constraint)
        if grammar is None or grammar.worn:
            return None
        self._compiled.move_to_end(constraint)
        return grammar

    def start(self, constraint: Constraint) -> None:
        """Have a constraint compiled; `results` tells when it is."""
        if constraint not in self._jobs:
            self._jobs[constraint] = _Job()
            self._run()

    def give_up(self, constraint: Constraint) -> None:
        """Nobody waits for it any more."""
        if (job := self._jobs.get(constraint)) is not None and job.thread is None:
            del self._jobs[constraint]

    def results(self) -> list[tuple[Constraint, Grammar | BaseException]]:
        """What was compiled since the last call, or why it can't be. `TooSlow`: it may still come, later."""
        found = []
        while not self._landed.empty():
            constraint, outcome = self._landed.get()
            del self._jobs[constraint]
            if isinstance(outcome, Grammar):
                self._compiled[constraint] = outcome
                self._compiled.move_to_end(constraint)
                while len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
            found.append((constraint, outcome))
        self._run()
        slow = {constraint for constraint, job in self._jobs.items() if self._spent_s(job) > MOST_S}
        for constraint, job in list(self._jobs.items()):
            if constraint in slow or (job.thread is None and len(slow) == THREADS):
                found.append((constraint, TooSlow(began=constraint in slow)))
                self.give_up(constraint)
        return found

    def close(self) -> None:
        """Wait for what is being compiled: it uses the model."""
        for job in self._jobs.values():
            if job.thread is not None:
                job.thread.join()

    def _spent_s(self, job: _Job) -> float:
        with contextlib.suppress(OSError):  # the thread has just ended
            return 0.0 if job.clock is None else self._read_clock(job.clock)
        return 0.0

    def _run(self) -> None:
        free = THREADS - sum(job.thread is not None for job in self._jobs.values())
        for constraint, job in self._jobs.items():
            if free > 0 and job.thread is None:
                free -= 1
                job.thread = threading.Thread(target=self._compile, args=(constraint, job), name="compile", daemon=True)
                job.thread.start()

    def _compile(self, constraint: Constraint, job: _Job) -> None:
        job.clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self._landed.put((constraint, self._grammars.compile(constraint)))
        except BaseException as error:  # a panic of the compiler is none of Exception's
            self._landed.put((constraint, error))
        self._wake()
