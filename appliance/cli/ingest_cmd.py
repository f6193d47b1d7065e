"""Owns `appliance ingest`: progress while it runs, a table of what became of each file.

Must not know how documents are read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from appliance.cli import output
from appliance.cli.filters import attributes_of
from appliance.cli.given import TEXT
from appliance.cli.root import Invocation
from appliance.cli.target import reach
from appliance.documents.ingest import Outcome, read_or_say
from appliance.documents.walk import FoundFile, find_files
from appliance.http.ports import DEFAULT_COLLECTION, Library
from appliance.store.attributes import Attributes
from appliance.store.rows import check_name

STYLES = {"added": "green", "replaced": "green", "failed": "red", "skipped": "yellow"}


class Summary(msgspec.Struct, frozen=True):
    """What `ingest --json` prints."""

    collection: str
    counts: dict[str, int]
    outcomes: Sequence[Outcome]


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "--collection", type=TEXT, default=DEFAULT_COLLECTION, show_default=True, help="Where to put the documents."
)
@click.option(
    "--attribute", "attributes", type=TEXT, multiple=True, metavar="KEY=VALUE", help="For filters; replaces the others."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def ingest(
    invocation: Invocation, paths: tuple[str, ...], collection: str, attributes: tuple[str, ...], as_json: bool
) -> int:
    """Add files and folders PATHS; unchanged files are skipped, changed ones replaced.

    Ends with exit code 1 when a file could not be read; the others are added all the same.
    """
    check_name(collection)
    wanted = attributes_of(attributes)
    settings = invocation.settings()

    async def run() -> list[Outcome]:
        files = await asyncio.to_thread(lambda: list(find_files(paths)))
        async with reach(settings, needs="store") as target:
            return await _ingest(target, files, collection, wanted, settings.documents.max_file_bytes)

    outcomes = asyncio.run(run())
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    if as_json:
        output.as_json(Summary(collection, counts, outcomes))
    else:
        _show(outcomes, counts, collection)
    return 1 if counts.get("failed") else 0


async def _ingest(
    target: Library, files: Sequence[FoundFile], collection: str, wanted: Attributes | None, most_bytes: int
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    # On standard error, so that `--json` and pipes get the result alone.
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("reading", total=len(files))
        for found in files:
            progress.update(task, description=escape(found.name[:40]))
            outcomes.append(await _ingest_one(target, found, collection, wanted, most_bytes))
            progress.advance(task)
    return outcomes


async def _ingest_one(
    target: Library, found: FoundFile, collection: str, wanted: Attributes | None, most_bytes: int
) -> Outcome:
    data = await asyncio.to_thread(read_or_say, found, most_bytes)
    if isinstance(data, Outcome):
        return data
    return await target.ingest(collection, found.source, found.name, data, wanted)


def _show(outcomes: Sequence[Outcome], counts: dict[str, int], collection: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "document", "passages", "seconds", "note"):
        table.add_column(column, overflow="fold")
    for outcome in outcomes:
        style = STYLES.get(outcome.status, "dim")
        note = outcome.reason or _losses(outcome)
        name = outcome.document.name if outcome.document else outcome.source
        chunks = str(outcome.chunks) if outcome.document else ""
        # Text, not markup: file names may hold brackets.
        table.add_row(Text(outcome.status, style), Text(name), chunks, f"{outcome.seconds:.1f}", Text(note))
    Console().print(table)
    total = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing to do"
    click.echo(f"{total} in collection {collection}")


def _losses(outcome: Outcome) -> str:
    """What was lost, counted by kind; `documents show` has all of it."""
    kinds: dict[str, int] = {}
    for loss in outcome.losses:
        kinds[loss.kind] = kinds.get(loss.kind, 0) + 1
    listed = ", ".join(f"{kind} ({count})" if count > 1 else kind for kind, count in kinds.items())
    return f"lost: {listed}" if listed else ""
