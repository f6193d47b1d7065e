"""How many connections are open: never more than may be, and nobody is kept out by who does nothing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.http.crowd import RESTED_S, Crowd

LIMIT = 3


class Line:
    def __init__(self) -> None:
        self.closed = False

    def close_idle(self) -> None:
        self.closed = True


class Crowding(RuleBasedStateMachine):
    """Against a list of what is open and since when it rests."""

    def __init__(self) -> None:
        super().__init__()
        self.crowd = Crowd(LIMIT)
        self.now = 0.0
        self.open: dict[Line, float | None] = {}

    @rule(seconds=st.floats(0, 2 * RESTED_S))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def come(self) -> None:
        line = Line()
        rested = [(since, other) for other, since in self.open.items() if since is not None]
        longest = min(rested, key=lambda pair: pair[0], default=None)
        let = self.crowd.enter(line, self.now)
        if len(self.open) < LIMIT:
            assert let
        elif longest is not None and self.now - longest[0] >= RESTED_S:
            assert let
            gone = [other for other in self.open if other.closed]
            assert len(gone) == 1
            assert self.open[gone[0]] == longest[0], "the one that rested longest"
            del self.open[gone[0]]
        else:
            assert not let
        if let:
            self.open[line] = None
        assert not line.closed

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def rest(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(list(self.open)))
        self.open[line] = self.now
        self.crowd.rest(line, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(list(self.open)))
        self.open[line] = None
        self.crowd.work(line)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(list(self.open)))
        del self.open[line]
        self.crowd.leave(line)
        self.crowd.leave(line)  # said twice is no harm
        self.crowd.rest(line, self.now)  # nor is what comes late

    @invariant()
    def as_many_as_there_are(self) -> None:
        self.crowd.check_integrity()
        assert len(self.crowd) == len(self.open)


TestCrowd = Crowding.TestCase
TestCrowd.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
