"""The reranker's benchmark: the same pairs each time, sides in turns, and what its tables say."""

from __future__ import annotations

from functools import partial

import pytest

from appliance.errors import ApplianceError
from build_scripts.bench._lib.conditions import Conditions
from build_scripts.bench.rerank_bench import report, texts
from build_scripts.bench.rerank_bench.__main__ import keys_of, main
from build_scripts.bench.rerank_bench.command import KEYS, in_turns
from build_scripts.bench.rerank_bench.memory import Held
from build_scripts.bench.rerank_bench.results import Measured, MemoryMeasured, Results, merge
from build_scripts.bench.rerank_bench.tasks import _spearman

CONDITIONS = Conditions("2026-12-02", "rerank", "", "Some CPU", 2, 2, 24, "Linux", "abc", {"onnxruntime": "1.28.0"})


def measured(ours: list[float], other: list[float]) -> Measured:
    return Measured("pairs", "pairs/s", CONDITIONS, {"ours": ours, "other": other}, {"other": 1.5})


def test_every_side_is_measured_in_every_round_and_none_is_always_first() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    figures = in_turns("task", {name: partial(side, name) for name in "abc"}, 3)
    assert "".join(order) == "abcbcacab"
    assert figures == {"a": [1.0, 6.0, 8.0], "b": [2.0, 4.0, 9.0], "c": [3.0, 5.0, 7.0]}


def test_the_texts_are_the_same_each_time() -> None:
    assert texts.question() == texts.question()
    assert texts.mixed_lengths(50, 200) == texts.mixed_lengths(50, 200)
    asked = texts.sampled(8, 8)
    assert asked == texts.sampled(8, 8)
    assert [len(set(paragraphs)) for _, paragraphs in asked] == [8] * 8
    assert sum(not question.isascii() for question, _ in asked) == 4


def test_a_goal_is_judged_by_the_median_of_the_ratios() -> None:
    assert "1.60 (1.40–1.70), goal ≥ 1.5: reached" in report.task_text(
        "pairs", measured([14.0, 16.0, 17.0], [10.0, 10.0, 10.0])
    )
    assert "goal ≥ 1.5: not reached" in report.task_text("pairs", measured([10.0], [10.0]))


@pytest.mark.parametrize(("end", "verdict"), [(109, "reached"), (91, "reached"), (111, "not reached")])
def test_memory_may_move_by_a_tenth(end: int, verdict: str) -> None:
    held = Held(first_calls=50, calls=1000, pairs=2500, first_bytes=100, bytes=end)
    assert f"goal within 10: {verdict} |" in report.memory_text(MemoryMeasured(CONDITIONS, held))


def test_what_was_not_measured_again_is_kept() -> None:
    old = Results({"pairs": measured([1.0], [1.0]), "mixed": measured([2.0], [2.0])})
    new = Results({"mixed": measured([3.0], [3.0])})
    assert merge(old, new).tasks == {"pairs": old.tasks["pairs"], "mixed": new.tasks["mixed"]}


def test_ranks_agree_whatever_the_scale() -> None:
    assert _spearman([0.1, 0.2, 0.9], [-3.0, 1.0, 8.0]) == pytest.approx(1.0)
    assert _spearman([0.9, 0.2, 0.1], [-3.0, 1.0, 8.0]) == pytest.approx(-1.0)


def test_keys_of_a_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys_of("") == KEYS
    assert keys_of("memory,pairs") == ("pairs", "memory")
    with pytest.raises(ApplianceError, match="no task 'pair'"):
        keys_of("pair")
    assert main(["--only", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("Error: There is no task 'nothing'.")
