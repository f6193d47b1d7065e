"""The benchmark of recall: the same vectors each time, builds that go on where they stopped, what is made of times."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest, Unavailable
from build_scripts.bench._lib import record
from build_scripts.bench._lib.conditions import Conditions
from build_scripts.bench.recall_bench import (
    building,
    child,
    command,
    data,
    indexes,
    mixture,
    report,
    results,
    tasks,
    whole,
)
from build_scripts.bench.recall_bench.__main__ import chosen, main
from build_scripts.bench.recall_bench.building import Built
from build_scripts.bench.recall_bench.command import PARTS
from build_scripts.bench.recall_bench.data import Floats, Ids
from build_scripts.bench.recall_bench.faiss_sides import lists
from build_scripts.bench.recall_bench.memory import Memory, memory_now
from build_scripts.bench.recall_bench.scales import Scale
from build_scripts.bench.recall_bench.sides import Search, all_sides
from build_scripts.bench.recall_bench.texts import ZipfTexts

CONDITIONS = Conditions("2026-12-01", "recall", "tiny", "Some CPU", 2, 1, 24, "Linux", "abc", {"usearch": "2"})
N = 600


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_CACHE_DIR", str(tmp_path))


@pytest.fixture
def made() -> data.VectorData:
    return data.mixed(N, 40)


def passages_of(n: int) -> Floats:
    return np.concatenate(list(mixture.Mixture(n).passages()))


def test_vectors_are_the_same_each_time_and_questions_are_none_of_them() -> None:
    one, again = mixture.Mixture(300), mixture.Mixture(300)
    passages = passages_of(300)
    assert np.array_equal(passages, np.concatenate(list(again.passages())))
    np.testing.assert_allclose(np.linalg.norm(passages, axis=1), 1.0, atol=1e-5)
    measured, tuning = one.questions(50, kind=0), one.questions(50, kind=1)
    assert np.array_equal(measured, again.questions(50, kind=0))
    assert (measured @ tuning.T).max() < 0.999
    assert (measured @ passages.T).max() < 0.999


def test_vectors_lie_as_close_together_as_those_of_the_embedder() -> None:
    passages = passages_of(2000)
    cosines = (passages @ passages.T)[np.triu_indices(2000, 1)]
    assert 0.70 < cosines.mean() < 0.80
    assert 0.03 < cosines.std() < 0.07


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**16))
def test_nearest_is_what_sorting_everything_finds(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    passages, questions = (rng.integers(-2, 3, (count, 3)).astype(np.float32) for count in (n, 4))
    found = data.nearest(passages, questions, k)
    for question, rows in zip(questions, found, strict=True):
        scores = passages @ question
        assert len(set(rows.tolist())) == len(rows) == min(k, n)
        assert scores[rows].tolist() == sorted(scores.tolist(), reverse=True)[:k]


def test_nearest_of_many_blocks_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    passages, questions = passages_of(N), mixture.Mixture(N).questions(20, kind=0)
    whole_block = data.nearest(passages, questions, 10)
    monkeypatch.setattr(data, "_BLOCK", 7)
    assert np.array_equal(data.nearest(passages, questions, 10), whole_block)


def test_recall_counts_what_was_found() -> None:
    assert data.recall(np.array([[1, 2, -1], [5, 6, 7]]), np.array([[2, 3, 9], [7, 6, 5]])) == pytest.approx(4 / 6)


def test_data_is_made_once_and_whole(made: data.VectorData, monkeypatch: pytest.MonkeyPatch) -> None:
    questions, exact = made.questions()
    assert made.passages().shape == (N, mixture.DIM)
    assert exact.shape == (len(questions), data.K) == (40, 10)
    assert np.array_equal(exact, data.nearest(made.passages(), questions, data.K))
    monkeypatch.setattr(mixture, "Mixture", None)
    assert data.mixed(N, 40) == made == data.data_of(made.name)


class ListSide:
    """Keeps numbers of passages in a text file, and can be stopped."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.rows: list[int] = []
        self.finished = False

    def resume(self, passages: Floats, folder: Path, threads: int) -> int:
        file = folder / "rows"
        self.rows = [int(row) for row in file.read_text().split()] if file.exists() else []
        return len(self.rows)

    def add(self, first: int, vectors: Floats) -> None:
        if self.stop_at is not None and first >= self.stop_at:
            raise KeyboardInterrupt
        self.rows += range(first, first + len(vectors))

    def finish(self) -> None:
        self.finished = True

    def save(self, folder: Path) -> None:
        (folder / "rows").write_text(" ".join(map(str, self.rows)))

    def open(self, folder: Path) -> None:
        raise NotImplementedError

    def searcher(self, k: int, effort: float) -> Search:
        raise NotImplementedError

    def close(self) -> None:
        assert self.finished


