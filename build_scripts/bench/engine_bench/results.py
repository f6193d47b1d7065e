"""Owns what a measurement leaves behind: figures with all that they depend on, as JSON.

Must not know how they were made or how they are shown.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import msgspec

from appliance.errors import BadRequest

from .measure import Metrics
from .overhead import Overhead


class Conditions(msgspec.Struct, frozen=True):
    """Where, when and how something was measured."""

    date: str
    command: str
    scale: str
    processor: str
    cores: int
    threads: int  # of each engine
    memory_gib: int
    system: str
    revision: str  # of this project
    llama_cpp_python: str


class Measured(msgspec.Struct, frozen=True):
    """One workload: the metrics of each round of each column, and how the column was set up."""

    title: str
    conditions: Conditions
    settings: dict[str, str]
    rounds: dict[str, list[Metrics]]
    same_text: dict[str, float | None]  # share of the first round's answers that are those of the first column


class OverheadMeasured(msgspec.Struct, frozen=True):
    """Our own time in a step, over rounds."""

    conditions: Conditions
    rounds: list[Overhead]


class Results(msgspec.Struct):
    """What was measured with one model, each workload when it was measured last."""

    model: str
    workloads: dict[str, Measured] = {}
    overhead: OverheadMeasured | None = None


def conditions(date: str, command: str, scale: str, threads: int) -> Conditions:
    """Of this machine, now."""
    return Conditions(
        date=date,
        command=command,
        scale=scale,
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        threads=threads,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        revision=_revision(),
        llama_cpp_python=version("llama-cpp-python"),
    )


def read(path: Path, model: str) -> Results:
    """The results in a file; empty ones where there is none.

    Raises:
        BadRequest: it holds something else.
    """
    if not path.exists():
        return Results(model)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{path} holds no results of this version: {error}.", remedy="Remove it.") from error


def write(path: Path, results: Results) -> None:
    """Write `results` for people to read changes in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def merge(old: Results, new: Results) -> Results:
    """The newer of each workload."""
    return Results(new.model, old.workloads | new.workloads, new.overhead or old.overhead)


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
