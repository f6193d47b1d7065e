"""Owns the limits of a connection: how many there are, how large and how slow a request's head may be, and how long
its client may read nothing.

Must not know requests: uvicorn makes them when the head is whole.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from appliance.http.crowd import LEAVING_MOST, Crowd
from appliance.http.problems import Problem

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
HEAD_PATIENCE_S = 20.0
# A client that takes nothing of what waits for it in this time is gone or means harm. What waits here is what the
# system's own buffers have no room for, so a slow client takes some of it now and then.
READ_PATIENCE_S = 60.0
LINGER_S = 1.0

MALFORMED = Problem(400, "This is not a valid HTTP request.", "invalid_request_error", "malformed_request")
TOO_LARGE = Problem(
    431,
    f"The request's head is over the limit of {MAX_HEADERS} headers or {MAX_HEAD_BYTES} bytes.",
    "invalid_request_error",
    "headers_too_large",
)
TOO_SLOW = Problem(408, "The request came too slowly.", "invalid_request_error", "request_timeout")
FULL = Problem(
    503,
    "All connections of this service are in use. Try again shortly.",
    "server_error",
    "too_many_connections",
    headers={"Retry-After": "1"},
)
PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Connection(HttpToolsProtocol):
    """uvicorn's connection with a bounded head, and refusals in the shape of all errors.

    Args:
        crowd: all connections from the network; None: this one is of the unix socket, which only those may open who
            may stop the service as well.
        given: uvicorn's.
    """

    _in_head = True
    _begun = False  # a head has begun, and is not whole
    _head_bytes = 0
    _parsed_bytes = 0
    _refusal = MALFORMED
    _refused = False
    _excess = False  # it came when there was no room
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def __init__(self, crowd: Crowd | None, **given: Any) -> None:
        super().__init__(**given)
        self._crowd = crowd

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        if self._crowd is not None and not self._crowd.enter(self, self.loop.time()):
            if self._crowd.leaving >= LEAVING_MOST:
                self._refused = True
                transport.abort()
                return
            self._excess = True
            self._crowd.leaving += 1
            self._refuse(FULL)
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left or was closed."""
        self._stop_timer()
        self._stop_read_timer()
        if self._crowd is not None:
            self._crowd.leave(self)
            self._crowd.leaving -= self._excess
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Close it: another one needs the room."""
        self.transport.close()

    def on_response_complete(self) -> None:
        """A reply was sent."""
        super().on_response_complete()
        if self._crowd is not None and self.cycle.response_complete and not self.pipeline and not self._begun:
            self._crowd.rest(self, self.loop.time())

    def pause_writing(self) -> None:
        """The client does not take what is sent as fast as it comes."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """It took most of it."""
        self._stop_read_timer()
        super().resume_writing()

    def _watch_reading(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._read_timer = self.loop.call_later(READ_PATIENCE_S, self._check_reading, waiting)

    def _check_reading(self, waited: int) -> None:
        if self.transport.get_write_buffer_size() >= waited:
            self.transport.abort()
        else:
            self._watch_reading()

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._refused:
            return
        if self._crowd is not None:
            self._crowd.work(self)
        if self._in_head:
            # Counted here as well as by header: the parser hands a header on only when it is whole.
            # A chunk that ends a head may hold much of its body, so only the chunks before it count.
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(TOO_LARGE)
                return
            self._head_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """The parser found the start of a request."""
        super().on_message_begin()
        self._parsed_bytes = 0
        self._begun = True
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """The parser found a piece of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser found a header."""
        self._count(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            self._reject(TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole; a request begins."""
        self._in_head = self._begun = False
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's refusal of what the parser cannot take."""
        self._refuse(self._refusal)

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > MAX_HEAD_BYTES:
            self._reject(TOO_LARGE)

    def _reject(self, problem: Problem) -> None:
        self._refusal = problem
        raise httptools.HttpParserError(problem.message)  # stops the parser

    def _await_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_PATIENCE_S, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if self._begun:
            self._refuse(TOO_SLOW)
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        if self.transport.is_closing() or self._refused:
            return
        self._refused = True
        body = problem.body()
        head = [
            f"HTTP/1.1 {problem.status} {PHRASES[problem.status]}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            *(f"{name.lower()}: {value}" for name, value in problem.headers.items()),
        ]
        self.transport.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        # Closed at once, with bytes unread, the connection would be reset and the reply lost.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._stop_timer()
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.close)