@given(st.integers(1, 40), st.lists(st.integers(0, 40), max_size=4), st.booleans())
def test_a_build_that_is_stopped_goes_on_where_it_last_saved(
    tmp_path_factory: pytest.TempPathFactory, n: int, stops: list[int], saves: bool
) -> None:
    folder = tmp_path_factory.mktemp("index")
    passages = np.zeros((n, 2), np.float32)
    every_s = 0.0 if saves else 1e9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "_SLICE", 3)
        for stop in sorted(stop for stop in stops if stop < n - 2):
            with pytest.raises(KeyboardInterrupt):
                building.build(ListSide(stop), passages, folder, 1, saved_every_s=every_s)
        kept = len((folder / "rows").read_text().split()) if (folder / "rows").exists() else 0
        assert saves or kept == 0
        side = ListSide()
        spent = building.build(side, passages, folder, 1, saved_every_s=every_s)
    assert side.rows == list(range(n))
    assert (folder / "rows").read_text() == " ".join(map(str, range(n)))
    assert spent.wall_s > 0


def test_what_earlier_pieces_cost_is_added() -> None:
    spent = building.Meter(Built(100.0, 200.0, 1e6)).now()
    assert spent.cpu_s >= 100.0
    assert spent.wall_s > 200.0
    assert spent.peak_mib == 1e6


def test_an_index_is_built_once_and_one_that_failed_is_gone_on_with(made: data.VectorData) -> None:
    def fail(folder: Path) -> Built:
        (folder / "part").touch()
        raise KeyboardInterrupt

    def go_on(folder: Path) -> Built:
        assert (folder / "part").exists()
        return Built(cpu_s=3.0)

    def never(folder: Path) -> Built:
        raise AssertionError

    with pytest.raises(KeyboardInterrupt):
        indexes.built(made, "some-1", fail)
    folder, spent = indexes.built(made, "some-1", go_on)
    assert spent == Built(cpu_s=3.0)
    assert indexes.built(made, "some-1", never) == (folder, spent)


def test_two_processes_do_not_build_the_same(made: data.VectorData) -> None:
    def build(folder: Path) -> Built:
        with pytest.raises(Unavailable, match="Another process"):
            indexes.built(made, "some-1", build)
        return Built()

    indexes.built(made, "some-1", build)


def build_in_pieces(key: str, made: data.VectorData, folder: Path) -> None:
    spec = all_sides()[key]
    passages = made.passages()
    half = len(passages) // 2 + 1
    stopped = spec.make(*passages.shape)
    assert stopped.resume(passages, folder, 1) == 0
    stopped.add(0, np.ascontiguousarray(passages[:half]))
    stopped.finish()
    stopped.save(folder)
    stopped.close()
    side = spec.make(*passages.shape)
    assert side.resume(passages, folder, 1) == half
    side.add(half, np.ascontiguousarray(passages[half:]))
    side.finish()
    side.save(folder)
    side.close()


