"""The sample manuals through the real parser, chunker and models: every answerable question finds its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config import ModelSettings, RecallSettings
from appliance.inference.embedder import OnnxEmbedder
from appliance.inference.reranker import OnnxReranker
from appliance.packs import ResolvedPack
from appliance.retrieval.search import Recall
from appliance.retrieval.types import Passage, SearchRequest
from appliance.samples import SampleQuestion, questions
from appliance.store.db import STORE_FILE, Store

# A cross-encoder over 50 passages a question would take the tests many minutes; the best few are what it sorts.
SETTINGS = RecallSettings(fused_candidates=8)
ANSWERABLE = [question for question in questions() if question.answerable]


@pytest.fixture(scope="module")
def recall(pocket: ResolvedPack, library: Path) -> Iterator[Recall]:
    store = Store.open(library / STORE_FILE)
    embedder = OnnxEmbedder(pocket.embedder, ModelSettings())
    reranker = OnnxReranker(pocket.reranker, ModelSettings()) if pocket.reranker else None
    mix = pocket.reranker.mix if pocket.reranker else None
    opened = Recall(store, library / "index", embedder, reranker, SETTINGS, mix)
    opened.open()
    yield opened
    opened.close()
    store.close()


def is_right(passage: Passage, question: SampleQuestion) -> bool:
    if passage.document != question.document:
        return False
    if question.page is None:
        return True
    first, last = passage.page_first, passage.page_last
    return first is not None and last is not None and first <= question.page <= last


def test_there_are_ten_questions_in_each_language() -> None:
    assert [sum(question.lang == lang for question in ANSWERABLE) for lang in ("en", "zh")] == [10, 10]


@pytest.mark.parametrize("rerank", [False, True])
@pytest.mark.parametrize("question", ANSWERABLE, ids=lambda question: question.id)
def test_the_right_page_is_among_the_first_three(recall: Recall, question: SampleQuestion, rerank: bool) -> None:
    request = SearchRequest(question.question, "default", "hybrid", rerank, 3, 60_000.0)
    found = recall.search(request)
    assert any(is_right(passage, question) for passage in found.passages), [
        (passage.document, passage.page_first, round(passage.score, 3)) for passage in found.passages
    ]
    assert not any(reason.startswith("rerank_partial") for reason in found.degraded)


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("HX-200/77-1203", "hx-200-pump-manual.pdf"),
        ("77-1203", "hx-200-pump-manual.pdf"),
        ("F09", "kc-75-compressor-manual-zh.pdf"),
        ("空氣壓縮機故障代碼", "kc-75-compressor-manual-zh.pdf"),
        ("DG45-F-0101", "dg-45-generator-field-guide.docx"),
    ],
)
def test_part_numbers_and_traditional_characters_are_found_by_words(recall: Recall, query: str, document: str) -> None:
    found = recall.search(SearchRequest(query, "default", "lexical", False, 3)).passages
    assert found[0].document == document


def test_the_indexes_agree_with_the_store(recall: Recall) -> None:
    assert recall.check() == []
