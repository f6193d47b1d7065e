"""Owns the entry points of the child processes; not for people.

Must not know what the children do.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

# Where memory ends the kernel ends a child first: the engine is started again while questions get quotations, and a
# document that ends its reader is told as unreadable.
OOM_SCORE = 500


@click.command(hidden=True)
@click.argument("arguments", nargs=-1)
def engine(arguments: tuple[str, ...]) -> None:
    """Run the generation engine on an inherited socket."""
    _volunteer()
    from appliance.engine.process import main

    main(arguments)


@click.command("parse-worker", hidden=True)
def parse_worker() -> None:
    """Read documents from standard input until it closes."""
    _volunteer()
    from appliance.documents.worker import main

    main()


def _volunteer() -> None:
    """Be ended before the service when memory is short."""
    with contextlib.suppress(OSError):  # no /proc, or not Linux
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), "ascii")
