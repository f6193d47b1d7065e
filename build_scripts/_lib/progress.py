"""Owns running one long command of pip with its progress on one line and its whole output in a log.

Must not know what is installed or why. Standard library only: it runs before anything is installed.

Run: `python progress.py --log FILE -- COMMAND...`; ends with the command's exit status.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

NINJA_STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] ")
PIP_STEP = re.compile(r"^\s*(Collecting|Downloading|Building wheel for|Installing collected packages:)\s*(\S*)")
NOISE = re.compile(r"^\s*$|^\s*(WARNING: Location|Looking in )|^\s*\[\d+/\d+\] ")
PLAIN_INTERVAL_S = 10.0
TERMINAL_INTERVAL_S = 0.5
KILL_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a command is busy with; `done` of `total` where it counts its work."""

    text: str
    done: int = 0
    total: int = 0


def step_of(line: str) -> Step | None:
    """The step that a line of pip's or ninja's output announces, if it does."""
    if counted := NINJA_STEP.match(line):
        return Step("compiling", int(counted[1]), int(counted[2]))
    if found := PIP_STEP.match(line):
        verb, what = found[1], found[2]
        if verb.startswith("Installing"):
            names = line.count(",") + 1
            return Step(f"unpacking {names} package{'s' if names > 1 else ''}")
        if verb == "Downloading":
            size = re.search(r"\([\d.]+ [kMG]?B\)", line)
            # From an index with full addresses: the file's name is enough.
            return Step(" ".join(["downloading", what.rpartition("/")[2], *([size[0]] if size else [])]))
        return Step(f"{'building' if verb.startswith('Building') else 'looking up'} {what}")
    return None


def clock(seconds: float) -> str:
    """`seconds` as m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def describe(step: Step, elapsed_s: float, compiling_s: float) -> str:
    """One line about `step`; the time left is guessed from the pace since the compile began."""
    if not step.total:
        return f"{step.text} ({clock(elapsed_s)})"
    line = f"{step.text} {step.done} of {step.total} ({clock(elapsed_s)}"
    if step.done >= step.total / 10:
        line += f", about {clock(compiling_s / step.done * (step.total - step.done))} left"
    return line + ")"


def telling(lines: Sequence[str], *, count: int = 15) -> list[str]:
    """The lines of a failed command's output that a person wants to see: what calls itself an error, else the end."""
    kept = [line.rstrip() for line in lines if not NOISE.match(line)]
    errors = [line for line in kept if re.search(r"\b(error|ERROR|fatal error|FAILED)\b:?", line)]
    return (errors or kept)[-count:]


class Reporter:
    """Shows the current step: one line that is redrawn on a terminal, else a line now and then."""

    def __init__(self, out: TextIO, *, terminal: bool) -> None:
        self._out = out
        self._terminal = terminal
        self._started = self._shown = time.monotonic()
        self._compiling_since = 0.0
        self._step = Step("starting")

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command was started."""
        return time.monotonic() - self._started

    @property
    def interval_s(self) -> float:
        """How often `tick` has something to do."""
        return TERMINAL_INTERVAL_S if self._terminal else PLAIN_INTERVAL_S

    def take(self, line: str) -> None:
        """Note what a line of output says."""
        step = step_of(line)
        if step is None:
            return
        if step.total and not self._step.total:
            self._compiling_since = time.monotonic()
        self._step = step
        self.tick()

    def tick(self) -> None:
        """Show the current step if the last time is long enough ago."""
        now = time.monotonic()
        if now - self._shown < self.interval_s:
            return
        self._shown = now
        text = describe(self._step, self.elapsed_s, now - self._compiling_since)
        if self._terminal:
            width = shutil.get_terminal_size().columns
            self._out.write(f"\r\x1b[K    {text}"[: width + 3])
        else:
            self._out.write(f"    {text}\n")
        self._out.flush()

    def close(self) -> None:
        """Leave the terminal's line empty."""
        if self._terminal:
            self._out.write("\r\x1b[K")
            self._out.flush()


class Stopped(BaseException):
    """This process was told to stop; `.args[0]` is the signal."""


def run(command: Sequence[str], log: Path, reporter: Reporter) -> int:
    """Run `command`, everything it prints going to `log`; returns its exit status.

    The command gets a process group of its own, so that a compile does not go on behind a stopped set-up.

    Raises:
        Stopped: a signal came; the whole group has ended.
        OSError: the command cannot be started or the log cannot be written.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb", buffering=0) as kept,  # to be read while the command runs
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101  # asked for above
        try:
            _follow(process.stdout, kept, reporter)
            return process.wait()
        except BaseException:
            _end_group(process)
            raise
        finally:
            reporter.close()


def _follow(output: IO[bytes], kept: FileIO, reporter: Reporter) -> None:
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if not selector.select(reporter.interval_s):
                reporter.tick()  # a single file may take a minute to compile
                continue
            data = os.read(output.fileno(), 65536)
            kept.write(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                reporter.take(line.decode(errors="replace"))
            if not data:
                return


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(KILL_AFTER_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command with its progress on one line.")
    parser.add_argument("--log", type=Path, required=True, help="file for everything that the command prints")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    reporter = Reporter(sys.stdout, terminal=sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
    try:
        status = run(options.command, options.log, reporter)
    except Stopped as stopped:
        return 128 + int(stopped.args[0])
    if status:
        for line in telling(options.log.read_text("utf-8", errors="replace").splitlines()):
            print(f"    {line[:300]}", file=sys.stderr)
        print(f"    The whole output is in {options.log}", file=sys.stderr)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
