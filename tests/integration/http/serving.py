"""Owns serving a scripted backend on real sockets in tests.

Must not know any test.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from appliance.config import DocumentSettings, ServerSettings, Settings
from appliance.http.app import create_app
from appliance.http.ports import Backend
from appliance.http.server import Server

MAX_FILE_BYTES = 4 << 20


def settings(data_dir: Path, **server: object) -> Settings:
    """Settings of a service on any free port over `data_dir`."""
    return Settings(
        data_dir=str(data_dir),
        server=msgspec.convert({"port": 0, **server}, ServerSettings),
        documents=DocumentSettings(max_file_bytes=MAX_FILE_BYTES),
    )


@contextlib.asynccontextmanager
async def serving(backend: Backend) -> AsyncIterator[Server]:
    """The service, running in this event loop; what still runs at the end of the block is cut."""
    with Server.bind(backend.settings) as server:
        running = asyncio.create_task(server.run(create_app(backend)))
        try:
            yield server
        finally:
            if not running.done():
                server.stop()
                server.stop()
            await running
