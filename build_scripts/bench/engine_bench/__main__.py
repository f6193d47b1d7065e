"""Owns the command line of `build_scripts/bench/engine`.

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

from .command import Bench, Options
from .plans import KEYS, OVERHEAD_LIMIT, PLANS, tuning
from .sizes import SCALES

_ROUNDS = 5
_SCALES = {"pocket": "small", "bench-3b": "tiny"}
_WITHOUT = {"bench-3b": ("f",)}  # random weights quote nothing


def keys_of(only: str, model: str) -> tuple[str, ...]:
    """The workloads named by `only` ("a,c"; "b" is all that begin so); "": all that make sense with the model.

    Raises:
        BadRequest: there is no such workload.
    """
    if not only:
        return tuple(key for key in KEYS if key not in _WITHOUT.get(model, ()))
    wanted: dict[str, None] = {}
    for name in only.split(","):
        found = [key for key in KEYS if key.startswith(name.strip() or "?")]
        if not found:
            raise BadRequest(f"There is no workload {name!r}.", remedy=f"Choose from {', '.join(KEYS)}.")
        wanted |= dict.fromkeys(found)
    return tuple(key for key in KEYS if key in wanted)


def main(arguments: list[str]) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="engine",
        description="Measure the engine against llama-server: the same model, threads and prompts, in turns.",
    )
    parser.add_argument("--model", choices=sorted(OVERHEAD_LIMIT, reverse=True), default="pocket")
    parser.add_argument("--only", default="", metavar="KEYS", help=f"of {', '.join(KEYS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one round at the smallest scale")
    parser.add_argument("--scale", choices=SCALES, help="default: small for pocket, tiny for bench-3b")
    parser.add_argument("--rounds", type=int, help=f"default: {_ROUNDS}; with --quick 1")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine; default: all cores"
    )
    parser.add_argument("--tune", action="store_true", help="instead compare what llama-server's options do")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--record", action="store_true", help="keep the results and write RESULTS.md")
    parser.add_argument(
        "--peer", type=Path, help="a llama-server instead of the one that build_scripts/bench/peer builds"
    )
    given = parser.parse_args(arguments)
    if given.tune and given.record:
        parser.error("--tune measures no results to --record")

    def run() -> None:
        keys = keys_of(given.only, given.model)
        if given.tune and (without := [key for key in keys if key not in PLANS or not tuning(PLANS[key])]):
            parser.error(f"--tune: llama-server is not measured in {', '.join(without)}; name others with --only")
        options = Options(
            command=shlex.join(["build_scripts/bench/engine", *arguments]),
            model=given.model,
            keys=keys,
            scale=given.scale or ("tiny" if given.quick else _SCALES[given.model]),
            rounds=max(1, given.rounds or (1 if given.quick else _ROUNDS)),
            threads=given.threads,
            tune=given.tune,
            json=given.json,
            record=given.record,
            peer=given.peer,
        )
        Bench(options).run()

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
