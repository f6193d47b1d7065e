"""Owns `appliance traces` and `appliance metrics`.

Must not know what spans and figures mean. Reads the file that the service keeps by itself: a slow request can be looked
at while the service hangs, and after it has ended.
"""

from __future__ import annotations

from datetime import datetime
from importlib.resources import files

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.cli import output
from appliance.cli.given import TEXT
from appliance.cli.root import Invocation
from appliance.errors import NotFound
from appliance.telemetry.records import Kind, SpanRecord, TraceRecord
from appliance.telemetry.store import FILE, TelemetryReader

_BAR_COLUMNS = 40
_COLOURS: dict[Kind, str] = {"ordinary": "green", "slow": "yellow", "failed": "red"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def traces() -> None:
    """Show where the time of requests and documents went."""


@traces.command("list")
@click.option("--slow", is_flag=True, help="Only those that took long.")
@click.option("--failed", is_flag=True, help="Only those that failed.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=30, show_default=True, help="How many at most.")
@json_option
@click.pass_obj
def list_traces(invocation: Invocation, slow: bool, failed: bool, limit: int, as_json: bool) -> None:
    """List traces, the newest first."""
    wanted: tuple[tuple[Kind, bool], ...] = (("slow", slow), ("failed", failed))
    kinds = [kind for kind, is_wanted in wanted if is_wanted]
    found = _kept(invocation).newest(kinds=kinds, limit=limit)
    if as_json:
        output.as_json(found)
        return
    if not found:
        click.echo("No traces are kept: nothing was asked yet, or telemetry.enabled is false.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, justify in (("id", "left"), ("began", "left"), ("ms", "right"), ("", "left"), ("what", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for trace in found:
        began = datetime.fromtimestamp(trace.started_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        kind = Text("" if trace.kind == "ordinary" else trace.kind, style=_COLOURS[trace.kind])
        what = f"{trace.name} {trace.status or ''}".rstrip()
        table.add_row(trace.id[:12], began, f"{trace.ms:,.1f}", kind, what)
    Console().print(table)


@traces.command("show")
@click.argument("name", metavar="ID", type=TEXT)
@json_option
@click.pass_obj
def show(invocation: Invocation, name: str, as_json: bool) -> None:
    """Show one trace as a waterfall: by its id (8 digits are enough) or the id of its request."""
    found = _kept(invocation).get(name)
    if found is None:
        raise NotFound(f"No trace {name!r} is kept.", remedy="`appliance traces list` shows those that are.")
    if as_json:
        output.as_json(found)
        return
    summary = found.summary
    console = Console()
    console.print(f"{summary.name}  {summary.status or ''}  {summary.ms:,.1f} ms  {summary.kind}", highlight=False)
    console.print(f"trace {summary.id}  request {summary.request_id or '–'}", style="dim", highlight=False)
    console.print(_waterfall(found))


@click.group()
def metrics() -> None:
    """Print what shows the service's figures."""


@metrics.command("dashboard")
def dashboard() -> None:
    """Print the Grafana dashboard; import it there, over a Prometheus that scrapes GET /metrics."""
    click.echo((files("appliance.telemetry") / "dashboard.json").read_text("utf-8"), nl=False)


def _kept(invocation: Invocation) -> TelemetryReader:
    return TelemetryReader(invocation.settings().data_path / FILE)


def _waterfall(trace: TraceRecord) -> Table:
    end_ms = max((span.start_ms + span.ms for span in trace.spans), default=0.0)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("span")
    table.add_column("ms", justify="right")
    table.add_column(f"0 … {end_ms:,.0f} ms", width=_BAR_COLUMNS, no_wrap=True)
    table.add_column("")
    for depth, span in trace.tree():
        name = Text("  " * depth + span.name, style="red" if span.error else "")
        told = [span.error] if span.error else []
        told += [f"{key.removeprefix('appliance.')}={_shown(value)}" for key, value in span.attributes.items()]
        table.add_row(name, f"{span.ms:,.2f}", bar(span, end_ms), Text(" ".join(told), style="dim"))
    return table


def bar(span: SpanRecord, end_ms: float) -> str:
    """Where a span lies between 0 and `end_ms`, in `_BAR_COLUMNS` characters; one at least is filled."""
    if end_ms <= 0:
        return "█"
    begin = min(_BAR_COLUMNS - 1, int(span.start_ms / end_ms * _BAR_COLUMNS))
    end = min(_BAR_COLUMNS, max(begin + 1, round((span.start_ms + span.ms) / end_ms * _BAR_COLUMNS)))
    return " " * begin + "█" * (end - begin)


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