@pytest.mark.parametrize("key", [key for key in all_sides() if "faiss" not in key])
def test_every_side_finds_what_it_was_given_also_when_built_in_pieces(
    key: str, made: data.VectorData, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    build_in_pieces(key, made, folder)
    spec = all_sides()[key]
    opened = spec.make(N, mixture.DIM)
    opened.open(folder)
    search = opened.searcher(data.K, spec.efforts[-1])
    questions, exact = made.questions()
    found = np.stack([search(question)[: data.K] for question in questions])
    opened.close()
    assert found.dtype == np.int64
    assert data.recall(found, exact) > (0.85 if "usearch" in key else 0.97)
    assert spec.version()
    assert spec.effort_name in spec.told(spec.efforts[0])


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss is not installed")
@pytest.mark.parametrize("key", ["faiss-hnsw-sq8", "faiss-ivf-sq8", "faiss-ivf-pq"])
def test_faiss_goes_on_with_what_was_built(key: str, made: data.VectorData, tmp_path: Path) -> None:
    """In processes of its own: faiss does not bear usearch beside it."""
    folder = tmp_path / "index"
    folder.mkdir()
    call = (
        "from pathlib import Path; import sys; sys.path.insert(0, sys.argv[1]); from test_recall_bench import *; "
        "build_in_pieces(sys.argv[2], data.data_of(sys.argv[3]), Path(sys.argv[4]))"
    )
    arguments = [str(Path(__file__).parent), key, made.name, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(tasks.ROOT)}
    subprocess.run([sys.executable, "-c", call, *arguments], env=environment, check=True, capture_output=True)
    found = tasks.run_task(tasks.Search(key, made.name, str(folder), all_sides()[key].efforts[-1]), tasks.Searched)
    assert found.recall > 0.95


def test_inverted_lists_have_something_in_them() -> None:
    assert [lists(n) for n in (1, 10_000, 100_000, 1_000_000)] == [1, 256, 1024, 4096]


def test_a_side_goes_through_all_tasks_in_processes_of_their_own(made: data.VectorData, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    side = ("hnswlib", made.name, str(folder))
    assert tasks.run_task(tasks.Build(*side, 1), Built).cpu_s > 0
    tuned = tasks.run_task(tasks.Tune(*side, 0.9), tasks.Tuned)
    assert tuned.recalls[f"{tuned.effort:g}"] >= 0.9
    assert all(found < 0.9 for effort, found in tuned.recalls.items() if float(effort) < tuned.effort)
    started = tasks.run_task(tasks.Start(*side, tuned.effort, cold=True), tasks.Started)
    assert started.first_answer_ms > 0
    searched = tasks.run_task(tasks.Search(*side, tuned.effort), tasks.Searched)
    assert len(searched.times_ms) == 40
    assert searched.recall > 0.8


def test_a_task_that_fails_is_told(made: data.VectorData, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Search failed"):
        tasks.run_task(tasks.Search("hnswlib", made.name, str(tmp_path / "none"), 64), tasks.Searched)


def test_fewer_answers_than_wanted_are_misses() -> None:
    def few(_: Floats) -> Ids:
        return np.array([4, 2])

    _, (found,) = child.timed(few, np.zeros((1, 2), np.float32))
    assert found.tolist() == [4, 2] + [-1] * 8


def test_memory_is_read_as_the_kernel_tells_it(tmp_path: Path) -> None:
    told = tmp_path / "smaps_rollup"
    told.write_text("00400000-7ffd r-xp 0 00:00 0 [rollup]\nRss:  2048 kB\nPss: 1 kB\nAnonymous:  1024 kB\n")
    assert memory_now(told) == Memory(2.0, 1.0)
    assert Memory(5.0, 3.0) - Memory(2.0, 1.0) == Memory(3.0, 2.0)
    now = memory_now()
    assert 0 < now.anonymous < now.resident


def test_texts_are_the_same_each_time_and_questions_have_words_of_them() -> None:
    texts = ZipfTexts()
    assert texts.passages(5, 3) == ZipfTexts().passages(0, 8)[5:]
    assert len(set(texts.passages(0, 100))) == 100
    words = {word for text in texts.passages(0, 200) for word in text.strip(".").split()}
    assert texts.questions(50)[:3] == texts.questions(3)
    asked = [word for question in texts.questions(50) for word in question.strip("?").strip(".").split()]
    assert sum(word in words for word in asked) > len(asked) / 2


@pytest.mark.slow
def test_whole_searches_and_writes_beside_them(made: data.VectorData, tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    assert whole.build(tasks.BuildWhole(made.name, str(folder))).cpu_s > 0
    found = whole.search(tasks.SearchWhole(made.name, str(folder), 5))
    assert set(found.times_ms) == {"hybrid", "lexical", "dense"}
    assert all(len(times) == 5 for times in found.times_ms.values())
    assert {"recall_lexical", "recall_dense", "fuse"} <= set(found.stages_ms)
    lived = whole.live(tasks.Live(made.name, str(folder), 1.0, 2, 100, 40))
    assert [bool(times) for times in lived.quiet_ms + lived.writing_ms] == [True] * 4
    assert lived.added_per_s > 0
    assert lived.deleted_per_s > 0
    assert not folder.with_name("whole.live").exists()
    assert len(whole.search(tasks.SearchWhole(made.name, str(folder), 1)).times_ms["hybrid"]) == 1


@pytest.mark.slow
def test_a_measurement_is_printed_and_recorded_and_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(record, "DOCUMENT", tmp_path / "RESULTS.md")
    monkeypatch.setattr(command, "conditions", lambda *_: CONDITIONS)
    options = command.Options("recall", Scale("mini", N, 40, 5, 0.5), ("vectors",), ("ours", "hnswlib"), rounds=2)
    command.Bench(replace(options, build_only=True)).run()
    assert capsys.readouterr().out == ""
    command.Bench(replace(options, record=True)).run()
    told = capsys.readouterr()
    assert "| hnswlib f32 |" in told.out
    assert "Building" not in told.err
    assert "## recall mini" in record.DOCUMENT.read_text()
    kept = record.read(record.RESULTS / "recall-mini.json", results.Results)
    assert kept is not None
    assert kept.vectors is not None
    assert list(kept.vectors.sides) == ["ours", "hnswlib"]
    assert all(len(one.rounds) == 2 and one.files_mib > 0 for one in kept.vectors.sides.values())
    command.Bench(replace(options, json=True)).run()
    assert msgspec.json.decode(capsys.readouterr().out, type=results.Results).vectors is not None


def side(title: str, p99: float, held: float, recall: float = 0.99) -> results.SideMeasured:
    rounds = [results.Round(0.3, p99, recall), results.Round(0.3, p99, recall)]
    start = results.Start([10.0], [400.0])
    return results.SideMeasured(
        title, "defaults", {}, rounds, Memory(held + 900, held), Built(60.0), start, files_mib=5.0
    )


def vectors(ours: results.SideMeasured) -> results.Vectors:
    sides = {"ours": ours, "hnswlib": side("hnswlib f32", 0.5, 1800), "usearch": side("usearch i8", 1.0, 600, 0.9)}
    return results.Vectors(CONDITIONS, 1000, 10, 0.98, sides)


def test_goals_of_vectors_are_told_apart() -> None:
    text = report.vectors_text(vectors(side("ours", 1.1, 200)))
    assert "p99 / that of usearch i8: 1.10, goal ≤ 1.20: reached" in text
    assert "memory held / that of hnswlib: 0.111, goal ≤ 0.333: reached" in text
    assert "(with the mapped pages, which the kernel takes back when it needs room: 0.407)" in text
    assert "first answer from the disk, ms: 400, goal ≤ 1000: reached" in text
    slow = report.vectors_text(vectors(side("ours", 1.3, 700, 0.97)))
    assert slow.count("not reached") == 3
    without = vectors(side("ours", 1.1, 200))
    del without.sides["ours"]
    assert "goal" not in report.vectors_text(without)


def test_whole_and_live_results_are_shown_and_kept() -> None:
    p50 = {"hybrid": 2.0, "stage recall_lexical": 1.0, "stage recall_dense": 1.5}
    round_ = results.WholeRound(p50, {name: 2 * value for name, value in p50.items()})
    measured = results.Results(
        "tiny",
        whole=results.Whole(CONDITIONS, 1000, 10, [round_], [50.0], Memory(30.0, 20.0), Built(60.0)),
        live=results.LiveMeasured(CONDITIONS, 1000, [results.LiveRound(1.0, 2.0, 1.1, 3.0)], 99.6, 10.2, 20.0, 90.0),
    )
    text = report.results_text(measured)
    assert "p99 of whole searches / of the slower half: 1.33, goal ≤ 1.30: not reached" in text
    assert "p99 beside writes / alone: 1.50, goal ≤ 1.25: not reached" in text
    assert "100 passages added and 10 deleted a second" in text
    both = results.merge(results.Results("tiny", vectors=vectors(side("ours", 1, 1))), measured)
    assert None not in (both.vectors, both.whole, both.live)
    assert msgspec.json.decode(msgspec.json.encode(both), type=results.Results) == both


def test_names_are_chosen_in_their_order() -> None:
    assert chosen("", PARTS, "part") == PARTS
    assert chosen("live, vectors", PARTS, "part") == ("vectors", "live")
    with pytest.raises(BadRequest, match="no part 'x'"):
        chosen("x", PARTS, "part")


def test_the_command_refuses_what_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "nothing"]) != 0
    assert "Choose from vectors, whole, live" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--record", "--sides", "hnswlib"])
