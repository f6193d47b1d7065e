"""Owns `appliance jobs`.

Must not know how jobs are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance.cli import output
from appliance.cli.root import Invocation
from appliance.cli.target import reach
from appliance.http.ports import Library
from appliance.store.jobs import STATES, Job

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
STYLES = {"indexed": "green", "failed": "red", "cancelled": "yellow"}


@click.group()
def jobs() -> None:
    """Show documents on their way in, cancel them, and try again what failed."""


@jobs.command("list")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only these; may be repeated.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="The newest so many.")
@json_option
@click.pass_obj
def list_jobs(invocation: Invocation, states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List jobs, the newest first."""

    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            chosen = tuple(state for state in STATES if not states or state in states)
            found, counts, _ = await target.jobs(chosen, limit=limit)
        if as_json:
            output.as_json({"jobs": found, "counts": counts})
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("id", "state", "collection", "document", "passages", "tries", "changed (UTC)", "note"):
            table.add_column(column, overflow="fold")
        for job in found:
            style = STYLES.get(job.state, "dim")
            table.add_row(
                str(job.id),
                f"[{style}]{job.state}[/]",
                escape(job.collection),
                escape(job.name),
                _passages(job),
                str(job.attempts),
                job.updated_at[:19].replace("T", " "),
                escape(job.reason),
            )
        Console().print(table)
        click.echo(", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no jobs")

    asyncio.run(run())


@jobs.command("show")
@click.argument("job_id", type=int)
@json_option
@click.pass_obj
def show_job(invocation: Invocation, job_id: int, as_json: bool) -> None:
    """Show job JOB_ID."""
    _with_job(invocation, lambda target: target.job(job_id), as_json)


@jobs.command("cancel")
@click.argument("job_id", type=int)
@json_option
@click.pass_obj
def cancel_job(invocation: Invocation, job_id: int, as_json: bool) -> None:
    """End job JOB_ID; nothing of it is stored when this returns."""
    _with_job(invocation, lambda target: target.cancel_job(job_id), as_json)


@jobs.command("retry")
@click.argument("job_id", type=int)
@json_option
@click.pass_obj
def retry_job(invocation: Invocation, job_id: int, as_json: bool) -> None:
    """Queue the failed job JOB_ID again; it is done when the service runs."""
    _with_job(invocation, lambda target: target.retry_job(job_id), as_json)


def _with_job(invocation: Invocation, ask: Callable[[Library], Awaitable[Job]], as_json: bool) -> None:
    async def run() -> None:
        async with reach(invocation.settings(), needs="store") as target:
            job = await ask(target)
        if as_json:
            output.as_json(job)
            return
        for name, value in msgspec.structs.asdict(job).items():
            if value not in (None, ""):
                click.echo(f"{name:>12}  {value}")

    asyncio.run(run())


def _passages(job: Job) -> str:
    if job.state == "embedding":
        return f"{job.embedded}/{job.chunks}"
    return str(job.chunks) if job.chunks else ""
