"""Owns which items of which callers are computed together next: the policy of shared batches.

Must not know models, threads or clocks: lengths and times come in, places come out.

Every caller gives its items best first, and maybe a deadline. Turns go to the caller that was served the fewest tokens
while it was here, so that nobody starves and a small request does not wait for a large one. Where the deadline is tight
items are begun in their order, so that what it leaves out is the tail; where there is time for all of them, those of
like length go together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

FIRST_ITEMS = 4  # of a caller with a deadline, that its first batch may have whatever the estimate says
_SMOOTHING = 0.3  # of the newest batch in the estimate
_AMPLE = 2.0  # times what the rest is expected to take: then its order does not matter


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one batch. A single item is a batch whatever its length."""

    items: int
    tokens: int  # padded
    waste: float  # padded tokens for each real one, at most
    window_s: float = 0.002  # how long what does not fill a batch waits for company


@dataclass(eq=False, slots=True)
class Request:
    """The items of one caller, by the number of their tokens, best first; `deadline` is in seconds of any clock."""

    widths: Sequence[int]
    arrived: float
    deadline: float = math.inf
    waiting: list[int] = field(init=False)  # places that were not begun, in order
    running: int = field(init=False, default=0)
    begun: bool = field(init=False, default=False)
    served: float = field(init=False, default=0.0)  # tokens, from a start that makes it comparable
    number: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.waiting = list(range(len(self.widths)))

    @property
    def done(self) -> bool:
        """Nothing of it waits or runs."""
        return not self.waiting and not self.running


@dataclass(eq=False, slots=True)
class Batch:
    """Items to compute together, as (request, place), and the tokens of the longest."""

    items: list[tuple[Request, int]] = field(default_factory=list)
    width: int = 0
    real_tokens: int = 0

    @property
    def padded_tokens(self) -> int:
        """Rows times the longest."""
        return len(self.items) * self.width

    def requests(self) -> dict[Request, int]:
        """Whose items they are, and how many of each."""
        counts: dict[Request, int] = {}
        for request, _ in self.items:
            counts[request] = counts.get(request, 0) + 1
        return counts


class Pace:
    """What a padded token costs: a running mean for each octave of lengths; attention grows faster than length."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}

    @property
    def known(self) -> bool:
        """Something was measured."""
        return bool(self._rates)

    def seconds(self, items: int, width: int) -> float:
        """What a batch is expected to take; 0 as long as nothing is known."""
        if not self._rates:
            return 0.0
        octave = width.bit_length()
        nearest = min(self._rates, key=lambda known: (abs(known - octave), -known))
        return items * width * self._rates[nearest]

    def learn(self, items: int, width: int, seconds: float) -> None:
        """Take a batch that was measured into the mean."""
        octave, rate = width.bit_length(), seconds / (items * width)
        before = self._rates.get(octave, rate)
        self._rates[octave] = before + _SMOOTHING * (rate - before)


class Schedule:
    """All open requests. Not for several threads at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pace = Pace()
        self._open: list[Request] = []
        self._clock = 0.0  # tokens that one was served who was always here: where newcomers start
        self._count = 0

    def add(self, request: Request) -> None:
        """Open a request."""
        self._count += 1
        request.number, request.served = self._count, self._clock
        self._open.append(request)

    def close(self, request: Request) -> None:
        """Begin nothing more of it."""
        request.waiting.clear()

    def open_requests(self) -> tuple[Request, ...]:
        """Those that were not collected."""
        return tuple(self._open)

    def collect(self) -> list[Request]:
        """Those that are done, removed from here."""
        done = [request for request in self._open if request.done]
        self._open = [request for request in self._open if not request.done]
        return done

    def patience(self, now: float) -> float:
        """Seconds to wait for more items before the next batch; 0 if what waits fills one, or waited long enough."""
        waiting = [request for request in self._open if request.waiting]
        if not waiting:
            return 0.0
        items = sum(len(request.waiting) for request in waiting)
        tokens = sum(request.widths[place] for request in waiting for place in request.waiting)
        if items >= self._limits.items or tokens >= self._limits.tokens:
            return 0.0
        return max(0.0, min(request.arrived for request in waiting) + self._limits.window_s - now)

    def take(self, now: float) -> Batch | None:
        """The next batch, its items no longer waiting; None if nothing waits. Closes what can no longer be in time."""
        for request in self._open:
            if request.waiting and self._too_late(request, now):
                self.close(request)
        waiting = [request for request in self._open if request.waiting]
        if not waiting:
            return None
        sharers = len(waiting)
        ample = {request for request in waiting if self._has_ample_time(request, now, sharers)}
        batch = Batch()
        while len(batch.items) < self._limits.items:
            for request in sorted(waiting, key=_turn):
                place = _nearest(request, batch.width) if request in ample and batch.items else request.waiting[0]
                if self._suits(batch, request, request.widths[place], now):
                    _move(request, place, batch)
                    break
            else:
                break
            waiting = [request for request in waiting if request.waiting]
        # A fair share of what was served: who always started from the least served would be before the others for ever.
        self._clock += batch.real_tokens / sharers
        for request in batch.requests():
            request.begun = True
        return batch

    def finish(self, batch: Batch, seconds: float | None) -> None:
        """A batch ended after so many seconds; None: it failed."""
        for request, count in batch.requests().items():
            request.running -= count
        if seconds is not None:
            self._pace.learn(len(batch.items), batch.width, seconds)

    def _too_late(self, request: Request, now: float) -> bool:
        # A first batch is tried whatever the estimate says: that may be of worse times.
        expected = self._pace.seconds(1, request.widths[request.waiting[0]]) if request.begun else 0.0
        return now + expected >= request.deadline

    def _has_ample_time(self, request: Request, now: float, sharers: int) -> bool:
        if request.deadline == math.inf:
            return True
        rest = sum(self._pace.seconds(1, request.widths[place]) for place in request.waiting)
        return 0.0 < rest * _AMPLE * sharers <= request.deadline - now

    def _suits(self, batch: Batch, request: Request, width: int, now: float) -> bool:
        if not batch.items:
            return True
        items, widest = len(batch.items) + 1, max(batch.width, width)
        if items * widest > min(self._limits.tokens, self._limits.waste * (batch.real_tokens + width)):
            return False
        counts = batch.requests()
        counts[request] = counts.get(request, 0) + 1
        end = now + self._pace.seconds(items, widest)
        return all(self._in_time(member, count, end) for member, count in counts.items())

    def _in_time(self, request: Request, count: int, end: float) -> bool:
        if request.deadline == math.inf or (not request.begun and count <= FIRST_ITEMS):
            return True
        return self._pace.known and end < request.deadline


def _turn(request: Request) -> tuple[float, float, int]:
    return request.served, request.deadline, request.number


def _nearest(request: Request, width: int) -> int:
    """The waiting place whose item is the nearest in length, the best of those."""
    return min(request.waiting, key=lambda place: (abs(request.widths[place] - width), place))


def _move(request: Request, place: int, batch: Batch) -> None:
    request.waiting.remove(place)
    request.running += 1
    request.served += request.widths[place]
    batch.items.append((request, place))
    batch.width = max(batch.width, request.widths[place])
    batch.real_tokens += request.widths[place]
