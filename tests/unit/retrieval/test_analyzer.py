"""What counts as the same term, in English, in Chinese and in part numbers."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.retrieval.analyzer import Analyzer

ANALYZER = Analyzer()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Replacing the valves", ["replac", "valv"]),
        ("doesn't don’t the of", []),
        ("the pump's seal", ["pump", "seal"]),
        ("e-mail", ["e", "mail", "email"]),
        ("3.5 bar, 1,200 rpm", ["3.5", "bar", "1200", "rpm"]),
        ("foo_bar", ["foo", "bar", "foobar"]),
        ("泵", ["泵"]),
        ("更换密封圈", ["更换", "换密", "密封", "封圈", "密封圈"]),
        ("在 pump 里", ["在", "pump", "里"]),
        ("?!…《》 ---", []),
        ("", []),
        ("naïve café", ["naïv", "café"]),
        ("М10 болт", ["м10", "болт"]),
        ("HX-200/77", ["hx-200/77", "hx-200", "77", "hx", "200", "hx200", "hx20077"]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert ANALYZER.terms(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("液壓泵的密封圈", "液压泵的密封圈"),
        ("ＨＸ－２００／７７", "hx-200/77"),
        ("PUMP Seals", "pump seal"),
        ("don’t pump’s", "don't pump's"),
    ],
)
def test_folded_differences(one: str, other: str) -> None:
    assert ANALYZER.terms(one) == ANALYZER.terms(other)


@pytest.mark.parametrize(
    "query", ["HX-200/77-1203", "HX-200", "77-1203", "1203", "hx200771203", "ＨＸ－２００", "hx 200", "HX200"]
)
def test_a_part_number_is_found_whole_and_by_piece(query: str) -> None:
    assert set(ANALYZER.terms(query)) & set(ANALYZER.terms("order HX-200/77-1203 today"))


def test_a_whole_part_number_has_a_term_of_its_own() -> None:
    asked = set(ANALYZER.terms("HX-200/77-1203"))
    right = asked & set(ANALYZER.terms("HX-200/77-1203"))
    near = asked & set(ANALYZER.terms("HX-200/77-1204"))
    assert len(right) > len(near) > 0


def test_a_type_is_found_with_and_without_its_joint() -> None:
    assert set(ANALYZER.terms("the HX200 pump")) & set(ANALYZER.terms("HX-200")) == {"hx200"}


def test_query_terms_are_distinct_and_in_order() -> None:
    assert ANALYZER.query_terms("seal pump seal pump oil") == {"seal": 1.0, "pump": 1.0, "oil": 1.0}


def test_chinese_words_weigh_more_than_bigrams_that_words_happen_to_make() -> None:
    weights = ANALYZER.query_terms("更换密封圈")
    assert weights == {"更换": 1.0, "换密": 0.3, "密封": 0.5, "封圈": 0.5, "密封圈": 1.0}


@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=2, max_size=30))
def test_every_bigram_of_a_chinese_run_is_a_term(run: str) -> None:
    folded = ANALYZER.fold(run)
    assert {left + right for left, right in pairwise(folded)} <= set(ANALYZER.terms(run))


def test_the_spellings_of_a_compound_weigh_no_more_than_two_words() -> None:
    for compound in ("HX-200", "HX-200/77-1203", "a-1/b-2/c-3/d-4"):
        weights = ANALYZER.query_terms(compound)
        assert weights[compound.lower()] == 1.0
        assert sum(weights.values()) == pytest.approx(2.0)


def test_a_run_without_spaces_is_cut_and_takes_linear_time() -> None:
    assert [len(term) for term in ANALYZER.terms("x" * 100_000)] == [64]
    assert len(ANALYZER.terms("压" * 20_000)) >= 19_999


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_becomes_terms_that_stand_between_spaces(text: str) -> None:
    terms = ANALYZER.terms(text)
    assert " ".join(terms).split() == terms
    assert all(terms)
    assert ANALYZER.terms(text) == terms


def test_threads_get_what_one_thread_gets() -> None:
    analyzer = Analyzer()
    text = " ".join(f"maintaining{n} replacing{n} valves{n}" for n in range(300))
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(analyzer.terms(text))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [ANALYZER.terms(text)] * 4
