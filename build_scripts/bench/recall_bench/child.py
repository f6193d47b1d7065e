"""Owns the process that does one task: its argument is the task, its last line of output what came of it.

Must not know why.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from . import building
from .building import Built
from .data import Floats, Ids, K, data_of, recall
from .memory import memory_now
from .sides import Side, all_sides
from .tasks import Build, Search, Searched, Start, Started, Task, Tune, Tuned

_WARM_UP = 200  # questions, of those for tuning
_AFTER_START = 100


def build(task: Build) -> Built:
    """Build an index."""
    passages = data_of(task.data).passages()
    return building.build(_side(task.side, passages), passages, Path(task.folder), task.threads)


def tune(task: Tune) -> Tuned:
    """Try efforts from the least on."""
    data = data_of(task.data)
    side = _side(task.side, data.passages())
    questions, exact = data.tuning()
    side.open(Path(task.folder))
    recalls: dict[float, float] = {}
    for effort in all_sides()[task.side].efforts:
        search = side.searcher(K, effort)
        recalls[effort] = recall(np.stack([_padded(search(question)) for question in questions]), exact)
        if recalls[effort] >= task.wanted:
            break
    reached = [effort for effort, found in recalls.items() if found >= task.wanted]
    best = reached[0] if reached else max(recalls, key=lambda effort: (recalls[effort], -effort))
    return Tuned(best, {f"{effort:g}": found for effort, found in recalls.items()})


def start(task: Start) -> Started:
    """Open an index, from the disk if so wanted."""
    data = data_of(task.data)
    side = _side(task.side, data.passages())
    questions, _ = data.tuning()
    if task.cold:
        drop_from_page_cache(Path(task.folder))
    begin = time.perf_counter()
    side.open(Path(task.folder))
    search = side.searcher(K, task.effort)
    search(questions[0])
    first = time.perf_counter() - begin
    return Started(first * 1000, timed(search, questions[1 : 1 + _AFTER_START])[0])


def search(task: Search) -> Searched:
    """Answer the measured questions."""
    data = data_of(task.data)
    side = _side(task.side, data.passages())
    warm, _ = data.tuning()
    questions, exact = data.questions()
    before = memory_now()
    side.open(Path(task.folder))
    ask = side.searcher(K, task.effort)
    timed(ask, warm[:_WARM_UP])
    times, found = timed(ask, questions)
    after = memory_now()
    return Searched(times, recall(np.stack(found), exact), after - before)


def timed(search: Callable[[Floats], Ids], questions: Floats) -> tuple[list[float], list[Ids]]:
    """Ask one after another; milliseconds and answers of each."""
    times, found = [], []
    for question in questions:
        begin = time.perf_counter()
        ids = search(question)
        times.append((time.perf_counter() - begin) * 1000)
        found.append(_padded(ids))
    return times, found


def drop_from_page_cache(folder: Path) -> None:
    """Have what is in `folder` read from the disk next time (Linux)."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _side(key: str, passages: Floats) -> Side:
    """A side with its libraries loaded, so that neither time nor memory of that is counted."""
    spec = all_sides()[key]
    for module in spec.modules:
        importlib.import_module(module)
    return spec.make(*passages.shape)


def _padded(ids: Ids) -> Ids:
    """Exactly K ids; -1 where there are none."""
    return np.pad(ids[:K], (0, K - len(ids[:K])), constant_values=-1)


DOES: dict[type[Any], Callable[[Any], Any]] = {Build: build, Tune: tune, Start: start, Search: search}


def main(argument: str) -> int:
    """Do the task; print what came of it."""
    task = msgspec.json.decode(argument, type=Task)
    does = DOES
    if type(task) not in DOES:
        from . import whole  # brings all of recall with it, which weighs on the memory of a side

        does = whole.DOES
    print(msgspec.json.encode(does[type(task)](task)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
