"""The benchmark of ranking: sets cut the same way each time, figures by hand, caches, and one whole tiny run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.inference.protocols import Embeddings
from appliance.retrieval.abstain import Evidence
from appliance.retrieval.analyzer import Analyzer
from appliance.retrieval.fuse import FinalWeights
from build_scripts.bench.quality_bench import report
from build_scripts.bench.quality_bench.__main__ import main
from build_scripts.bench.quality_bench.abstention import Case, Kind, judge, reliability, weights
from build_scripts.bench.quality_bench.bed import Bed, Candidates
from build_scripts.bench.quality_bench.bm25 import Bm25
from build_scripts.bench.quality_bench.cached import CachedEmbedder, CachedReranker, Rows
from build_scripts.bench.quality_bench.command import Bench, Options
from build_scripts.bench.quality_bench.figures import figures, interval
from build_scripts.bench.quality_bench.gather import Models, rows
from build_scripts.bench.quality_bench.rankings import by_score, reciprocal, reranked
from build_scripts.bench.quality_bench.sets import QuestionSet, folders, read
from build_scripts.train_reranker.data import held_out
from tests.unit.retrieval.fakes import OverlapReranker, WordEmbedder

PUMPS = [f"The {colour} pump stands in hall {number}." for number, colour in enumerate(["red", "blue", "green"] * 8)]
EVERYTHING = 10**9


def write_set(folder: Path, texts: Sequence[str], questions: dict[str, Sequence[int]], use: str = "eval") -> Path:
    folder.mkdir(parents=True)
    corpus = [json.dumps({"id": f"d{n}", "title": "", "text": text}) for n, text in enumerate(texts)]
    asked = [json.dumps({"id": f"q{n}", "text": text}) for n, text in enumerate(questions)]
    right = [f"q{n}\td{place}\t1" for n, places in enumerate(questions.values()) for place in places]
    (folder / "corpus.jsonl").write_text("\n".join(corpus))
    (folder / "queries.jsonl").write_text("\n".join(asked))
    (folder / "qrels.tsv").write_text("\n".join(right))
    (folder / "meta.json").write_text(json.dumps({"lang": "en", "use": use}))
    return folder


def pump_set(folder: Path, use: str = "eval") -> Path:
    return write_set(folder, PUMPS, {f"Which pump is in hall {n}?": [n] for n in range(len(PUMPS))}, use)


def test_a_set_is_read_whole_and_texts_that_repeat_are_one(tmp_path: Path) -> None:
    texts = ["The pump.", "The valve.", "The pump.", ""]
    found = read(
        write_set(tmp_path / "s", texts, {"What pumps?": [0, 2], "What closes?": [1], "Else?": [3]}), EVERYTHING
    )
    assert set(found.passages) == {"The pump.", "The valve."}
    asked = {one.text: {found.passages[place] for place in one.grades} for one in found.questions}
    assert asked == {"What pumps?": {"The pump."}, "What closes?": {"The valve."}}
    assert (found.language, found.train, found.of_passages) == ("en", False, 3)


@given(letters=st.integers(0, 900))
def test_a_pool_is_cut_and_every_question_left_can_be_answered(
    tmp_path_factory: pytest.TempPathFactory, letters: int
) -> None:
    found = read(pump_set(tmp_path_factory.mktemp("data") / "pumps"), letters)
    assert sum(map(len, found.passages)) <= letters
    assert all(
        f"hall {found.passages[place].split()[-1][:-1]}" in one.text for one in found.questions for place in one.grades
    )
    assert len(found.questions) <= len(found.passages)


def test_of_a_training_set_only_held_out_questions_are_measured(tmp_path: Path) -> None:
    found = read(pump_set(tmp_path / "pumps", "train"), EVERYTHING)
    measured, fitted = found.measured(EVERYTHING), found.fitted(EVERYTHING)
    assert [held_out(one.text) for one in measured] == [True] * len(measured)
    assert [held_out(one.text) for one in fitted] == [False] * len(fitted)
    assert len(measured) + len(fitted) == len(PUMPS)
    assert read(pump_set(tmp_path / "again"), EVERYTHING).fitted(EVERYTHING) == ()


def test_what_is_no_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no set of questions"):
        folders(tmp_path)
    broken = pump_set(tmp_path / "pumps")
    (broken / "corpus.jsonl").write_text("{")
    with pytest.raises(BadRequest, match="cannot be read"):
        read(broken, EVERYTHING)


def test_figures_by_hand() -> None:
    found = figures([7, 3, 9, 1], {3: 1, 1: 2, 5: 1})
    ideal = 3 + 1 / math.log2(3) + 1 / 2
    assert found.ndcg10 == pytest.approx((1 / math.log2(3) + 3 / math.log2(5)) / ideal)
    assert (found.mrr10, found.recall5, found.recall50) == pytest.approx((0.5, 2 / 3, 2 / 3))
    assert figures([3, 1], {3: 1, 1: 1}).ndcg10 == 1.0
    nothing = figures([], {3: 1})
    assert (nothing.ndcg10, nothing.mrr10, nothing.recall50) == (0.0, 0.0, 0.0)


@given(st.permutations(range(12)), st.dictionaries(st.integers(0, 15), st.integers(1, 3), min_size=1))
def test_figures_are_shares(ranked: list[int], grades: dict[int, int]) -> None:
    found = figures(ranked, grades)
    assert 0 <= found.ndcg10 <= 1 + 1e-12
    assert 0 <= found.recall5 <= found.recall50 <= 1


def test_a_difference_is_noise_when_it_goes_both_ways() -> None:
    low, high = interval([0.1, -0.1] * 40)
    assert low < 0 < high
    assert interval([0.05] * 50) == pytest.approx((0.05, 0.05))


def candidates(bm25: Sequence[float], cosine: Sequence[float]) -> Candidates:
    return Candidates(np.arange(len(bm25)), np.array(bm25), np.array(cosine), 10.0)


def test_reciprocal_ranks_leave_out_what_a_half_did_not_find() -> None:
    some = candidates([math.nan, 3.0, 5.0], [0.9, 0.8, 0.1])
    assert reciprocal(some) == pytest.approx([1 / 61, 1 / 62 + 1 / 62, 1 / 61 + 1 / 63])
    assert by_score(some, some.bm25) == [2, 1]


def test_what_was_not_reranked_follows_as_it_was() -> None:
    some = candidates([1.0] * 4, [0.0] * 4)
    logits = np.array([1.0, math.nan, 5.0, math.nan])
    assert reranked(FinalWeights(0.0, 1.0, 0.0), some, np.array([9.0, 1.0, 8.0, 2.0]), logits) == [2, 0, 3, 1]


def test_bm25_of_our_own_is_the_index_s_where_k1_is_the_same(tmp_path: Path) -> None:
    analyzer = Analyzer()
    found = QuestionSet("pumps", "en", False, tuple(PUMPS), (), len(PUMPS), 0)
    bed = Bed(found, WordEmbedder(), analyzer, tmp_path / "index")
    question = read(pump_set(tmp_path / "pumps"), EVERYTHING).questions[0]
    (some,) = bed.search([question])
    bed.close()
    rescored = Bm25(PUMPS, analyzer).rescored(question.text, some, 1.2)
    known = ~np.isnan(some.bm25)
    assert known.any()
    assert (np.isnan(rescored) == ~known).all()
    assert rescored[known] == pytest.approx(some.bm25[known], abs=0.15)  # the index counts a row of its own
    assert some.mass > np.nanmax(some.bm25) * 0.5


class Counting(WordEmbedder):
    """Tells what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        self.asked += texts
        return super().embed_passages(texts)


