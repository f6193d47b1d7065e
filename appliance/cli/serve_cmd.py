"""Owns `appliance serve`.

Must not know routes or how parts are built.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance import config, systemd
from appliance.cli.root import Invocation

if TYPE_CHECKING:
    from appliance.http.lifecycle import Lifecycle
    from appliance.service import Appliance

_log = logging.getLogger(__name__)


@click.command()
@click.option("--host", help="Address to listen on (setting server.host).")
@click.option("--port", help="Port to listen on (setting server.port).")
@click.option("--print-config", is_flag=True, help="Print all settings as a TOML file and exit.")
@click.pass_obj
def serve(invocation: Invocation, host: str | None, port: str | None, print_config: bool) -> None:
    """Run the service until it is told to stop (Ctrl-C or SIGTERM)."""

    def read() -> config.Settings:
        return invocation.settings(server__host=host, server__port=port)

    settings = read()
    if print_config:
        click.echo(config.to_toml(settings), nl=False)
        return
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, read))


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


async def _tell(
    notifier: systemd.Notifier,
    appliance: Appliance,
    lifecycle: Lifecycle,
    socket: Path,
    reread: Callable[[], config.Settings],
) -> None:
    """Keep the service manager told, if there is one; SIGHUP then has the settings read again.

    Without one, SIGHUP ends the service as it ends any program: its terminal was closed.
    """
    from appliance.cli.supervised import Supervision, difference

    if not notifier.listening:
        return
    supervision = Supervision(
        notifier,
        appliance,
        lifecycle,
        path=socket,
        heartbeat_timeout_s=appliance.settings.engine.heartbeat_timeout_s,
        reread=lambda: difference(appliance.settings, reread()),
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, supervision.reload)
    try:
        await supervision.run()
    except Exception:
        _log.exception("the service manager is told nothing any more")
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


async def _serve(settings: config.Settings, reread: Callable[[], config.Settings]) -> None:
    from appliance.http.app import create_app
    from appliance.http.server import Server
    from appliance.observe import telemetry_of
    from appliance.service import Appliance
    from appliance.store.lock import make_data_dir

    notifier, given = systemd.Notifier(), systemd.listeners()  # before a child is started: they are not for it
    make_data_dir(settings.data_path)
    appliance = Appliance(settings)
    telemetry = telemetry_of(appliance)
    app = create_app(appliance, loading=True, telemetry=telemetry)
    # Bind first: a port in use is told at once, before a model is loaded. Serve then: health is asked meanwhile.
    with Server.bind(settings, given) as server:
        if telemetry is not None:
            telemetry.start()
        serving = asyncio.create_task(server.run(app))
        telling = asyncio.create_task(_tell(notifier, appliance, app.lifecycle, server.socket, reread))
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
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            if telemetry is not None:
                await asyncio.to_thread(telemetry.stop)
            await appliance.close()
