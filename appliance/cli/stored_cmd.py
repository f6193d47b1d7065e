"""Owns `appliance collections` and `appliance documents`.

Must not know how things are stored.
"""

from __future__ import annotations

import asyncio

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance.cli import output
from appliance.cli.filters import target_of
from appliance.cli.given import TEXT
from appliance.cli.root import Invocation
from appliance.cli.target import reach
from appliance.errors import NotFound
from appliance.store.records import RECALL_TARGETS

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


@click.group()
def collections() -> None:
    """List, show or delete collections."""


@collections.command("list")
@json_option
@click.pass_obj
def list_collections(invocation: Invocation, as_json: bool) -> None:
    """List all collections."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            found = await target.collections()
        if as_json:
            output.as_json(found)
            return
        table = _table("collection", "documents", "passages", "recall")
        for collection in found:
            table.add_row(
                escape(collection.name),
                str(collection.documents),
                str(collection.chunks),
                str(collection.recall or "default"),
            )
        Console().print(table)

    asyncio.run(run())


@collections.command("show")
@click.argument("name", type=TEXT)
@json_option
@click.pass_obj
def show_collection(invocation: Invocation, name: str, as_json: bool) -> None:
    """List the documents of collection NAME."""
    _list_documents(invocation, name, as_json)


@collections.command("set")
@click.argument("name", type=TEXT)
@click.option(
    "--recall",
    required=True,
    type=click.Choice([*(str(target) for target in RECALL_TARGETS), "default"]),
    help="Share of the nearest passages that a search must find when it does not say.",
)
@json_option
@click.pass_obj
def set_collection(invocation: Invocation, name: str, recall: str, as_json: bool) -> None:
    """Set how closely collection NAME is searched."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            changed = await target.set_recall(name, target_of(recall))
        if as_json:
            output.as_json(changed)
        else:
            click.echo(f"Collection {changed.name}: recall {changed.recall or 'default'}.")

    asyncio.run(run())


@collections.command("delete")
@click.argument("name", type=TEXT)
@click.confirmation_option(prompt="Delete the collection with all its documents?")
@json_option
@click.pass_obj
def delete_collection(invocation: Invocation, name: str, as_json: bool) -> None:
    """Delete collection NAME with its documents."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            await target.delete_collection(name)
        if as_json:
            output.as_json({"deleted": name})
        else:
            click.echo(f"Deleted collection {name}.")

    asyncio.run(run())


@click.group()
def documents() -> None:
    """List, show or delete documents."""


@documents.command("list")
@click.option("--collection", type=TEXT, help="Only this collection.")
@json_option
@click.pass_obj
def list_documents(invocation: Invocation, collection: str | None, as_json: bool) -> None:
    """List documents."""
    _list_documents(invocation, collection, as_json)


def _list_documents(invocation: Invocation, collection: str | None, as_json: bool) -> None:
    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            found = await target.documents(collection)
        if as_json:
            output.as_json(found)
            return
        table = _table("id", "collection", "document", "pages", "passages", "added (UTC)")
        for document in found:
            pages = "" if document.pages is None else str(document.pages)
            table.add_row(
                str(document.id),
                document.collection,
                document.name,
                pages,
                str(document.chunks),
                document.added_at[:16].replace("T", " "),
            )
        Console().print(table)

    asyncio.run(run())


@documents.command("show")
@click.argument("document_id", type=int)
@json_option
@click.pass_obj
def show_document(invocation: Invocation, document_id: int, as_json: bool) -> None:
    """Show document DOCUMENT_ID and what was lost in reading it."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            found = [document for document in await target.documents(None) if document.id == document_id]
        if not found:
            raise NotFound(f"There is no document {document_id}.", remedy="`appliance documents list` shows all.")
        (document,) = found
        if as_json:
            output.as_json(document)
            return
        for name, value in (
            ("document", document.name),
            ("title", document.title),
            ("source", document.source),
            ("collection", document.collection),
            ("type", document.media_type + (f", {document.encoding}" if document.encoding else "")),
            ("pages", document.pages),
            ("passages", document.chunks),
            ("bytes", document.size_bytes),
            ("SHA-256", document.sha256),
            ("added", document.added_at),
        ):
            if value is not None:
                click.echo(f"{name:>10}  {value}")
        for key, given in document.attributes.items():
            click.echo(f"{'attribute':>10}  {key} = {given}")
        for loss in document.losses:
            page = "" if loss.page is None else f" (p. {loss.page})"
            click.echo(f"{'lost':>10}  {loss.kind}: {loss.detail}{page}")

    asyncio.run(run())


@documents.command("delete")
@click.argument("document_ids", type=int, nargs=-1, required=True)
@json_option
@click.pass_obj
def delete_documents(invocation: Invocation, document_ids: tuple[int, ...], as_json: bool) -> None:
    """Delete documents by id; they are gone from every index when this returns."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            for document_id in document_ids:
                await target.delete_document(document_id)
                if not as_json:
                    click.echo(f"Deleted document {document_id}.")
        if as_json:
            output.as_json({"deleted": document_ids})

    asyncio.run(run())
