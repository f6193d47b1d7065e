"""Owns how an answer becomes a reply: streamed, or whole.

Must not know what is asked, nor any wire format.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from litestar import Request, Response

from appliance.answer.types import Delta, Event, Finished
from appliance.http import extension, sse
from appliance.http.feed import Feed
from appliance.http.lifecycle import Lifecycle


async def reply(
    request: Request[Any, Any, Any],
    lifecycle: Lifecycle,
    events: AsyncGenerator[Event],
    whole: Callable[[Sequence[Delta], Finished], Any],
    streamed: sse.Format | None,
    ping_s: float,
) -> Response[Any]:
    """The reply to `request`, whose body is read, with the answer of `events`, which are closed in any case.

    Args:
        whole: makes the body of a reply that comes at once.
        streamed: writes the events of one that is streamed; None: it comes at once.
        ping_s: after so many seconds without an event a stream says that it is alive.

    Raises:
        Exception: what ended the answer before anything was sent.
    """
    feed = Feed(events, request.receive, lifecycle)
    if streamed is not None:
        return await sse.stream(feed, streamed, ping_s)
    try:
        deltas, finished = await feed.whole()
    finally:
        await feed.close()
    headers = {"Server-Timing": extension.server_timing(finished.report.timings_ms)}
    return Response(whole(deltas, finished), headers=headers)
