"""Owns `SharedRuns`: callers of many threads whose items are computed in shared batches, by few threads.

Must not know what an item is, nor which go together: that is `schedule`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from appliance.errors import Unavailable
from appliance.inference.schedule import Batch, Limits, Request, Schedule

Item = TypeVar("Item")
Found = TypeVar("Found")


class _Call(Generic[Item, Found]):
    """What belongs to one request beside its lengths."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.found: list[Found | None] = [None] * len(items)
        self.error: Exception | None = None
        self.done = threading.Event()


class SharedRuns(Generic[Item, Found]):
    """Computes what callers hand in, in batches that they share. Its threads live while there is work."""

    def __init__(
        self, run: Callable[[Sequence[Item]], Sequence[Found]], limits: Limits, *, threads: int, name: str
    ) -> None:
        """`run` computes one batch, a result for each item in order, in up to so many threads at the same time."""
        self._run = run
        self._most_threads = threads
        self._name = name
        self._changed = threading.Condition()  # guards all below
        self._schedule = Schedule(limits)
        self._calls: dict[Request, _Call[Item, Found]] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False

    def ask(self, items: Sequence[Item], widths: Sequence[int], *, deadline: float = math.inf) -> list[Found | None]:
        """Compute `items`, best first; `widths` are their tokens, and `deadline` is of `time.monotonic`.

        Returns:
            A result each, None where the deadline left it out. A batch that runs at the deadline is waited for: it
            was begun because it should have ended before.

        Raises:
            Unavailable: `close` was called.
            Exception: what `run` raised for a batch with one of these items.
        """
        call = _Call[Item, Found](items)
        request = Request(widths, time.monotonic(), deadline)
        with self._changed:
            if self._closed:
                raise Unavailable("The service is stopping.")
            self._calls[request] = call
            self._schedule.add(request)
            self._settle()  # nothing was asked for
            self._start_threads()
            self._changed.notify_all()
        try:
            # The lock's longest time-out, some 290 years, is less than infinity.
            left = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
            if not call.done.wait(max(0.0, left)):
                self._give_up(request)
                call.done.wait()
        finally:
            self._give_up(request)
        if call.error is not None:
            raise call.error
        return call.found

    def close(self) -> None:
        """Let the running batches end; callers that wait get `Unavailable`, and so do later ones."""
        with self._changed:
            self._closed = True
            for request in self._schedule.open_requests():
                self._fail(request, Unavailable("The service is stopping."))
            self._settle()
            threads = list(self._threads)
            self._changed.notify_all()
        for thread in threads:
            thread.join()

    def _start_threads(self) -> None:
        while self._calls and len(self._threads) < self._most_threads:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}")
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while batch := self._next_batch():
            with self._changed:
                items = [self._calls[request].items[place] for request, place in batch.items]
            began = time.monotonic()
            try:
                found = self._run(items)
                if len(found) != len(items):
                    raise RuntimeError(f"{len(found)} results for {len(items)} items")
            except Exception as error:
                self._end(batch, None, error)
            else:
                self._end(batch, time.monotonic() - began, found)

    def _next_batch(self) -> Batch | None:
        """The next one; None when the thread should end, and then it is no longer counted."""
        with self._changed:
            while not self._closed and (patience := self._schedule.patience(time.monotonic())) > 0.0:
                self._changed.wait(patience)
            batch = self._schedule.take(time.monotonic())
            self._settle()
            if batch is None:
                self._threads.remove(threading.current_thread())
            return batch

    def _end(self, batch: Batch, seconds: float | None, outcome: Sequence[Found] | Exception) -> None:
        with self._changed:
            self._schedule.finish(batch, seconds)
            if isinstance(outcome, Exception):
                for request in batch.requests():
                    self._fail(request, outcome)
            else:
                for (request, place), found in zip(batch.items, outcome, strict=True):
                    self._calls[request].found[place] = found
            self._settle()

    def _fail(self, request: Request, error: Exception) -> None:
        self._calls[request].error = self._calls[request].error or error
        self._schedule.close(request)

    def _give_up(self, request: Request) -> None:
        """Begin nothing more of it; nothing, if it is done."""
        with self._changed:
            self._schedule.close(request)
            self._settle()

    def _settle(self) -> None:
        for request in self._schedule.collect():
            self._calls.pop(request).done.set()
