"""Owns `appliance cache`.

Must not know what is cached or how.
"""

from __future__ import annotations

import asyncio

import click
from rich.console import Console
from rich.table import Table

from appliance.cli import output
from appliance.cli.root import Invocation
from appliance.cli.target import reach

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def cache() -> None:
    """Show or delete what is kept of earlier answers."""


@cache.command("stats")
@json_option
@click.pass_obj
def stats(invocation: Invocation, as_json: bool) -> None:
    """Show what the caches hold, and how often they were of use since the service started."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            found = await target.cache_figures()
        if as_json:
            output.as_json(found)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("cache", "entries", "on disk", "in memory", "hits", "misses", "hit rate", "faults"):
            table.add_column(column, justify="left" if column == "cache" else "right")
        for name, figures in found.items():
            hits = figures.memory_hits + figures.disk_hits
            asked = hits + figures.misses
            table.add_row(
                name,
                str(max(figures.entries, figures.disk_entries)),
                _megabytes(figures.disk_bytes),
                _megabytes(figures.memory_bytes),
                str(hits),
                str(figures.misses),
                f"{hits / asked:.0%}" if asked else "–",
                str(figures.faults),
            )
        Console().print(table)

    asyncio.run(run())


@cache.command("clear")
@json_option
@click.pass_obj
def clear(invocation: Invocation, as_json: bool) -> None:
    """Delete all cached answers; documents stay."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            await target.clear_caches()
        if as_json:
            output.as_json({"cleared": True})
        else:
            click.echo("The caches are empty.")

    asyncio.run(run())


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
