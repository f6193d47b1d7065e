"""A search from question to ranked passages: modes, fusion, the reranker's budget, what is left out."""

from __future__ import annotations

import threading
import unicodedata
from pathlib import Path

import pytest
from msgspec import structs

from appliance import telemetry
from appliance.config import RecallSettings
from appliance.errors import BadRequest, EmbedderChanged, NotFound, Unavailable
from appliance.retrieval.types import Mode, SearchRequest
from appliance.store.attributes import parse_filter
from appliance.store.db import Store
from appliance.telemetry import Span
from tests.unit.retrieval.fakes import OverlapReranker, WordEmbedder, put, recall_over

TEXTS = [
    "tighten the flange bolts to 85 Nm",
    "replace the oil filter every 500 hours",
    "the pump seal wears out when it runs dry",
    "spare part HX-200/77-1203 seal kit",
    "更换密封圈之前必须关闭主电源",
]


def ask(query: str, mode: Mode = "hybrid", *, rerank: bool = False, top_k: int = 3) -> SearchRequest:
    return SearchRequest(query, "manuals", mode, rerank, top_k)


@pytest.mark.parametrize("mode", ["hybrid", "lexical", "dense", "funnel"])
@pytest.mark.parametrize("rerank", [False, True])
def test_every_mode_finds_the_passage_with_what_a_citation_needs(
    store: Store, tmp_path: Path, mode: Mode, rerank: bool
) -> None:
    recall = recall_over(store, tmp_path / "index", reranker=OverlapReranker())
    recall.apply(put(store, "pump.pdf", TEXTS, heading="Care"))
    result = recall.search(ask("replace oil filter", mode, rerank=rerank))
    best = result.passages[0]
    assert (best.document, best.page_first, best.heading, best.title) == (
        "pump.pdf",
        2,
        "Care",
        "Title of pump.pdf",
    )
    assert [p.score for p in result.passages] == sorted((p.score for p in result.passages), reverse=True)
    assert result.degraded == ()
    assert (best.scores.lexical is not None) == (mode != "dense")
    assert (best.scores.dense is not None) == (mode != "lexical" or rerank)
    assert (best.scores.fused is not None) == (mode in ("hybrid", "funnel"))
    assert (best.scores.rerank is not None) == rerank
    stages = {"recall_lexical"} if mode != "dense" else set()
    stages |= {"recall_dense"} if mode in ("hybrid", "dense") else set()
    stages |= {"embed_query"} if mode != "lexical" or rerank else set()
    stages |= {"rerank"} if rerank else set()
    assert set(result.timings_ms) == stages | {"fuse", "total"}
    recall.close()


def test_scores_of_hybrid_search_are_probabilities(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index", reranker=OverlapReranker())
    recall.apply(put(store, "pump.pdf", TEXTS))
    for rerank in (False, True):
        for passage in recall.search(ask("flange bolts", rerank=rerank, top_k=10)).passages:
            assert 0.0 <= passage.score <= 1.0
    recall.close()


@pytest.mark.parametrize("query", ["?!…", "《》", "the of and", '") OR body:*', "AND", "a" * 5000])
def test_a_question_without_terms_or_with_query_syntax_is_searched_all_the_same(
    store: Store, tmp_path: Path, query: str
) -> None:
    recall = recall_over(store, tmp_path / "index", reranker=OverlapReranker())
    recall.apply(put(store, "pump.pdf", TEXTS))
    assert len(recall.search(ask(query)).passages) == 3
    assert recall.search(ask(query, "lexical")).passages == ()
    recall.close()


def test_a_question_that_is_no_unicode_is_searched_all_the_same(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index", reranker=OverlapReranker())
    recall.apply(put(store, "pump.pdf", TEXTS))
    for mode in ("hybrid", "lexical"):
        request = SearchRequest("oil\udcff filter", "manuals", mode, True)
        assert recall.search(request).passages[0].page_first == 2
    recall.close()


def test_an_empty_collection_has_no_passages_and_a_missing_one_is_named(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index", reranker=OverlapReranker())
    recall.apply(put(store, "pump.pdf", TEXTS))
    [document] = store.documents()
    recall.apply(store.delete([document.id]))
    assert recall.search(ask("pump", rerank=True)).passages == ()
    with pytest.raises(NotFound, match="other"):
        recall.search(SearchRequest("pump", "other"))
    with pytest.raises(BadRequest, match="empty"):
        recall.search(ask("  \n"))
    with pytest.raises(BadRequest, match="top_k"):
        recall.search(ask("pump", top_k=0))
    recall.close()


def test_a_long_question_is_searched_and_what_was_not_read_is_named(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "pump.pdf", TEXTS))
    assert recall.search(ask("oil filter " * 252)).degraded == ()
    long = "oil filter " * 253 + " ".join(f"word{n}" for n in range(1500))
    result = recall.search(ask(long))
    assert result.degraded == ("query_cut: the embedder read the beginning of the question only",)
    assert result.passages[0].page_first == 2
    assert recall.search(ask(long, "lexical")).degraded == ()
    with pytest.raises(BadRequest, match="20001 characters"):
        recall.search(ask("a" * 20_001))
    recall.close()


def test_a_search_after_closing_says_that_it_will_work_later(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "pump.pdf", TEXTS))
    recall.close()
    with pytest.raises(Unavailable):
        recall.search(ask("pump"))


def test_collections_do_not_see_each_other(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "a.txt", ["the pump is blue"], collection="a"))
    recall.apply(put(store, "b.txt", ["the pump is red"], collection="b"))
    for mode in ("hybrid", "lexical", "dense", "funnel"):
        found = recall.search(SearchRequest("pump", "b", mode, False, 10)).passages
        assert [passage.document for passage in found] == ["b.txt"]
    recall.close()


