"""Language routing, sentences and excerpts."""

from __future__ import annotations

import pytest

from appliance.answer import excerpts
from appliance.answer.language import is_chinese, script_of, speaks
from appliance.retrieval.types import Passage, Scores
from tests.unit.answer.analysis import terms


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("What torque?", "LATIN"),
        ("拧紧扭矩是多少？", "CJK"),
        ("HX-200的拧紧扭矩", "CJK"),
        ("Момент?", "CYRILLIC"),
        ("12 / 7?", ""),
        ("ポンプの油", "CJK"),
        ("ＡＢＣ泵轴承温度", "CJK"),
    ],
)
def test_script(text: str, script: str) -> None:
    assert script_of(text) == script


def test_a_generator_is_asked_only_in_its_scripts() -> None:
    assert speaks(["en"], "What torque?")
    assert not speaks(["en"], "扭矩是多少？")
    assert speaks(["en", "zh"], "扭矩是多少？")
    assert speaks(["en"], "45?")
    assert is_chinese("扭矩 45 Nm")


def test_sentences_end_where_people_end_them() -> None:
    text = "Use 3.5 bar. Then stop!\nNext line\n停机。冷却；再开机"
    assert excerpts.split(text) == ["Use 3.5 bar.", "Then stop!", "Next line", "停机。", "冷却；", "再开机"]


def passage(text: str, number: int = 1) -> Passage:
    return Passage(number, 1, "m.pdf", "M", text, "H", 3, 3, 0.9, Scores())


def test_the_best_sentence_comes_first_with_its_source() -> None:
    found = [
        passage("Stop the pump. The casing bolts are tightened to 45 Nm. Check for leaks."),
        passage("Oil is changed every 500 hours.", 2),
    ]
    question = "What torque for the casing bolts?"
    quotes = excerpts.best_quotes(question, found, terms)
    text = excerpts.compose(question, [(2, quotes[0]), (1, quotes[1])], "instead")
    assert (
        "“The casing bolts are tightened to 45 Nm. Check for leaks.” [2]\n\n“Oil is changed every 500 hours.” [1]"
        in text
    )


@pytest.mark.parametrize(
    ("question", "why", "said"),
    [
        ("How much?", "instead", "most relevant passages"),
        ("How much?", "not_found", "do not seem to answer"),
        ("How much?", "unsupported", "not borne out by the documents"),
        ("多少？", "instead", "最相关的原文"),
        ("多少？", "not_found", "没有找到这个问题的答案"),
        ("多少？", "unsupported", "没有依据"),
    ],
)
def test_the_frame_says_why_in_the_questions_language(question: str, why: excerpts.Why, said: str) -> None:
    assert said in excerpts.compose(question, [(1, "Text.")], why)


def test_nothing_at_all() -> None:
    assert "Nothing about this" in excerpts.compose("x?", [], "not_found")


def test_a_quote_without_sentence_end_is_bounded() -> None:
    assert len(excerpts.best_quote("x", "字" * 50_000, terms)) <= 2 * excerpts.MAX_CHARACTERS + 1


def test_a_row_of_a_table_is_quoted_alone() -> None:
    rows = "Bolt | Size | Torque\nCasing bolts | M12 | 65 Nm\nImpeller nut | M24 | 130 Nm"
    assert excerpts.best_quote("torque of the casing bolts", rows, terms) == "Casing bolts | M12 | 65 Nm"
    titled = f"Table 7: Tightening torques of bolts\n{rows}"
    assert excerpts.best_quote("tightening torque of the casing bolts", titled, terms) == "Casing bolts | M12 | 65 Nm"


def test_what_stands_on_lines_of_its_own_does_not_run_together() -> None:
    assert excerpts.best_quote("启动压力", "一、启动\n启动压力为0.4兆帕。\n二、停炉", terms).startswith(
        "启动压力为0.4兆帕。 二、"
    )


def test_when_nothing_was_found_one_quotation_is_enough() -> None:
    assert "[2]" not in excerpts.compose("x?", [(1, "One."), (2, "Two.")], "not_found")
