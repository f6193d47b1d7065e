"""Owns the command line of `build_scripts/bench/telemetry`.

Must not know what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys

from build_scripts.bench._lib.conditions import conditions, warn_if_busy
from build_scripts.bench._lib.ending import exit_code

from .measure import measure, text

_ROUNDS, _SEARCHES = 10, 400
_QUICK_ROUNDS, _QUICK_SEARCHES = 4, 60


def main(arguments: list[str]) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="telemetry",
        description="Measure searches a second with telemetry on and off: one process, in turns.",
    )
    parser.add_argument("--quick", action="store_true", help="few rounds of few searches: a minute")
    parser.add_argument("--rounds", type=int, help=f"default: {_ROUNDS}; with --quick {_QUICK_ROUNDS}")
    given = parser.parse_args(arguments)

    def run() -> None:
        warn_if_busy()
        rounds = given.rounds or (_QUICK_ROUNDS if given.quick else _ROUNDS)
        searches = _QUICK_SEARCHES if given.quick else _SEARCHES
        figures = asyncio.run(measure(max(1, rounds), searches))
        print(text(figures))
        command = shlex.join(["build_scripts/bench/telemetry", *arguments])
        print(conditions(command, 1, ("prometheus-client", "onnxruntime")))

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
