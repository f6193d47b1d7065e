"""Owns the rule by which ingestion gives way to questions: between two steps it waits until none is under way.

Must not know what a question or a step is.

Encoders and the generator share the cores, and no priority reaches into their threads: who computes beside a question
slows it down. So the work is done in short steps, and none begins while a question is under way; but after
`patience_s` one step does, so that questions without end do not stop ingestion for ever.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

PATIENCE_S = 10.0  # for one step of about 0.25 s: 2.5 % of the machine at the worst


class Courtesy:
    """Counts the questions under way. For any thread, and for tasks."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._questions = 0
        self._hurry = False

    @contextlib.contextmanager
    def question(self) -> Iterator[None]:
        """A question is under way for the block."""
        with self._changed:
            self._questions += 1
        try:
            yield
        finally:
            with self._changed:
                self._questions -= 1
                self._changed.notify_all()

    def wait(self) -> None:
        """Return when no question is under way, or one has been for too long, or `hurry` was called."""
        until = time.monotonic() + self._patience_s
        with self._changed:
            while self._questions and not self._hurry and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def hurry(self) -> None:
        """Let nobody wait any more: the service stops."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
