"""Owns `Once`: what is expensive is made at first need, one time, whichever threads ask.

Must not know what is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """A value that the first `get` makes; others wait for it. A failure is raised, and the next `get` tries again."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []

    def get(self) -> T:
        """The value. Raises what making it raises."""
        if not self._made:
            with self._lock:
                if not self._made:
                    self._made.append(self._make())
        return self._made[0]

    @property
    def made(self) -> T | None:
        """The value if it was made already."""
        return self._made[0] if self._made else None
