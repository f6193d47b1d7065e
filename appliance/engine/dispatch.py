"""Owns which requests wait for an engine and which one has; a new engine gets again what the old one had.

Must not know processes: an engine is something to send to, until it is said to have died.

    request() ──▶ waiting ──hand over──▶ aboard ──Done, Failed, Counted──▶ ended
                     ▲                     │
                     └──── the engine died ┘
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator

from appliance.engine.protocol import Cancel, Count, Counted, Done, Failed, FrameError, Submit, ToEngine
from appliance.engine.request import Reply, Request
from appliance.engine.suspects import Suspects
from appliance.errors import ApplianceError, EngineDied, Overloaded, PromptTooLong, Quarantined, Unavailable

_REFUSED_REMEDY = "It is refused until the service restarts: change the prompt or its parameters."


class Dispatch:
    """All requests that are open. They are handed over in the order of their arrival; none overtakes another.

    Where one must wait, others are in the engine: each of their messages is an occasion to look again.

    Args:
        max_queue: the most requests, and the most counts, that may wait here and in the engine's queue together.
        patience_s: how long a request without a deadline waits for an engine.
    """

    def __init__(self, max_queue: int, patience_s: float) -> None:
        self._max_queue = max_queue
        self._patience_s = patience_s
        self._send: Callable[[ToEngine], None] | None = None
        self._waiting: dict[int, Request] = {}
        self._aboard: dict[int, Request] = {}  # also those that were cancelled, until the engine has let go of them
        self._suspects = Suspects()
        self._open = 0
        self.idle = asyncio.Event()  # nobody waits for a reply
        self.idle.set()

    @contextlib.contextmanager
    def request(self, message: Submit | Count) -> Iterator[Request]:
        """Take a request; leaving the block gives it up.

        Raises:
            Quarantined: its content killed the engine before.
            Overloaded: too many wait already.
        """
        request = Request(message)
        if self._suspects and self._suspects.guilty(request.digest):
            raise _quarantined()
        self._waiting[request.id] = request
        try:
            if (queued := self._queued(type(message))) > self._max_queue:
                raise Overloaded(f"{queued - 1} requests are waiting already.")
            self._hand_over()
            if request.id in self._waiting:
                self._postpone(request)
            self._open += 1
            self.idle.clear()
            try:
                yield request
            finally:
                self._open -= 1
                if not self._open:
                    self.idle.set()
        finally:
            self._leave(request)

    def attach(self, send: Callable[[ToEngine], None]) -> None:
        """An engine is ready and takes requests by `send`."""
        self._send = send
        self._hand_over()

    def receive(self, reply: Reply) -> None:
        """The engine says something of a request."""
        request = self._aboard.get(reply.id)
        if request is None:
            return
        request.take(reply)
        if isinstance(reply, Done | Failed | Counted):
            del self._aboard[reply.id]
            if not (isinstance(reply, Failed) or (isinstance(reply, Done) and reply.finish_reason == "cancelled")):
                self._suspects.clear(request.digest)
        self._hand_over()  # there may be room now in the engine or in its queue

    def forget(self) -> None:
        """Of no request that is open now may anything be kept, whichever engine answers it."""
        for request in (*self._waiting.values(), *self._aboard.values()):
            request.keep_nothing()

    def lose_engine(self) -> int:
        """The engine died: what it had waits for the next one. Returns how many requests do now.

        To blame are those that had left the engine's queue; when none had, all that it was given.
        """
        self._send = None
        aboard, self._aboard = list(self._aboard.values()), {}
        blamed = [request.digest for request in aboard if request.started] or [request.digest for request in aboard]
        guilty = self._suspects.blame(blamed, alone=len(aboard) == 1)
        for request in aboard:
            if request.abandoned:
                continue
            if request.digest == guilty:
                message = "The engine ended again while it was answering this request and nothing else."
                request.fail(EngineDied(message, remedy=_REFUSED_REMEDY))
                continue
            request.lose()
            self._waiting[request.id] = request
            self._postpone(request)
        self._waiting = dict(sorted(self._waiting.items()))
        return len(self._waiting)

    def fail_all(self, error: ApplianceError) -> None:
        """End everything that is open."""
        for request in (*self._waiting.values(), *self._aboard.values()):
            _disarm(request)
            request.fail(error)
        self._waiting.clear()
        self._aboard.clear()

    def _queued(self, kind: type[Submit | Count]) -> int:
        requests = (*self._waiting.values(), *self._aboard.values())
        return sum(1 for request in requests if not request.started and isinstance(request.message, kind))

    def _hand_over(self) -> None:
        """Give the engine what it may have now."""
        if self._send is None or not self._waiting:
            return
        room = min((self._company(request) for request in self._aboard.values()), default=math.inf)
        queued = sum(1 for request in self._aboard.values() if not request.started)
        for request in list(self._waiting.values()):
            room = min(room, self._company(request))
            # An engine that is new has yet to start what the old one had started: its queue must hold that too.
            if len(self._aboard) >= room or queued >= self._max_queue:
                return
            del self._waiting[request.id]
            _disarm(request)
            if self._suspects and self._suspects.guilty(request.digest):
                request.fail(_quarantined())
                continue
            try:
                self._send(request.due())
            except FrameError as error:
                request.fail(PromptTooLong(f"The request is too large: {error}.", remedy="Shorten the prompt."))
                continue
            self._aboard[request.id] = request
            queued += 1

    def _company(self, request: Request) -> float:
        return self._suspects.company(request.digest) if self._suspects else math.inf

    def _postpone(self, request: Request) -> None:
        """It waits: until its deadline, else as long as the patience lasts."""
        request.wait()
        remaining_s = request.remaining_s
        delay_s = self._patience_s if remaining_s is None else remaining_s
        request.timer = asyncio.get_running_loop().call_later(delay_s, self._overdue, request)

    def _overdue(self, request: Request) -> None:
        if request.remaining_s is not None:
            del self._waiting[request.id]
            request.expire()
        elif self._send is None:
            del self._waiting[request.id]
            request.fail(Unavailable(f"The generation engine was not ready within {self._patience_s:g} s."))
        else:  # it waits for others to end: a suspect runs in small company
            self._postpone(request)

    def _leave(self, request: Request) -> None:
        _disarm(request)
        self._waiting.pop(request.id, None)
        if request.id in self._aboard:
            request.abandoned = True
            if self._send is not None:
                self._send(Cancel(request.id))


def _disarm(request: Request) -> None:
    if request.timer is not None:
        request.timer.cancel()
        request.timer = None


def _quarantined() -> Quarantined:
    return Quarantined("This request ended the generation engine more than once.", remedy=_REFUSED_REMEDY)
