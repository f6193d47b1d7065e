"""Owns `appliance models`: what people type about model packs and what they read.

Must not know where model files come from or how they are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from appliance.cli import output
from appliance.cli.given import TEXT
from appliance.cli.root import Invocation
from appliance.packs import FileStatus, PackStore, load_manifest

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
WORDS = {
    "ok": "verified",
    "missing": "missing",
    "wrong_size": "truncated or another file",
    "corrupt": "damaged",
    "unverified": "present",
}


class PackListing(msgspec.Struct, frozen=True):
    """One pack as `models list --json` shows it."""

    name: str
    description: str
    active: bool
    complete: bool  # every file is there and of the right size; `verify` hashes them
    files: Sequence[FileStatus]


class PackResult(msgspec.Struct, frozen=True):
    """What a command did to a pack, as `--json` shows it."""

    pack: str
    ok: bool
    files: Sequence[FileStatus]


@click.group()
def models() -> None:
    """List, fetch, verify and choose model packs."""


@models.command("list")
@json_option
@click.pass_obj
def list_packs(invocation: Invocation, as_json: bool) -> None:
    """List the packs and what of them is here."""
    store, chosen = _open(invocation)
    listings = []
    for name in store.names():
        files = store.status(name)
        complete = all(file.state == "unverified" for file in files)
        description = store.manifest.pack(name).description
        listings.append(PackListing(name, description, name == chosen, complete, files))
    if as_json:
        output.as_json(listings)
        return
    table = _table("", "pack", "here", "size", "description")
    for pack in listings:
        size = sum(file.expected_bytes or file.size_bytes for file in pack.files)
        here = "yes" if pack.complete else "no"
        table.add_row("*" if pack.active else "", pack.name, here, _megabytes(size), pack.description)
    Console().print(table)


@models.command("pull")
@click.argument("name", type=TEXT, required=False)
@json_option
@click.pass_obj
def pull(invocation: Invocation, name: str | None, as_json: bool) -> None:
    """Fetch or build pack NAME (the one in use if not given); goes on where an interrupted pull stopped."""
    store, chosen = _open(invocation)
    pack = name or chosen
    store.pull(pack, _progress)
    _finish(pack, store.verify(pack), as_json)


@models.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("name", type=TEXT, required=False)
@json_option
@click.pass_obj
def import_pack(invocation: Invocation, folder: Path, name: str | None, as_json: bool) -> None:
    """Take pack NAME (the one in use if not given) from FOLDER instead of the network."""
    store, chosen = _open(invocation)
    pack = name or chosen
    store.import_from(folder, pack, _progress)
    _finish(pack, store.verify(pack), as_json)


@models.command("verify")
@click.argument("name", type=TEXT, required=False)
@json_option
@click.pass_context
def verify(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """Hash every file of pack NAME (the one in use if not given); exit 1 if one is missing or wrong."""
    store, chosen = _open(ctx.obj)
    pack = name or chosen
    files = store.verify(pack)
    _finish(pack, files, as_json)
    bad = [file.file for file in files if file.state != "ok"]
    if bad:
        click.echo(f"Error: {', '.join(bad)}: run `appliance models pull {pack}`.", err=True)
        ctx.exit(1)


@models.command("use")
@click.argument("name", type=TEXT)
@json_option
@click.pass_obj
def use(invocation: Invocation, name: str, as_json: bool) -> None:
    """Make pack NAME the one in use; a running service takes it at its next start."""
    store, _ = _open(invocation)
    store.use(name)
    overridden = invocation.settings().models.pack
    if as_json:
        output.as_json({"active": overridden or name, "chosen": name})
        return
    click.echo(f"{name} is in use from the service's next start.")
    if overridden and overridden != name:
        click.echo(f"But the setting models.pack names {overridden!r}, and wins.", err=True)


def _open(invocation: Invocation) -> tuple[PackStore, str]:
    """The store, and the pack in use."""
    settings = invocation.settings()
    store = PackStore(settings.models_path, load_manifest())
    return store, settings.models.pack or store.active()


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _finish(pack: str, files: Sequence[FileStatus], as_json: bool) -> None:
    if as_json:
        output.as_json(PackResult(pack, all(file.state == "ok" for file in files), files))
        return
    table = _table("role", "file", "state", "size", "licence")
    for file in files:
        table.add_row(file.role, file.file, WORDS[file.state], _megabytes(file.size_bytes), file.licence)
    Console().print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes else "unknown"