def test_what_was_embedded_once_is_never_embedded_again(tmp_path: Path) -> None:
    inner = Counting()
    first = CachedEmbedder(inner, Rows(tmp_path / "s.npy"), print)
    before = first.embed_passages(["a b", "c", "a b"])
    first.save()
    assert sorted(inner.asked) == ["a b", "c"]
    again = CachedEmbedder(inner, Rows(tmp_path / "s.npy"), print)
    assert (again.embed_passages(["c", "a b"]) == before[[1, 0]]).all()
    assert len(inner.asked) == 2
    again.embed_passages(["d"])
    assert inner.asked[-1] == "d"


@given(st.lists(st.lists(st.integers(0, 20), max_size=5), max_size=6))
def test_a_cache_is_a_dict_that_a_process_leaves_to_the_next(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("cache") / "s.npy"
    known: dict[bytes, float] = {}
    for place, run in enumerate(runs):
        kept = Rows(path)
        digests = [bytes([0, number] * 8) for number in run]  # zero bytes at both ends are part of a digest
        assert {digests[n] for n in kept.missing(digests)} == set(digests) - known.keys()
        new = {digest: float(place) for digest in digests if digest not in known}
        if new:
            kept.put(list(new), np.array(list(new.values()), np.float32)[:, None])
        kept.save()
        known |= new
        assert not digests or kept.get(digests)[:, 0].tolist() == [known[digest] for digest in digests]


def test_logits_are_kept_for_each_model(tmp_path: Path) -> None:
    inner = OverlapReranker()
    one = CachedReranker(inner, "one", Rows(tmp_path / "s.npy"), print)
    assert one.logits("a b", ["a", "c"]).tolist() == one.logits("a b", ["a", "c"]).tolist()
    assert inner.seen == ["a", "c"]
    one.logits("a b", ["a", "d"])
    assert inner.seen == ["d"]
    one.save()
    CachedReranker(inner, "two", Rows(tmp_path / "s.npy"), print).logits("a b", ["d"])
    assert inner.seen == ["d"]


def test_what_may_answer_is_taken_away_and_the_rest_stays(tmp_path: Path) -> None:
    texts = ["The seal is worn.", "The seal is worn!", "A bearing runs hot.", "It lasts 4000 hours.", *PUMPS]
    found = read(write_set(tmp_path / "s", texts, {"Which seal is worn?": [0]}), EVERYTHING)
    (row,) = rows(found, WordEmbedder(), Analyzer(), found.questions)
    left = {found.passages[int(place)] for place in row.without_answers().candidates.places}
    assert "The seal is worn." not in left
    assert "A bearing runs hot." in left
    assert row.grades().sum() == 1
    assert row.without_answers().grades().sum() == 0


def case(kind: Kind, top: float, pool: str = "p") -> Case:
    return Case(pool, "en", kind, True, Evidence(top, 0.0, 0.0))


def test_abstaining_is_judged_with_both_kinds_at_even_odds() -> None:
    cases = [*[case("answered", 0.9)] * 3, case("answered", 0.1), case("removed", 0.1), case("foreign", 0.8)]
    assert weights(cases).tolist() == pytest.approx([0.125] * 4 + [0.25] * 2)
    judged = judge(cases, lambda seen: seen.top, 0.5)
    assert (judged.precision, judged.recall) == pytest.approx((0.25 / 0.375, 0.5))
    bins = reliability(cases, lambda seen: seen.top)
    assert [one.cases for one in bins] == [2, 0, 0, 0, 4]
    assert (bins[0].predicted, bins[0].answered) == pytest.approx((0.1, 1 / 3))


@pytest.mark.parametrize("reranked", [False, True])
def test_a_tiny_run_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str], reranked: bool) -> None:
    for name in ("pumps", "halls"):
        pump_set(tmp_path / "data" / name)
    config = {
        "fused": {"lex": 5.0, "dense": 1.0, "bias": -3.0},
        "final": {"first": 1.0, "ce": 1.0, "bias": 0.0},
        "abstain": {
            "first": {"top": 1.0, "gap": 1.0, "cover": 1.0, "bias": -1.0},
            "reranked": {"top": 1.0, "gap": 1.0, "cover": 1.0, "ce": 1.0, "ce_gap": 0.0, "bias": -1.0},
        },
    }
    models = Models(WordEmbedder(), OverlapReranker() if reranked else None, "overlap", tmp_path / "cache", print)
    options = Options("quality", tmp_path / "data", tmp_path / "cache", questions=10, depth=5)
    results = Bench(options, models, config).run()
    assert [one.name for one in results.sets] == ["halls", "pumps"]
    for one in results.sets:
        assert (one.questions, one.passages) == (10, len(PUMPS))
        assert one.figures["lexical"].recall50 == 1.0
        assert one.figures["hybrid"].ndcg10 >= one.figures["dense"].ndcg10
        assert ("hybrid + rerank" in one.figures) == reranked
    assert set(results.abstention) == {report.FIRST, report.BOTH}
    shown = capsys.readouterr().out
    assert "| pumps (eval)" in shown
    assert all(f"| {figure} " in shown for figure in ("nDCG@10", "MRR@10", "recall@5", "recall@50"))
    assert "10 of 24" in shown


def test_without_sets_nothing_is_loaded_and_it_is_said_where_they_were_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPLIANCE_MODELS_DIR", str(tmp_path / "models"))
    assert main(["--data", str(tmp_path / "none")]) == BadRequest("").exit_code
    told = capsys.readouterr().err
    assert str(tmp_path / "none") in told
    assert "--data" in told
    pump_set(tmp_path / "data" / "pumps")
    assert main(["--data", str(tmp_path / "data"), "--only", "pomps"]) == BadRequest("").exit_code
    assert "pomps" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_without_weights_to_abstain_by_that_part_is_left_out(tmp_path: Path) -> None:
    pump_set(tmp_path / "data" / "pumps")
    models = Models(WordEmbedder(), None, "", tmp_path / "cache", print)
    results = Bench(Options("quality", tmp_path / "data", tmp_path / "cache", json=True), models, None).run()
    assert results.abstention == {}
