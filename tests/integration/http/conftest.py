"""Owns the event loop of these tests: the one that the service runs on.

Must not know any test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """pytest-asyncio's hook."""
    return {"uvloop": uvloop.new_event_loop}
