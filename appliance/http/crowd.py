"""Owns how many connections may be open: what happens to one more.

Must not know what is spoken on them.
"""

from __future__ import annotations

from typing import Protocol

# A kept connection that answered a moment ago is likely to be used again the next moment; closing it then would break
# a request that is on its way.
RESTED_S = 2.0
LEAVING_MOST = 64  # connections that are being refused; beyond them there is no reply


class Closable(Protocol):
    """A connection."""

    def close_idle(self) -> None:
        """Close it: nothing is under way."""


class Crowd:
    """The open connections of one kind, at most `limit`. For one event loop.

    One more is let in if a kept connection has had nothing to do for a while: that one gives way, the longest idle
    first. So clients that hold connections without use keep nobody out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.leaving = 0  # being refused
        self._open: set[Closable] = set()
        self._idle: dict[Closable, float] = {}  # since when, the longest first

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Closable, now: float) -> bool:
        """Whether a connection may stay; `now` in seconds of the loop's clock."""
        if len(self._open) >= self.limit:
            longest = next(iter(self._idle), None)
            if longest is None or now - self._idle[longest] < RESTED_S:
                return False
            self.leave(longest)
            longest.close_idle()
        self._open.add(connection)
        return True

    def rest(self, connection: Closable, now: float) -> None:
        """It has nothing to do from now on."""
        if connection in self._open:
            self._idle.pop(connection, None)
            self._idle[connection] = now

    def work(self, connection: Closable) -> None:
        """It has something to do."""
        self._idle.pop(connection, None)

    def leave(self, connection: Closable) -> None:
        """It was closed."""
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless all counts agree."""
        assert self._idle.keys() <= self._open, "an idle connection is not open"  # noqa: S101
        assert len(self._open) <= self.limit, f"{len(self._open)} of {self.limit} connections"  # noqa: S101
        assert self.leaving >= 0, "left more often than came"  # noqa: S101
