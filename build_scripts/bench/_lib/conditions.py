"""Owns what a measurement depends on beside the code: machine, versions, command.

Must not know what is measured.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec

_BUSY = 0.3  # load of each core from which other programs disturb


class Conditions(msgspec.Struct, frozen=True):
    """Where, when and how something was measured."""

    date: str
    command: str
    scale: str
    processor: str
    cores: int
    threads: int  # of each side
    memory_gib: int
    system: str
    revision: str  # of this project
    libraries: dict[str, str]  # their versions

    def __str__(self) -> str:
        libraries = ", ".join(f"{name} {number}" for name, number in self.libraries.items())
        scale = f" (scale {self.scale})" if self.scale else ""
        return (
            f"{self.date}, revision {self.revision}, `{self.command}`{scale}; "
            f"{self.processor}, {self.threads} thread{'s' if self.threads > 1 else ''} on {self.cores} cores, "
            f"{self.memory_gib} GiB; {self.system}, {libraries}."
        )


def conditions(command: str, threads: int, packages: tuple[str, ...], scale: str = "") -> Conditions:
    """Of this machine, now; `packages` are those whose versions matter."""
    return Conditions(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        command=command,
        scale=scale,
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        threads=threads,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        revision=_revision(),
        libraries={package: version(package) for package in packages},
    )


def say(text: str) -> None:
    """Tell what is being done, apart from the results."""
    print(f"==> {text}", file=sys.stderr, flush=True)


def warn_if_busy() -> None:
    """Say so if other programs use this machine."""
    if os.getloadavg()[0] > _BUSY * len(os.sched_getaffinity(0)):
        say("Other programs are busy on this machine: the figures show what they leave over")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return named[1] if named else platform.machine()


def _revision() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
