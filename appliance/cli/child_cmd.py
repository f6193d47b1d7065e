"""Owns the entry points of the child processes; not for people.

Must not know what the children do.
"""

from __future__ import annotations

import click


@click.command(hidden=True)
@click.argument("arguments", nargs=-1)
def engine(arguments: tuple[str, ...]) -> None:
    """Run the generation engine on an inherited socket."""
    from appliance.engine.process import main

    main(arguments)


@click.command("parse-worker", hidden=True)
def parse_worker() -> None:
    """Read documents from standard input until it closes."""
    from appliance.documents.worker import main

    main()
