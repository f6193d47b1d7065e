"""Owns one benchmark from beginning to end: what is measured, in which order, and where the results go.

Must not know how a side scores or how results are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from appliance.config import load
from appliance.errors import Unavailable
from appliance.packs import PackStore, load_manifest
from build_scripts.bench._lib import record
from build_scripts.bench._lib.conditions import conditions, say, warn_if_busy
from build_scripts.bench._lib.tables import number

from . import memory, report
from .forms import Forms
from .results import Measured, MemoryMeasured, Results, merge
from .tasks import Side, Tasks

PACK = "pocket"
MEMORY = "memory"
KEYS = ("pairs", "mixed", "batch", "batch-long", "callers", "products", "agreement", MEMORY)
_CALLS = (50, 1000)  # of the memory's first figure and of its last
_QUICK_CALLS = (20, 100)
_MOST_WORDS = 300  # of a passage there: more than the model reads


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    command: str
    cache: Path
    keys: Sequence[str]
    rounds: int
    threads: int
    quick: bool = False
    json: bool = False
    record: bool = False


class Bench:
    """A prepared benchmark.

    Raises:
        ApplianceError: the model, or what its other forms are made of, is not to be had.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        manifest = load_manifest()
        store = PackStore(Path(load().models_dir), manifest)
        store.pull(PACK, say)
        spec = store.resolve(PACK).reranker
        if spec is None:
            raise Unavailable(f"The pack {PACK} has no reranker.")
        forms = Forms(options.cache, manifest, spec, say)
        self._models_dir = store.models_dir
        self._tasks = Tasks(spec, forms, options.threads, quick=options.quick)
        self._conditions = conditions(options.command, options.threads, ("onnxruntime", "tokenizers"))

    def run(self) -> Results:
        """Measure everything; print and record it as soon as it is there.

        Raises:
            ApplianceError: a model failed.
        """
        warn_if_busy()
        everything = Results()
        for key in self._options.keys:
            measured = Results(memory=self._memory()) if key == MEMORY else Results({key: self._task(key)})
            everything = merge(everything, measured)
            if self._options.record:
                _record(measured)
            if not self._options.json:
                print(report.text(measured), flush=True)
        if self._options.json:
            print(msgspec.json.format(msgspec.json.encode(everything), indent=1).decode())
        return everything

    def _task(self, key: str) -> Measured:
        task = self._tasks.makers[key]()
        if task.warm:
            task.warm()
        elif not task.once:
            for measure in task.sides.values():
                measure()
        rounds = in_turns(key, task.sides, 1 if task.once else self._options.rounds)
        return Measured(task.title, task.unit, self._conditions, rounds, task.goals, task.note)

    def _memory(self) -> MemoryMeasured:
        first, calls = _QUICK_CALLS if self._options.quick else _CALLS
        say(f"{MEMORY}: {calls} calls")
        return MemoryMeasured(self._conditions, memory.measure(self._models_dir, first, calls, _MOST_WORDS))


def in_turns(key: str, sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    """A figure of each side in each round; each round begins with the next side, since being first may matter."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            figures[name].append(sides[name]())
        told = ", ".join(f"{name} {number(values[-1])}" for name, values in figures.items())
        say(f"{key} {turn + 1}/{rounds}: {told}")
    return figures


def _record(measured: Results) -> None:
    path = record.RESULTS / "rerank.json"
    everything = merge(record.read(path, Results) or Results(), measured)
    everything.tasks = {key: everything.tasks[key] for key in KEYS if key in everything.tasks}
    record.write(path, everything)
    record.write_section("Rerank", report.text(everything))
