"""Owns one measurement of recall from beginning to end.

Must not know how a figure is computed or shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build_scripts.bench._lib import record
from build_scripts.bench._lib.conditions import Conditions, conditions, say, warn_if_busy
from build_scripts.bench._lib.figures import percentile

from . import data, indexes, ours, report, results
from .building import Built
from .scales import Scale
from .sides import SideSpec, all_sides
from .tasks import (
    Build,
    BuildWhole,
    Live,
    Lived,
    Search,
    Searched,
    SearchedWhole,
    SearchWhole,
    Start,
    Started,
    Tune,
    Tuned,
    run_task,
)

PARTS = ("vectors", "whole", "live")
WANTED = 0.98
_PACKAGES = ("numpy", "hnswlib", "usearch", "faiss-cpu", "tantivy")
_STARTS = 2


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    command: str
    scale: Scale
    parts: Sequence[str] = PARTS
    sides: Sequence[str] = ()  # none: all
    rounds: int = 3
    threads: int = 1  # of builds
    build_only: bool = False
    json: bool = False
    record: bool = False


@dataclass(frozen=True, slots=True)
class _Prepared:
    key: str
    spec: SideSpec
    folder: Path
    built: Built
    tuned: Tuned


class Bench:
    """A measurement at one scale."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scale = options.scale
        self._conditions: Conditions = conditions(options.command, 1, _PACKAGES, self._scale.name)

    def run(self) -> None:
        """Build what is missing, measure, print and record each part as soon as it is there.

        Raises:
            ApplianceError: a task failed; another process is building the same.
        """
        made = data.mixed(self._scale.vectors, self._scale.questions)
        if self._options.build_only:
            self._build(made)
            return
        everything = results.Results(self._scale.name)
        for part in self._options.parts:
            measured = self._measure(part, made)
            everything = results.merge(everything, measured)
            if self._options.record:
                self._record(measured)
            if not self._options.json:
                print(report.results_text(measured), flush=True)
        if self._options.json:
            print(msgspec.json.format(msgspec.json.encode(everything), indent=1).decode())

    def _measure(self, part: str, made: data.VectorData) -> results.Results:
        name = self._scale.name
        match part:
            case "vectors":
                return results.Results(name, vectors=self._vectors(made))
            case "whole":
                return results.Results(name, whole=self._whole(made))
            case _:
                return results.Results(name, live=self._live(made))

    def _build(self, made: data.VectorData) -> None:
        if "vectors" in self._options.parts:
            for key, spec in self._chosen():
                self._prepared(made, key, spec)
        if {"whole", "live"} & set(self._options.parts):
            self._whole_built(made)

    def _chosen(self) -> list[tuple[str, SideSpec]]:
        return [(key, spec) for key, spec in all_sides().items() if key in (self._options.sides or all_sides())]

    def _built(self, made: data.VectorData, key: str, spec: SideSpec) -> tuple[Path, Built]:
        threads = self._options.threads

        def build(folder: Path) -> Built:
            say(f"Building {spec.title}")
            return run_task(Build(key, made.name, str(folder), threads), Built, threads=threads)

        return indexes.built(made, spec.version(), build)

    def _prepared(self, made: data.VectorData, key: str, spec: SideSpec) -> _Prepared:
        """A side with its index, set up; that does not depend on time, and so is done once for an index."""
        folder, spent = self._built(made, key, spec)
        file = folder / f"{key}-{WANTED:g}-{'-'.join(f'{effort:g}' for effort in spec.efforts)}.json"
        if not file.exists():
            tuned = run_task(Tune(key, made.name, str(folder), WANTED), Tuned)
            say(f"{spec.title}: recall {tuned.recalls} by {spec.effort_name}")
            file.write_bytes(msgspec.json.encode(tuned))
        return _Prepared(key, spec, folder, spent, msgspec.json.decode(file.read_bytes(), type=Tuned))

    def _vectors(self, made: data.VectorData) -> results.Vectors:
        prepared = [self._prepared(made, key, spec) for key, spec in self._chosen()]
        warn_if_busy()
        rounds: dict[str, list[results.Round]] = {one.key: [] for one in prepared}
        searched: dict[str, Searched] = {}
        for turn in range(self._options.rounds):
            for one in prepared:
                task = Search(one.key, made.name, str(one.folder), one.tuned.effort)
                found = searched[one.key] = run_task(task, Searched)
                made_round = results.Round(
                    percentile(found.times_ms, 0.5), percentile(found.times_ms, 0.99), found.recall
                )
                rounds[one.key].append(made_round)
                say(
                    f"{turn + 1}/{self._options.rounds} {one.spec.title}: recall {found.recall:.4f}, "
                    f"p50 {made_round.p50_ms:.3f} ms, p99 {made_round.p99_ms:.3f} ms"
                )
        sides = {
            one.key: results.SideMeasured(
                one.spec.title,
                one.spec.told(one.tuned.effort),
                one.tuned.recalls,
                rounds[one.key],
                searched[one.key].memory,
                one.built,
                self._start(made, one),
                sum(file.stat().st_size for file in one.folder.rglob("*") if file.is_file()) / 2**20,
            )
            for one in prepared
        }
        return results.Vectors(self._conditions, self._scale.vectors, self._scale.questions, WANTED, sides)

    def _start(self, made: data.VectorData, one: _Prepared) -> results.Start:
        def first(*, cold: bool) -> float:
            task = Start(one.key, made.name, str(one.folder), one.tuned.effort, cold)
            return run_task(task, Started).first_answer_ms

        return results.Start([first(cold=False) for _ in range(_STARTS)], [first(cold=True) for _ in range(_STARTS)])

    def _whole_built(self, made: data.VectorData) -> tuple[Path, Built]:
        def build(folder: Path) -> Built:
            say("Filling a store and building its indexes")
            return run_task(BuildWhole(made.name, str(folder)), Built)

        return indexes.built(made, f"whole-{ours.recall_version()}", build)

    def _whole(self, made: data.VectorData) -> results.Whole:
        folder, built = self._whole_built(made)
        warn_if_busy()
        found = []
        for turn in range(self._options.rounds):
            found.append(run_task(SearchWhole(made.name, str(folder), self._scale.whole_questions), SearchedWhole))
            hybrid = found[-1].times_ms["hybrid"]
            say(
                f"{turn + 1}/{self._options.rounds} whole recall: "
                f"p50 {percentile(hybrid, 0.5):.2f} ms, p99 {percentile(hybrid, 0.99):.2f} ms"
            )
        rounds = []
        for one in found:
            series = one.times_ms | {f"stage {stage}": times for stage, times in one.stages_ms.items()}
            rounds.append(
                results.WholeRound(
                    {name: percentile(times, 0.5) for name, times in series.items()},
                    {name: percentile(times, 0.99) for name, times in series.items()},
                )
            )
        return results.Whole(
            self._conditions,
            self._scale.vectors,
            self._scale.whole_questions,
            rounds,
            [one.open_ms for one in found],
            found[-1].memory,
            built,
        )

    def _live(self, made: data.VectorData) -> results.LiveMeasured:
        folder, _ = self._whole_built(made)
        warn_if_busy()
        task = Live(made.name, str(folder), self._scale.live_seconds, self._options.rounds, 100, 10)
        found = run_task(task, Lived)
        rounds = [
            results.LiveRound(
                percentile(quiet, 0.5), percentile(quiet, 0.99), percentile(writing, 0.5), percentile(writing, 0.99)
            )
            for quiet, writing in zip(found.quiet_ms, found.writing_ms, strict=True)
        ]
        return results.LiveMeasured(
            self._conditions,
            self._scale.vectors,
            rounds,
            found.added_per_s,
            found.deleted_per_s,
            percentile(found.apply_ms, 0.5),
            percentile(found.apply_ms, 0.99),
        )

    def _record(self, measured: results.Results) -> None:
        path = record.RESULTS / f"recall-{measured.scale}.json"
        before = record.read(path, results.Results) or results.Results(measured.scale)
        everything = results.merge(before, measured)
        record.write(path, everything)
        record.write_section(f"recall {measured.scale}", report.results_text(everything))
