"""Owns `appliance serve`.

Must not know routes or how parts are built.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import click

from appliance import __version__, config
from appliance.cli.root import Invocation

if TYPE_CHECKING:
    from appliance.http.lifecycle import Lifecycle
    from appliance.service import Appliance


@click.command()
@click.option("--host", help="Address to listen on (setting server.host).")
@click.option("--port", help="Port to listen on (setting server.port).")
@click.option("--print-config", is_flag=True, help="Print all settings as a TOML file and exit.")
@click.pass_obj
def serve(invocation: Invocation, host: str | None, port: str | None, print_config: bool) -> None:
    """Run the service until it is told to stop (Ctrl-C or SIGTERM)."""
    settings = invocation.settings(server__host=host, server__port=port)
    if print_config:
        click.echo(config.to_toml(settings), nl=False)
        return
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _open(appliance: Appliance, lifecycle: Lifecycle) -> None:
    """The engine starts while the library opens; a stop in between is heeded."""
    await asyncio.to_thread(appliance.claim)
    if not lifecycle.stopping:
        await appliance.start_engine()
        await asyncio.to_thread(appliance.open)
    if not lifecycle.stopping:
        await asyncio.to_thread(appliance.load_models)
        await appliance.start_jobs()
        lifecycle.loaded()


async def _serve(settings: config.Settings) -> None:
    from appliance.http.app import create_app
    from appliance.http.server import Server
    from appliance.service import Appliance
    from appliance.store.lock import make_data_dir

    make_data_dir(settings.data_path)
    appliance = Appliance(settings)
    app = create_app(appliance, loading=True)
    # Bind first: a port in use is told at once, before a model is loaded. Serve then: health is asked meanwhile.
    with Server.bind(settings) as server:
        serving = asyncio.create_task(server.run(app))
        opening = asyncio.create_task(_open(appliance, app.lifecycle))
        try:
            await asyncio.wait((opening,))
            await opening
            await serving
        finally:
            if not serving.done():
                server.stop()
            # A thread cannot be cancelled: what it opens is closed after it. Their faults were told, or came too late.
            await asyncio.gather(opening, serving, return_exceptions=True)
            await appliance.close()
