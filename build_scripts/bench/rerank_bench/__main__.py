"""Owns the command line of `build_scripts/bench/rerank`.

Must not know what is measured, only its names.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from appliance.errors import BadRequest
from build_scripts.bench._lib.ending import exit_code

from .command import KEYS, Bench, Options

_ROUNDS = 5


def cache_folder() -> Path:
    """Where the other forms of the model are kept between runs."""
    named = os.environ.get("APPLIANCE_CACHE_DIR")
    return (Path(named) if named else Path("~/.cache/appliance").expanduser()) / "rerank"


def keys_of(only: str) -> tuple[str, ...]:
    """The tasks named by `only`, in their order; "": all.

    Raises:
        BadRequest: there is no such task.
    """
    wanted = [name.strip() for name in only.split(",")] if only else list(KEYS)
    for name in wanted:
        if name not in KEYS:
            raise BadRequest(f"There is no task {name!r}.", remedy=f"Choose from {', '.join(KEYS)}.")
    return tuple(key for key in KEYS if key in wanted)


def main(arguments: list[str]) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="rerank",
        description="Measure the reranker against float32, FlashRank and other batches: the same weights, in turns.",
    )
    parser.add_argument("--only", default="", metavar="KEYS", help=f"of {', '.join(KEYS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one round of few pairs: a few minutes")
    parser.add_argument("--rounds", type=int, help=f"default: {_ROUNDS}; with --quick 1")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of ours; FlashRank takes one for each core"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--record", action="store_true", help="keep the results and write RESULTS.md")
    given = parser.parse_args(arguments)

    def run() -> None:
        options = Options(
            command=shlex.join(["build_scripts/bench/rerank", *arguments]),
            cache=cache_folder(),
            keys=keys_of(given.only),
            rounds=max(1, given.rounds or (1 if given.quick else _ROUNDS)),
            threads=given.threads,
            quick=given.quick,
            json=given.json,
            record=given.record,
        )
        Bench(options).run()

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
