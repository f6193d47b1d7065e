"""Owns server-sent events: their bytes, and the reply that streams an answer as such events.

Must not know which events a route sends: a `Format` turns each into bytes.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import msgspec
from litestar import Response
from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Scope, Send

from appliance.answer.types import Event
from appliance.http.feed import Ended, Feed
from appliance.http.problems import ClientGone, Problem, problem_of
from appliance.telemetry import Span, note

PING = b": ping\n\n"
# JSON leaves these as they are (it escapes all other line separators), and they occur in strings only.
_SEPARATORS = tuple((chr(code).encode(), f"\\u{code:04x}".encode()) for code in (0x85, 0x2028, 0x2029))
# Proxies must neither keep nor gather what they pass on.
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def encode(data: bytes | str, event: str = "") -> bytes:
    """One event. Lines of `data` may end in LF, CR or CRLF: a reader joins them with LF."""
    raw = data.encode() if isinstance(data, str) else data
    lines = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


def encode_json(value: object, event: str = "") -> bytes:
    """One event of JSON in one line, for readers too that end lines at any of Unicode's line separators."""
    data = msgspec.json.encode(value)
    for separator, escape in _SEPARATORS:
        data = data.replace(separator, escape)
    return encode(data, event)


class Format(Protocol):
    """How a route writes an answer."""

    def event(self, event: Event) -> bytes:
        """The bytes of an event; may be none."""

    def end(self) -> bytes:
        """What follows the last event."""

    def error(self, problem: Problem) -> bytes:
        """How an answer ends that failed after its first byte."""


async def stream(feed: Feed, writer: Format, ping_s: float) -> EventStream:
    """The reply that streams `feed`, which it closes.

    Waits for the first event, for at most `ping_s` seconds, so that an early error gets its own status.

    Raises:
        Exception: what ended the answer before its first event.
    """
    try:
        first = await feed.next(ping_s)
    except BaseException:
        await feed.close()
        raise
    return EventStream(feed, _chunks(feed, first, writer, ping_s))


async def _chunks(feed: Feed, first: Event | None, writer: Format, ping_s: float) -> AsyncGenerator[bytes]:
    event = first
    writing = Span("sse.write").begin()
    events = size = blocked_ns = 0
    try:
        while True:
            data = PING if event is None else writer.event(event)
            if data:
                events += 1
                size += len(data)
                began_ns = time.perf_counter_ns()
                yield data  # comes back when the connection has taken it
                blocked_ns += time.perf_counter_ns() - began_ns
            event = await feed.next(ping_s)
    except Ended:
        yield writer.end()
    except ClientGone:
        return
    except Exception as error:
        problem = problem_of(error)
        note({"error.type": problem.code})
        yield writer.error(problem)
    finally:
        writing.attributes |= {"events": events, "size_bytes": size, "blocked_ms": round(blocked_ns / 1e6, 2)}
        writing.end()


class EventStream(Response[bytes]):
    """Server-sent events made from a feed."""

    def __init__(self, feed: Feed, chunks: AsyncGenerator[bytes]) -> None:
        super().__init__(b"", media_type="text/event-stream", headers=HEADERS, status_code=200)
        self._feed = feed
        self._chunks = chunks

    def to_asgi_response(self, app: Any, request: Any, **options: Any) -> _ASGIEventStream:
        """The part that Litestar runs."""
        headers = {**(options.get("headers") or {}), **self.headers}
        return _ASGIEventStream(self._feed, self._chunks, headers=headers, media_type=self.media_type)


class _ASGIEventStream(ASGIStreamingResponse):
    # The base class cancels the iterator when the client leaves, and goes on cancelling while it cleans up;
    # here the feed notices the client's leave, and its generator closes undisturbed.

    def __init__(self, feed: Feed, chunks: AsyncGenerator[bytes], **options: Any) -> None:
        super().__init__(iterator=chunks, content_length=0, **options)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._feed.close()

    async def send_body(self, send: Send, receive: Receive) -> None:
        await self._stream(send)
