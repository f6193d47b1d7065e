"""Owns the command line of `build_scripts/bench/recall`.

Must not know what is measured, only its names.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Collection

from appliance.errors import BadRequest
from build_scripts.bench._lib.ending import exit_code

from .command import PARTS, Bench, Options
from .scales import SCALES
from .sides import all_sides


def chosen(names: str, known: Collection[str], what: str) -> tuple[str, ...]:
    """Those of `known` that `names` ("a,b"; "" for all) lists, in the order of `known`.

    Raises:
        BadRequest: one is not known.
    """
    wanted = [name.strip() for name in names.split(",")] if names else list(known)
    for name in wanted:
        if name not in known:
            raise BadRequest(f"There is no {what} {name!r}.", remedy=f"Choose from {', '.join(known)}.")
    return tuple(name for name in known if name in wanted)


def main(arguments: list[str]) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(
        prog="recall",
        description="Measure our vector search against others, whole searches, and searches beside writes.",
    )
    parser.add_argument("--scale", choices=SCALES, default="tiny", help="number of passages; default: tiny")
    parser.add_argument("--only", default="", metavar="PARTS", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--sides", default="", metavar="KEYS", help=f"of {', '.join(all_sides())}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--threads", type=int, default=1, help="of builds; searches have one; default: 1")
    parser.add_argument("--build", action="store_true", help="only build what is missing; can be stopped at any time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--record", action="store_true", help="keep the results and write RESULTS.md")
    given = parser.parse_args(arguments)
    if given.record and (given.build or given.sides):
        parser.error("--record is for all sides, measured")

    def run() -> None:
        options = Options(
            command=shlex.join(["build_scripts/bench/recall", *arguments]),
            scale=SCALES[given.scale],
            parts=chosen(given.only, PARTS, "part"),
            sides=chosen(given.sides, all_sides(), "side"),
            rounds=max(1, given.rounds),
            threads=max(1, given.threads),
            build_only=given.build,
            json=given.json,
            record=given.record,
        )
        Bench(options).run()

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
