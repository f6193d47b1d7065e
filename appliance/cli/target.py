"""Owns the choice a command makes: talk to the running service, or open the data directory itself.

Must not know what the command does then: both offer the same calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from appliance.config import Settings
from appliance.http.address import answers, socket_path
from appliance.http.ports import Library


@contextlib.asynccontextmanager
async def reach(settings: Settings, *, generates: bool) -> AsyncIterator[Library]:
    """The service that has the data directory open, else the data directory itself, for the block.

    Args:
        settings: names the data directory and the socket.
        generates: the command needs the generation engine.
    """
    path = socket_path(settings)
    if await asyncio.to_thread(answers, path):
        from appliance.cli.remote import RemoteTarget

        async with RemoteTarget(path) as remote:
            yield remote
        return
    # Heavy imports only here: a command that talks to a service starts quickly.
    from appliance.service import Appliance

    appliance = Appliance(settings)
    await asyncio.to_thread(appliance.open)
    try:
        if generates:
            await appliance.start_engine()
        yield appliance
    finally:
        await appliance.close()
