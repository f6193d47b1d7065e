"""Owns `appliance ask` and `appliance search`.

Must not know how questions are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import get_args

import click

from appliance.answer.types import Delta, Finished, Message, Question, Report, Sources
from appliance.cli import output
from appliance.cli.filters import filter_of, filter_option, recall_option, target_of
from appliance.cli.given import TEXT
from appliance.cli.root import Invocation
from appliance.cli.target import reach
from appliance.http.ports import DEFAULT_COLLECTION, Library
from appliance.retrieval.types import Mode, SearchRequest


@click.command()
@click.argument("question", type=TEXT)
@click.option(
    "--collection", type=TEXT, default=DEFAULT_COLLECTION, show_default=True, help="The collection to answer from."
)
@click.option("--top-k", type=click.IntRange(1, 20), help="Passages to answer from, at most.")
@click.option("--max-tokens", type=click.IntRange(1), help="Length of the answer, at most.")
@filter_option
@recall_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def ask(
    invocation: Invocation,
    question: str,
    collection: str,
    top_k: int | None,
    max_tokens: int | None,
    filters: tuple[str, ...],
    recall: str | None,
    as_json: bool,
) -> None:
    """Answer QUESTION from the documents, with numbered citations."""
    asked = Question(
        messages=(Message("user", question),),
        collection=collection,
        request_id=uuid.uuid4().hex,
        top_k=top_k,
        max_tokens=max_tokens,
        filters=filter_of(filters),
        recall=target_of(recall),
    )

    async def run() -> None:
        async with reach(invocation.settings(), needs="answers") as target:
            text, result = await _stream(target, asked, show=not as_json)
        if as_json:
            output.as_json({"answer": text, "appliance": result})
        else:
            click.echo("\n")
            output.report(result)

    asyncio.run(run())


async def _stream(target: Library, question: Question, *, show: bool) -> tuple[str, Report]:
    pieces: list[str] = []
    result: Report | None = None
    async with contextlib.aclosing(target.ask(question)) as events:
        async for event in events:
            match event:
                case Delta():
                    pieces.append(event.text)
                    if show:
                        click.echo(event.text, nl=False)
                case Finished():
                    result = event.report
                case Sources():
                    pass  # listed below the answer, with the rest of the report
    assert result is not None  # noqa: S101  # a stream ends with `Finished` or raises
    return "".join(pieces), result


@click.command()
@click.argument("query", type=TEXT)
@click.option(
    "--collection", type=TEXT, default=DEFAULT_COLLECTION, show_default=True, help="The collection to search."
)
@click.option("--mode", type=click.Choice(get_args(Mode)), default="hybrid", show_default=True, help="How to search.")
@click.option("--top-k", type=click.IntRange(1, 50), default=10, show_default=True, help="Results at most.")
@click.option("--no-rerank", is_flag=True, help="Leave the cross-encoder out.")
@filter_option
@recall_option
@click.option("--explain", is_flag=True, help="Show the score of every stage, and what each part of the index did.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def search(
    invocation: Invocation,
    query: str,
    collection: str,
    mode: Mode,
    top_k: int,
    no_rerank: bool,
    filters: tuple[str, ...],
    recall: str | None,
    explain: bool,
    as_json: bool,
) -> None:
    """List the passages that answer QUERY best."""
    request = SearchRequest(
        query=query,
        collection=collection,
        mode=mode,
        rerank=not no_rerank,
        top_k=top_k,
        filters=filter_of(filters),
        recall=target_of(recall),
        explain=explain,
    )

    async def run() -> None:
        async with reach(invocation.settings(), needs="recall") as target:
            found = await target.search(request)
        if as_json:
            output.as_json(found)
            return
        for number, passage in enumerate(found.passages, start=1):
            output.passage(number, passage, explain=explain)
        if found.explained is not None:
            output.explained(found.explained)
        if not found.passages:
            click.echo("Nothing found.")
        for line in found.degraded:
            click.echo(click.style(f"degraded: {line}", fg="yellow"))
        click.echo(click.style(output.times(found.timings_ms), dim=True))

    asyncio.run(run())
