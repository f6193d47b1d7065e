"""Owns the command line of `build_scripts/bench/quality`.

Must not know what is measured.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from build_scripts.bench._lib.ending import exit_code

from .command import Bench, Options

_DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
_QUICK = {"letters": 60_000, "questions": 20, "depth": 5}


def cache_folder() -> Path:
    """Where vectors and logits are kept between runs."""
    named = os.environ.get("APPLIANCE_CACHE_DIR")
    return (Path(named) if named else Path("~/.cache/appliance").expanduser()) / "quality"


def main(arguments: list[str]) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="quality", description="Measure how well each stage of recall ranks sets of questions with known answers."
    )
    parser.add_argument("--data", type=Path, default=_DATA, help="folder of the sets; default: ../shared/data")
    parser.add_argument("--only", default="", metavar="SETS", help="names of sets, with commas; default: all")
    parser.add_argument("--quick", action="store_true", help="few questions over small pools: a few minutes")
    parser.add_argument("--letters", type=int, help="of a pool at most; default: 400000")
    parser.add_argument("--questions", type=int, help="of a set at most; default: 150")
    parser.add_argument("--depth", type=int, help="candidates that are reranked; default: 10")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--record", action="store_true", help="keep the results and write RESULTS.md")
    given = parser.parse_args(arguments)
    sizes = {name: getattr(given, name) for name in _QUICK if getattr(given, name) is not None}

    def run() -> None:
        Bench.of_pack(
            Options(
                command=shlex.join(["build_scripts/bench/quality", *arguments]),
                data=given.data,
                cache=cache_folder(),
                only=tuple(name for name in given.only.split(",") if name),
                json=given.json,
                record=given.record,
                **((_QUICK if given.quick else {}) | sizes),
            )
        ).run()

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
