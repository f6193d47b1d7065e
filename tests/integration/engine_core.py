"""Owns what tests of the engine's core share: running requests to their end, and reading what was told of them.

Must not know any test.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.engine.core import Core
from appliance.engine.protocol import Done, FromEngine, Submit, Token


def run(core: Core, requests: Sequence[Submit]) -> dict[int, list[FromEngine]]:
    """All messages of each request; the books are checked after every step."""
    for request in requests:
        core.submit(request)
    out: dict[int, list[FromEngine]] = {request.id: [] for request in requests}
    while True:
        for message in core.take_messages():
            out[message.id].append(message)  # type: ignore[union-attr]
        if not core.busy:
            return out
        core.step()
        core.check_integrity()


def text(messages: Sequence[FromEngine]) -> str:
    """The text of one request."""
    return "".join(message.text for message in messages if isinstance(message, Token))


def end(messages: Sequence[FromEngine]) -> Done:
    """The end of one request that was answered."""
    assert isinstance(messages[-1], Done), messages[-1]
    return messages[-1]
