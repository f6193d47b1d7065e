"""Owns how results look on a terminal and as `--json`.

Must not know where they come from.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import click
import msgspec

from appliance.answer.types import Report, Source
from appliance.retrieval.types import Explained, Passage


def as_json(value: object) -> None:
    """Write `value` as one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def place(page: int | None, heading: str) -> str:
    """Where in a document: page and heading, as far as they are known."""
    parts = [f"p. {page}" if page is not None else "", heading]
    return ", ".join(part for part in parts if part)


def sources(found: Sequence[Source]) -> None:
    """The numbered list of sources below an answer."""
    if found:
        click.echo(click.style("Sources", bold=True))
    for source in found:
        where = place(source.page, source.heading)
        click.echo(f"  [{source.n}] {source.document}" + (f", {where}" if where else ""))


def times(timings_ms: Mapping[str, float]) -> str:
    """Stage times as one line, in milliseconds."""
    return " · ".join(f"{name} {ms:.0f} ms" for name, ms in timings_ms.items())


def report(result: Report) -> None:
    """What is told below an answer: sources, degradations, cuts, times."""
    sources(result.sources)
    for line in result.degraded:
        click.echo(click.style(f"  degraded: {line}", fg="yellow"))
    for line in result.prompt.cut:
        click.echo(click.style(f"  cut: {line}", fg="yellow"))
    click.echo(click.style(f"  {times(result.timings_ms)}", dim=True))


def passage(number: int, found: Passage, *, explain: bool) -> None:
    """One search result."""
    where = place(found.page_first, found.heading)
    click.echo(click.style(f"[{number}] {found.document}", bold=True) + (f", {where}" if where else ""))
    if explain:
        scores = {
            "score": found.score,
            "lexical": found.scores.lexical,
            "dense": found.scores.dense,
            "fused": found.scores.fused,
            "rerank": found.scores.rerank,
        }
        listed = ("-" if value is None else f"{value:.3f}" for value in scores.values())
        click.echo("    " + "  ".join(f"{name} {text}" for name, text in zip(scores, listed, strict=True)))
    text = " ".join(found.text.split())
    click.echo(f"    {text[:300]}{'…' if len(text) > 300 else ''}")
    if found.duplicates:
        also = ", ".join(dict.fromkeys(same.document for same in found.duplicates))
        click.echo(click.style(f"    the same in: {also}", dim=True))


def explained(found: Explained) -> None:
    """What a search did, a line for each part."""
    click.echo(f"recall target {found.recall} · {found.lexical} by words, {found.candidates} candidates")
    if found.documents is not None:
        click.echo(f"  filters let {found.documents} documents through")
    click.echo("  terms: " + " ".join(f"{term}^{weight:.2g}" for term, weight in found.terms.items()))
    for part in found.dense:
        how = "exact" if part.method == "exact" else f"graph, ef {part.ef}"
        click.echo(f"  {part.part}: {part.vectors} vectors, {how}, {part.rescored} rescored, {part.ms:.1f} ms")


def terminal() -> bool:
    """True when a person is looking at standard output."""
    return sys.stdout.isatty()
