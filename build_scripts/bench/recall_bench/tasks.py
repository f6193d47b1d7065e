"""Owns what is done in a process of its own: each task as data, what comes of it, and how such a process is run.

Must not know how a task is done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.errors import Unavailable

from .memory import Memory

ROOT = Path(__file__).parents[3]


class Build(msgspec.Struct, frozen=True, tag=True):
    """Build a side's index of a data set."""

    side: str
    data: str
    folder: str  # to write to, or to go on in
    threads: int


class Tune(msgspec.Struct, frozen=True, tag=True):
    """Find the least effort of a side that reaches `wanted` on the tuning questions."""

    side: str
    data: str
    folder: str
    wanted: float


class Tuned(msgspec.Struct, frozen=True):
    """How each effort that was tried did; `effort` is the least that reached it, else the best."""

    effort: float
    recalls: dict[str, float]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Open a side's index and answer for the first time."""

    side: str
    data: str
    folder: str
    effort: float
    cold: bool  # with the files dropped from the page cache before


class Started(msgspec.Struct, frozen=True):
    """From nothing but the loaded library to the first answer, and the answers after it."""

    first_answer_ms: float
    next_ms: list[float]


class Search(msgspec.Struct, frozen=True, tag=True):
    """Open a side's index, answer all questions, one after another."""

    side: str
    data: str
    folder: str
    effort: float


class Searched(msgspec.Struct, frozen=True):
    """Each answer's time, and what they were worth."""

    times_ms: list[float]
    recall: float
    memory: Memory  # taken by the index


class BuildWhole(msgspec.Struct, frozen=True, tag=True):
    """Fill a store with passages and build its indexes."""

    data: str
    folder: str


class SearchWhole(msgspec.Struct, frozen=True, tag=True):
    """Open a filled store's indexes; ask in each mode."""

    data: str
    folder: str
    questions: int


class SearchedWhole(msgspec.Struct, frozen=True):
    """Times of searches of each mode, and of their stages where there are some."""

    open_ms: float
    times_ms: dict[str, list[float]]  # by mode
    stages_ms: dict[str, list[float]]  # of the mode hybrid
    memory: Memory


class Live(msgspec.Struct, frozen=True, tag=True):
    """Search a filled store, in turns with and without writes beside it."""

    data: str
    folder: str  # is changed
    seconds: float  # of each turn
    turns: int
    adds_per_s: int
    deletes_per_s: int


class Lived(msgspec.Struct, frozen=True):
    """Times of searches, turn by turn; and how fast was written."""

    quiet_ms: list[list[float]]
    writing_ms: list[list[float]]
    added_per_s: float
    deleted_per_s: float
    apply_ms: list[float]  # of each write, from the store to searchable


Task = Build | Tune | Start | Search | BuildWhole | SearchWhole | Live

T = TypeVar("T")


def run_task(task: Task, kind: type[T], *, threads: int = 1) -> T:
    """Do `task` in a process of its own, whose libraries use `threads` threads; what came of it.

    Raises:
        Unavailable: the process failed; it has said why.
    """
    pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    command = [sys.executable, "-m", f"{__package__}.child", msgspec.json.encode(task).decode()]
    environment = os.environ | pools | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise Unavailable(f"The task {type(task).__name__} failed.", remedy="See what it said above.")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)
