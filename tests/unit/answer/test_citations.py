"""Source numbers in generated text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.answer.citations import Citer
from tests.unit.answer.analysis import terms

PASSAGES = [
    "The casing bolts must be tightened to 45 Nm in a cross pattern.",
    "Replace the oil every 500 hours. Use ISO VG 46.",
    "每运行2000小时更换一次空气滤芯。",
]


def cite(text: str) -> str:
    citer = Citer(PASSAGES, terms)
    return citer.feed(text) + citer.finish()


@pytest.mark.parametrize(
    ("generated", "shown"),
    [
        ("The casing bolts are tightened to 45 Nm.", "The casing bolts are tightened to 45 Nm. [1]"),
        (
            "Replace the oil every 500 hours. Use ISO VG 46.",
            "Replace the oil every 500 hours. [2] Use ISO VG 46. [2]",
        ),
        (
            "Tighten the casing bolts to 54 Nm.",
            "Tighten the casing bolts to 54 Nm.",
        ),  # another figure: no source
        (
            "The passage says the oil is replaced every 500 hours.",
            "The passage says the oil is replaced every 500 hours. [2]",
        ),
        ("Pumps are nice.", "Pumps are nice."),
        # Its words and figure are in the passage, but in no one sentence of it.
        ("Use ISO VG 46 every 500 hours.", "Use ISO VG 46 every 500 hours."),
        ("Use ISO VG 46 [2].", "Use ISO VG 46 [2]."),  # the model's own, kept once
        ("Use ISO VG 46. [2]", "Use ISO VG 46. [2]"),
        ("Use ISO VG 46 [7].", "Use ISO VG 46. [2]"),  # there is no source 7
        ("Use ISO VG 46", "Use ISO VG 46 [2]"),
        ("每运行2000小时更换空气滤芯。好的。", "每运行2000小时更换空气滤芯。 [3]好的。"),
        ("See [a] and [12", "See [a] and [12"),
        ("", ""),
    ],
)
def test_numbers_name_the_source_that_bears_the_sentence_out(generated: str, shown: str) -> None:
    assert cite(generated) == shown


@given(
    st.lists(
        st.sampled_from(
            [
                "The casing bolts",
                " 45 Nm",
                ".",
                " ",
                "\n",
                "[1]",
                "[",
                "]",
                "[12",
                "9",
                "Use ISO VG 46",
                "。",
                "更换滤芯",
            ]
        ),
        max_size=20,
    ),
    st.data(),
)
def test_pieces_do_not_matter(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    citer = Citer(PASSAGES, terms)
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert "".join(citer.feed(piece) for piece in pieces) + citer.finish() == cite(text)


def test_used_sources_are_those_shown() -> None:
    citer = Citer(PASSAGES, terms)
    citer.feed("Use ISO VG 46. Bolts [1]. Nothing [9].")
    citer.finish()
    assert citer.used == {1, 2}


def test_going_round_in_circles_is_noticed() -> None:
    citer = Citer(PASSAGES, terms)
    citer.feed("The rope order number is 13. Replace it. Replace it. The rope")
    assert not citer.repeats
    citer.feed(" order number is 13. And")
    assert citer.repeats
