"""Owns one benchmark from beginning to end: what is measured, in which order, and where the results go.

Must not know how one engine is asked or how a figure is computed.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from appliance.config import EngineSettings, load
from appliance.errors import Unavailable
from appliance.packs import PackStore, load_manifest
from build_scripts.bench._lib import record
from build_scripts.bench._lib.conditions import conditions, say, warn_if_busy

from . import report, results
from .answers import Engine
from .drive import Run, measure
from .measure import Metrics, agreement, metrics
from .ours import Ours
from .overhead import measure_overhead
from .peer import Peer
from .plans import OVERHEAD, PLANS, Column, tuning
from .sizes import SCALES, Size
from .tokens import Tokenizer
from .workloads import Workload, build


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    command: str
    model: str
    keys: Sequence[str]
    scale: str
    rounds: int
    threads: int
    tune: bool = False
    json: bool = False
    record: bool = False
    peer: Path | None = None


class Bench:
    """A prepared benchmark: model, peer and machine.

    Raises:
        ApplianceError: the model or llama-server is not to be had.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        say(f"Preparing the model {options.model}")
        store = PackStore(Path(load().models_dir), load_manifest())
        store.pull(options.model, say)
        self._model = store.resolve(options.model).generator.path
        self._tokenizer = Tokenizer(self._model)
        self._ends = self._tokenizer.ends()
        self._peer = Path()
        if options.tune or any(_has_peer(key) for key in options.keys):
            self._peer = options.peer or _built_peer()
        self._conditions = conditions(options.command, options.threads, ("llama-cpp-python",), options.scale)

    def run(self) -> None:
        """Measure everything; print and record it as soon as it is there.

        Raises:
            ApplianceError: an engine failed.
        """
        warn_if_busy()
        all_measured = results.Results(self._options.model)
        for key in self._options.keys:
            measured = results.Results(self._options.model)
            if key == OVERHEAD:
                measured.overhead = self._overhead(SCALES[self._options.scale][key])
            else:
                measured.workloads[key] = self._workload(key, SCALES[self._options.scale][key])
            all_measured = results.merge(all_measured, measured)
            if self._options.record:
                self._record(measured)
            if not self._options.json:
                print(report.results_text(measured), flush=True)
        if self._options.json:
            print(msgspec.json.format(msgspec.json.encode(all_measured), indent=1).decode())

    def _workload(self, key: str, size: Size) -> results.Measured:
        plan = PLANS[key]
        columns = tuning(plan) if self._options.tune else plan.columns
        workloads = {column.order: build(key, size, column.order) for column in columns}
        rounds: dict[str, list[Metrics]] = {column.name: [] for column in columns}
        settings: dict[str, str] = {}
        same: dict[str, float | None] = {}
        for turn in range(self._options.rounds):
            first: Run | None = None
            for column in columns:
                workload = workloads[column.order]
                engine, settings[column.name] = self._engine(column, workload, size)
                made = _in_a_loop(measure(engine, workload))
                figures = metrics(made)
                rounds[column.name].append(figures)
                say(
                    f"{key} {turn + 1}/{self._options.rounds} {column.name}: {figures.tokens_per_s:.1f} tokens/s, "
                    f"first token {figures.ttft_p50_ms:.0f} ms, {figures.span_s:.1f} s"
                )
                if first is None:
                    first = made
                elif turn == 0:
                    asked = len(workload.requests)
                    comparable = column.order == columns[0].order
                    same[column.name] = agreement(first.answers[:asked], made.answers[:asked]) if comparable else None
        return results.Measured(plan.title, self._conditions, settings, rounds, same)

    def _engine(self, column: Column, workload: Workload, size: Size) -> tuple[Engine, str]:
        """An engine, and in words how it is set up."""
        sequences = workload.in_flight + len(workload.loops)
        threads = self._options.threads
        if column.ours:
            engine = EngineSettings(
                kv_tokens=size.kv,
                max_sequences=sequences,
                threads=threads,
                speculation=column.speculation,
                kv_type=column.kv_type,
            )
            return Ours(self._model, engine, self._ends), _told(engine)
        options = ("-c", str(size.kv), "-np", str(sequences), *column.options)
        return Peer(self._peer, self._model, options, threads, self._tokenizer), " ".join(("llama-server", *options))

    def _overhead(self, size: Size) -> results.OverheadMeasured:
        # Prompts are read as fast as can be: only what comes afterwards is measured.
        settings = EngineSettings(
            kv_tokens=size.kv, max_sequences=size.users, threads=self._options.threads, itl_target_ms=1e5
        )
        rounds = []
        for turn in range(self._options.rounds):
            made = measure_overhead(self._model, settings, self._ends, size)
            rounds.append(made)
            say(f"{OVERHEAD} {turn + 1}/{self._options.rounds}: {100 * made.share:.2f} % of {made.step_ms:.1f} ms")
        return results.OverheadMeasured(self._conditions, rounds)

    def _record(self, measured: results.Results) -> None:
        path = record.RESULTS / f"{measured.model}.json"
        before = record.read(path, results.Results) or results.Results(measured.model)
        everything = results.merge(before, measured)
        record.write(path, everything)
        record.write_section(measured.model, report.results_text(everything))


def _has_peer(key: str) -> bool:
    return key != OVERHEAD and not all(column.ours for column in PLANS[key].columns)


def _built_peer() -> Path:
    built = subprocess.run([str(record.BENCH / "peer")], stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        raise Unavailable("llama-server is not built.", remedy="See what build_scripts/bench/peer says.")
    return Path(built.stdout.splitlines()[-1])


def _told(settings: EngineSettings) -> str:
    """What differs from the defaults, but for the threads."""
    defaults = EngineSettings()
    names = (field.name for field in msgspec.structs.fields(EngineSettings) if field.name != "threads")
    changed = [name for name in names if getattr(settings, name) != getattr(defaults, name)]
    return " ".join(f"engine.{name}={getattr(settings, name)}".lower() for name in changed) or "defaults"


def _in_a_loop(work: Coroutine[Any, Any, Run]) -> Run:
    """As the service runs: in uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
