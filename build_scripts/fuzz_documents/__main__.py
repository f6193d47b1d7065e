"""Owns the command line of `build_scripts/fuzz`.

Must not know what happens to a document.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .campaign import SETTINGS, Fate, Tally, run

_FILES = 2_400
_QUICK_FILES = 96
_SHOWN = 20
_TERMINAL_INTERVAL_S, _PLAIN_INTERVAL_S = 0.5, 10.0


def main(arguments: Sequence[str]) -> int:
    """Run the command; 1 when the program had a fault, else 0."""
    parser = argparse.ArgumentParser(
        prog="fuzz",
        description="Damage documents of every kind, and check that each is read, or refused with a reason, in time.",
    )
    parser.add_argument("--files", type=int, help=f"how many; default: {_FILES}")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same files")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="the one file of that number")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_FILES} files: some seconds")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write files there that met a fault or a crash")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    numbers = range(given.files or (_QUICK_FILES if given.quick else _FILES))
    if given.only is not None:
        numbers = range(given.only, given.only + 1)
    progress = Progress(len(numbers))

    def each(fate: Fate, data: bytes) -> None:
        progress.step(fate)
        if given.keep and (fate.fault or fate.unforeseen):
            given.keep.mkdir(parents=True, exist_ok=True)
            (given.keep / f"{given.seed}-{fate.number}-{fate.name}").write_bytes(data)

    tally = run(given.seed, numbers, max(1, given.workers), each, None)
    progress.end()
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(tally), indent=2).decode())
    else:
        show(tally, given.seed)
    return 1 if tally.faults or tally.worker_peak_bytes > SETTINGS.parse_memory_bytes else 0


class Progress:
    """One line on a terminal, one now and then elsewhere; on standard error."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._odd = 0
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._next = self._began + (0.0 if self._terminal else _PLAIN_INTERVAL_S)

    def step(self, fate: Fate) -> None:
        """One more is done."""
        self._done += 1
        self._odd += bool(fate.fault)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (_TERMINAL_INTERVAL_S if self._terminal else _PLAIN_INTERVAL_S)
            rate = self._done / (now - self._began or 1.0)
            left_s = (self._total - self._done) / rate
            text = f"{self._done} of {self._total} files, {rate:.0f}/s, {left_s:.0f} s left, {self._odd} faults"
            print(f"\r\033[K{text}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr)
            sys.stderr.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr)


def show(tally: Tally, seed: int) -> None:
    """Print what became of the files."""
    print(f"{'format':8}{'read':>8}{'refused':>9}{'faults':>8}")
    for kind, counts in sorted(tally.by_format.items()):
        print(f"{kind:8}{counts['read']:>8}{counts['refused']:>9}{counts['fault']:>8}")
    print(f"{'all':8}{tally.read:>8}{tally.refused:>9}{len(tally.faults):>8}")
    print(
        f"{tally.files} files in {tally.seconds:.0f} s; the slowest took {tally.slowest_s:.1f} s of "
        f"{SETTINGS.parse_timeout_s:g} s, the largest worker {tally.worker_peak_bytes >> 20} MB of "
        f"{SETTINGS.parse_memory_bytes >> 20} MB."
    )
    for title, fates in (("Faults", tally.faults), ("Refused for a reason that no reader foresaw", tally.unforeseen)):
        if fates:
            print(f"\n{title} ({len(fates)}); again with --seed {seed} --only NUMBER:")
            for fate in fates[:_SHOWN]:
                print(f"  {fate.number:>6}  {fate.name:8} {fate.fault or fate.reason}"[:200])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
