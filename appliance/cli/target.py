"""Owns the choice a command makes: talk to the running service, or open the data directory itself.

Must not know what the command does then: both offer the same calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Literal

from msgspec.structs import replace

from appliance.config import Settings
from appliance.http.address import answers, require_own, socket_path
from appliance.http.ports import Library


@contextlib.asynccontextmanager
async def reach(settings: Settings, *, needs: Literal["store", "recall", "answers"]) -> AsyncIterator[Library]:
    """The service that has the data directory open, else the data directory itself, for the block.

    Args:
        settings: names the data directory and the socket.
        needs: what the command will use for certain: the store alone, the models that search, or the generation
            engine too. Without a service they are started at once, side by side; what is not named here and needed
            after all is loaded then.
    """
    path = socket_path(settings)
    if await asyncio.to_thread(answers, path):
        require_own(path)
        from appliance.cli.remote import RemoteTarget

        async with RemoteTarget(path) as remote:
            yield remote
        return
    # Heavy imports only here: a command that talks to a service starts quickly.
    from appliance.service import Appliance

    # What the engine takes to start is not a question's fault.
    patience_ms = settings.answer.deadline_ms + 1000 * settings.engine.start_timeout_s
    appliance = Appliance(replace(settings, answer=replace(settings.answer, deadline_ms=patience_ms)))
    await asyncio.to_thread(appliance.claim)
    try:
        if needs == "answers":
            await appliance.start_engine()
        await asyncio.to_thread(appliance.open)
        if needs != "store":
            await asyncio.to_thread(appliance.load_models)
        yield appliance
    finally:
        await appliance.close()
