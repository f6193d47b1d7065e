"""What was searched for before is found again, as long as it would be found the same."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from appliance.cache.tiers import Cache
from appliance.retrieval.remembered import RememberedRecall
from appliance.retrieval.types import Passage, Scores, SearchRequest, SearchResult

PASSAGE = Passage(42, 3, "手册.pdf", "Manual", "text", "Safety", 7, 8, 0.9, Scores(lexical=3.5, dense=0.8))


class Recall:
    def __init__(self) -> None:
        self.asked: list[SearchRequest] = []
        self.degraded: tuple[str, ...] = ()
        self.meanwhile: Callable[[], None] = lambda: None

    def search(self, request: SearchRequest) -> SearchResult:
        self.asked.append(request)
        self.meanwhile()
        return SearchResult((replace(PASSAGE, chunk_id=len(self.asked)),), {"total": 9.0}, self.degraded, 0.7)

    def terms(self, text: str) -> frozenset[str]:
        return frozenset(text.split())


class Bed:
    def __init__(self) -> None:
        self.recall = Recall()
        self.cache = Cache(None, memory_bytes=1 << 20, disk_bytes=0, keep_s=99, wait_s=1)
        self.version = b"1"
        self.remembered = RememberedRecall(self.recall, self.cache, lambda _: self.version)

    def search(self, request: SearchRequest | None = None) -> int:
        return self.remembered.search(request or SearchRequest("q", "c")).passages[0].chunk_id


def test_the_same_search_gives_the_same_result_without_searching() -> None:
    bed = Bed()
    first = bed.remembered.search(SearchRequest("q", "c", rerank_budget_ms=50))
    again = bed.remembered.search(SearchRequest("q", "c", rerank_budget_ms=900))
    assert (again.passages, again.degraded, again.answered) == (first.passages, first.degraded, first.answered)
    assert set(again.timings_ms) == {"recall_cache", "total"}
    assert len(bed.recall.asked) == 1


def test_whatever_changes_the_result_is_searched_for() -> None:
    bed = Bed()
    requests = [
        SearchRequest("q", "c"),
        SearchRequest("q2", "c"),
        SearchRequest("q", "d"),
        SearchRequest("q", "c", mode="dense"),
        SearchRequest("q", "c", rerank=False),
        SearchRequest("q", "c", top_k=3),
        SearchRequest("q", "c", recall=0.99),
        SearchRequest("q", "c", label="another caller's"),
    ]
    assert [bed.search(request) for request in requests] == list(range(1, len(requests) + 1))
    bed.version = b"2"
    assert bed.search() == len(requests) + 1


def test_who_wants_to_know_what_a_search_does_gets_one() -> None:
    bed = Bed()
    explained = SearchRequest("q", "c", explain=True)
    assert [bed.search(explained), bed.search(explained), bed.search()] == [1, 2, 3]


def test_a_ranking_that_ran_out_of_time_is_not_kept_what_comes_again_is() -> None:
    bed = Bed()
    bed.recall.degraded = ("rerank_partial: 20 of 50",)
    assert [bed.search(), bed.search()] == [1, 2]
    bed.recall.degraded = ("query_cut: long",)
    assert [bed.search(), bed.search()] == [3, 3]


def test_what_was_found_before_a_change_is_not_kept_after_it() -> None:
    bed = Bed()
    bed.recall.meanwhile = lambda: bed.cache.forget("c")
    assert [bed.search(), bed.search()] == [1, 2]
    bed.recall.meanwhile = lambda: None
    assert [bed.search(), bed.search()] == [3, 3]
    bed.cache.forget("c")
    assert bed.search() == 4