def test_passages_that_the_budget_left_out_keep_their_order_after_the_scored(store: Store, tmp_path: Path) -> None:
    texts = [f"pump part {number}" for number in range(40)]
    first = recall_over(store, tmp_path / "index")
    first.apply(put(store, "pump.pdf", texts))
    fused = [p.chunk_id for p in first.search(ask("pump part 7", top_k=40)).passages]
    first.close()
    reranker = OverlapReranker(scored=16, truncated=(2, 5))
    recall = recall_over(store, tmp_path / "index", reranker=reranker)
    result = recall.search(SearchRequest("pump part 7", "manuals", "hybrid", True, 40, 250.0))
    ids = [passage.chunk_id for passage in result.passages]
    assert sorted(ids[:16]) == sorted(fused[:16])
    assert ids[16:] == fused[16:]
    assert result.degraded == (
        "rerank_partial: 16 of 40 passages scored within the budget of 250 ms",
        "rerank_truncated: 2 of 16 passages were cut to 256 tokens",
    )
    assert reranker.budget_ms == 250.0
    assert all(passage.scores.rerank is None for passage in result.passages[16:])
    recall.close()


def test_the_reranker_sees_the_fused_best_and_can_lift_one(store: Store, tmp_path: Path) -> None:
    texts = [*(f"valve number {n} of the hall" for n in range(30)), "closing the valve needs two turns"]
    settings = RecallSettings(fused_candidates=31)
    reranker = OverlapReranker()
    recall = recall_over(store, tmp_path / "index", reranker=reranker, settings=settings)
    recall.apply(put(store, "hall.txt", texts, heading="Valves"))
    result = recall.search(ask("closing needs turns", rerank=True))
    assert result.passages[0].text == texts[-1]
    assert len(reranker.seen) == 31
    assert all(text.startswith("Valves\n") for text in reranker.seen)
    recall.close()


def test_a_pack_without_reranker_says_so_only_when_it_was_wanted(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "pump.pdf", TEXTS))
    assert recall.search(ask("pump", rerank=True)).degraded == ("no_reranker: the model pack has none",)
    assert recall.search(ask("pump", rerank=False)).degraded == ()
    recall.close()


def test_the_same_text_is_found_once(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "one.txt", ["the pump seal", "the pump seal", "another pump"]))
    recall.apply(put(store, "two.txt", ["the pump seal"]))
    found = recall.search(ask("pump seal", top_k=3)).passages
    assert [(passage.document, passage.page_first) for passage in found] == [("one.txt", 1), ("one.txt", 3)]
    recall.close()


