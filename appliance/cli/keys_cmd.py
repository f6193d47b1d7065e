"""Owns `appliance keys`.

Must not know how keys are kept or checked.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import get_args

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance.cli import output
from appliance.cli.given import TEXT
from appliance.cli.root import Invocation
from appliance.cli.target import reach
from appliance.errors import NotFound
from appliance.store.keys import MOST, NewKey, Scope

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

_SPAN = re.compile(r"([1-9]\d{0,5})([hd])")
_RATE = re.compile(r"([1-9]\d{0,6})/min")


class Expiry(click.ParamType[str]):
    """A span from now on, or a moment; as a moment."""

    name = "when"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The moment in ISO 8601; what is no span is left to be judged where keys are made."""
        found = _SPAN.fullmatch(value)
        if found is None:
            return value
        span = timedelta(hours=int(found[1])) if found[2] == "h" else timedelta(days=int(found[1]))
        return (datetime.now(UTC) + span).isoformat()


class Rate(click.ParamType[int]):
    """Requests a minute, as `60/min`."""

    name = "rate"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        found = _RATE.fullmatch(value)
        if found is None or int(found[1]) > MOST:
            self.fail(f"{value!r} is not a number of requests a minute, as in 60/min.", param, ctx)
        return int(found[1])


@click.group()
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command("create")
@click.option("--name", type=TEXT, required=True, help="Who or what will use it.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(get_args(Scope)),
    multiple=True,
    required=True,
    help="query: ask and search; ingest: change documents; admin: all. May be repeated.",
)
@click.option("--expires", type=Expiry(), help="When it ends: 90d, 12h, 2027-01-31. Without: never.")
@click.option("--rate", type=Rate(), metavar="N/min", help="Requests a minute. Without: no limit.")
@click.option("--concurrency", type=click.IntRange(1, MOST), metavar="N", help="Requests at once. Without: no limit.")
@json_option
@click.pass_obj
def create(
    invocation: Invocation,
    name: str,
    scopes: tuple[Scope, ...],
    expires: str | None,
    rate: int | None,
    concurrency: int | None,
    as_json: bool,
) -> None:
    """Make a key and print it, this once: only a hash of it is kept."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            made = await target.create_key(NewKey(name, scopes, expires, rate, concurrency))
        if as_json:
            output.as_json(made)
            return
        click.echo(made.secret)
        click.echo("Keep it now: it is not shown again.", err=True)

    asyncio.run(run())


@keys.command("list")
@json_option
@click.pass_obj
def list_keys(invocation: Invocation, as_json: bool) -> None:
    """List all keys, those that expired or were revoked too."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            found = await target.keys()
        if as_json:
            output.as_json(found)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("id", "name", "scopes", "state", "made (UTC)", "ends (UTC)", "a minute", "at once"):
            table.add_column(column, overflow="fold", no_wrap=column in ("id", "state"))
        for key in found:
            table.add_row(
                key.id,
                escape(key.name),
                ", ".join(key.scopes),
                key.state(),
                _short(key.created_at),
                _short(key.revoked_at or key.expires_at),
                str(key.rate_per_min or ""),
                str(key.concurrency or ""),
            )
        Console().print(table)

    asyncio.run(run())


@keys.command("revoke")
@click.argument("key", type=TEXT)
@json_option
@click.pass_obj
def revoke(invocation: Invocation, key: str, as_json: bool) -> None:
    """End KEY, an id or a name, for good; it opens nothing from now on."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            found = await target.keys()
            named = [one.id for one in found if one.name == key and one.revoked_at is None]
            if all(one.id != key for one in found) and not named:
                raise NotFound(f"There is no key {key!r}.", remedy="`appliance keys list` shows all of them.")
            ended = await target.revoke_key(named[0] if named else key)
        if as_json:
            output.as_json(ended)
        else:
            click.echo(f"Revoked key {ended.id} ({ended.name}).")

    asyncio.run(run())


def _short(moment: str | None) -> str:
    return "" if moment is None else moment[:16].replace("T", " ")
