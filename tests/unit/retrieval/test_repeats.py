"""Which passages say the same, and which only look alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.retrieval.repeats import Repeats

LONG = (
    "Before the pump is started, make sure that the suction valve stands wide, that the coupling guard is mounted and "
    "that the oil in the bearing housing reaches the mark of the sight glass. Tighten the bolts of the flange to 85 Nm "
    "crosswise. Do not run the pump dry: the shaft seal is cooled by the liquid that it seals and wears within minutes."
)
CHINESE = (
    "启动水泵之前请确认吸入阀门处于正确位置,联轴器护罩已经安装,轴承箱油位达到视镜标记。法兰螺栓按对角线顺序拧紧至85牛米。"
    "水泵不得干运转,因为轴封依靠所密封的液体冷却,否则几分钟之内就会磨损,需要更换整套密封件。"
)


def same(one: str, other: str, query: str = "pump") -> bool:
    repeats = Repeats(query)
    assert repeats.first(one) is None
    return repeats.first(other) == 0


@pytest.mark.parametrize(
    "other",
    [
        LONG,
        LONG.upper(),
        "  ".join(LONG.split()) + "\n",
        LONG.replace("bearing", "bear-\n  ing"),
        LONG.replace("make sure", "ensure"),
        LONG.replace(".", " ."),
    ],
)
def test_layout_and_a_word_here_and_there_make_no_other_passage(other: str) -> None:
    assert same(LONG, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("85 Nm", "95 Nm"),
        ("85 Nm", "8.5 Nm"),
        ("85 Nm", "-85 Nm"),
        ("85 Nm", "85 ft"),
        ("Do not run", "Do run"),
        ("stands wide", "stands open"),
        ("within minutes", "within seven minutes"),
        ("The", "The pump HX-200. The"),
    ],
)
def test_what_may_be_the_whole_point_makes_another_passage(old: str, new: str) -> None:
    assert old in LONG or old == "The"
    assert not same(LONG, LONG.replace(old, new) if old != "The" else new.replace("The", LONG))


@pytest.mark.parametrize(("old", "new"), [("85", "58"), ("不得", "可以"), ("之前", "之后")])
def test_it_is_so_in_chinese(old: str, new: str) -> None:
    assert same(CHINESE, CHINESE.replace("请", ""))
    assert same(CHINESE, CHINESE.replace("水泵", "水泵 "))
    assert not same(CHINESE, CHINESE.replace(old, new))


def test_the_word_that_is_asked_for_makes_another_passage() -> None:
    other = LONG.replace("coupling", "rotor")
    assert same(LONG, other, "when is a pump started?")
    assert not same(LONG, other, "is the rotor guard mounted?")


def test_each_is_folded_into_the_first_that_says_it() -> None:
    repeats = Repeats("pump")
    texts = [LONG, "another pump", LONG.upper(), CHINESE, "another  pump", LONG]
    assert [repeats.first(text) for text in texts] == [None, None, 0, None, 1, 0]


@given(st.text())
def test_any_text_says_what_it_says(text: str) -> None:
    assert same(text, text, text)
    assert same(text, f" {text}\n")