def test_the_same_question_gets_the_same_order_after_a_restart(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index", reranker=OverlapReranker())
    for number in range(12):  # many ties: only the ids tell them apart
        recall.apply(put(store, f"{number}.txt", [f"pump pump {number % 3}"]))
    request = ask("pump", rerank=True, top_k=12)
    before = [(passage.chunk_id, passage.score) for passage in recall.search(request).passages]
    recall.close()
    again = recall_over(store, tmp_path / "fresh", reranker=OverlapReranker())
    assert [passage.chunk_id for passage in again.search(request).passages] == [i for i, _ in before]
    again.close()


def test_vectors_of_another_embedder_are_refused_and_words_still_found(store: Store, tmp_path: Path) -> None:
    first = recall_over(store, tmp_path / "index")
    first.apply(put(store, "pump.pdf", TEXTS))
    first.close()
    other = WordEmbedder("other", dim=16)
    recall = recall_over(store, tmp_path / "index", embedder=other)
    with pytest.raises(EmbedderChanged):
        recall.search(ask("filter"))
    assert recall.search(ask("filter", "lexical")).passages[0].page_first == 2
    [document] = store.documents()
    recall.apply(store.delete([document.id]))
    recall.apply(put(store, "pump.pdf", TEXTS, embedder=other))
    assert recall.search(ask("oil filter")).passages[0].page_first == 2
    assert recall.check() == []
    recall.close()


def test_searches_run_beside_changes_and_see_whole_documents(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index", exact_limit=40)
    recall.apply(put(store, "fixed.txt", ["the anchor stays"]))
    faults: list[str] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            found = recall.search(ask("anchor stays", top_k=5)).passages
            if not found or found[0].document != "fixed.txt":
                faults.append(str(found))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(12):  # grows over the limit of the exact scan and back under it
        recall.apply(put(store, f"{number}.txt", [f"pump {number} {part}" for part in range(4)]))
    for document in store.documents():
        if document.name != "fixed.txt":
            recall.apply(store.delete([document.id]))
    done.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert recall.check() == []
    recall.close()


def test_stages_of_both_threads_are_spans_of_one_trace(store: Store, tmp_path: Path, spans: list[Span]) -> None:
    recall = recall_over(store, tmp_path / "index", reranker=OverlapReranker())
    recall.apply(put(store, "pump.pdf", TEXTS))
    spans.clear()
    with telemetry.span("request") as whole:
        found = recall.search(ask("pump", rerank=True))
    named = {span.name: span for span in spans}
    assert {"recall", "embed_query", "recall.lexical", "recall.dense", "fuse", "rerank"} <= set(named)
    assert {span.trace for span in spans} == {whole.trace}
    assert named["recall.lexical"].parent == named["recall"].id
    assert named["recall.dense"].attributes["hot.vectors"] == len(TEXTS)
    assert telemetry.current() is None
    # One measurement: the times that are told are those of the spans.
    for stage in ("embed_query", "recall.lexical", "recall.dense", "rerank"):
        assert found.timings_ms[stage.replace(".", "_")] == round(named[stage].ms, 2)
    recall.close()


RUNS = ("hybrid", "lexical", "dense", "funnel")


@pytest.mark.parametrize("mode", RUNS)
@pytest.mark.parametrize("exact_limit", [1000, 20])
def test_a_filter_finds_all_that_it_lets_through_and_nothing_else(
    store: Store, tmp_path: Path, mode: Mode, exact_limit: int
) -> None:
    recall = recall_over(store, tmp_path / "index", exact_limit=exact_limit, settings=RecallSettings(3, 3))
    for number in range(30):  # the odd ones are the better answers
        text = f"pump {number} pump" if number % 2 else f"about a pump {number} in the hall"
        recall.apply(put(store, f"{number}.txt", [text]))
        recall.apply(store.set_attributes(number + 1, {"odd": bool(number % 2), "number": number})[1])
    wanted = parse_filter(
        {
            "type": "and",
            "filters": [{"type": "eq", "key": "odd", "value": False}, {"type": "gte", "key": "number", "value": 26}],
        }
    )
    found = recall.search(SearchRequest("pump", "manuals", mode, False, 10, filters=wanted)).passages
    assert sorted(passage.document for passage in found) == ["26.txt", "28.txt"]
    assert all(passage.attributes["odd"] is False for passage in found)
    none = parse_filter({"type": "eq", "key": "number", "value": -1})
    result = recall.search(SearchRequest("pump", "manuals", mode, False, 10, filters=none, explain=True))
    assert result.passages == ()
    assert result.explained is not None and result.explained.documents == 0
    recall.close()


def test_a_search_says_what_it_did_when_asked_to(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "pump.pdf", TEXTS))
    recall.apply(store.set_recall("manuals", 0.99))
    request = ask("oil filter")
    assert recall.search(request).explained is None
    explained = recall.search(structs.replace(request, explain=True)).explained
    assert explained is not None
    assert (explained.recall, explained.lexical, explained.candidates) == (0.99, 1, 5)
    assert explained.terms == {"oil": 1.0, "filter": 1.0}
    assert [(part.method, part.vectors) for part in explained.dense] == [("exact", 5)]
    assert explained.documents is None
    own = recall.search(structs.replace(request, explain=True, recall="exact")).explained
    assert own is not None and own.recall == "exact"
    recall.close()


def test_what_says_the_same_is_folded_and_named(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "one.txt", ["the pump seal", "the pump seal 5 mm"]))
    recall.apply(put(store, "two.txt", ["The PUMP  seal", "the pump seal 6 mm"]))
    found = recall.search(ask("pump seal", top_k=9)).passages
    folded = {(p.document, p.page_first): [(same.document, same.page) for same in p.duplicates] for p in found}
    (kept, repeated) = sorted([("one.txt", 1), ("two.txt", 1)], key=lambda place: place not in folded)
    assert folded == {kept: [repeated], ("one.txt", 2): [], ("two.txt", 2): []}
    recall.close()


@pytest.mark.parametrize("mode", RUNS)
def test_a_collection_is_searched_by_its_name_in_any_unicode_form(store: Store, tmp_path: Path, mode: Mode) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "a.txt", ["the pump"], collection=unicodedata.normalize("NFD", "Prüfung")))
    for form in ("NFC", "NFD"):
        name = unicodedata.normalize(form, "Prüfung")
        assert len(recall.search(SearchRequest("pump", name, mode, False)).passages) == 1
    recall.close()
