"""Owns the proof of the rule that tells a request that kills the engine from those beside it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.suspects import REMEMBERED, Suspects


def test_only_a_death_alone_after_an_earlier_one_is_guilt() -> None:
    suspects = Suspects()
    assert suspects.blame([b"a"], alone=True) is None, "once is nobody's fault"
    assert suspects.company(b"a") == math.inf
    assert suspects.blame([b"a", b"b"], alone=False) is None, "another was there"
    assert suspects.company(b"a") == 1
    assert suspects.company(b"b") == math.inf
    assert suspects.blame([b"a"], alone=False) is None, "something that had not started was there"
    assert suspects.blame([b"a"], alone=True) == b"a"
    assert suspects.guilty(b"a")
    assert not suspects.guilty(b"b")


def test_one_that_is_answered_is_cleared() -> None:
    suspects = Suspects()
    suspects.blame([b"a"], alone=True)
    suspects.clear(b"a")
    assert not suspects
    assert suspects.blame([b"a"], alone=True) is None


def test_equal_requests_die_once_but_take_their_places() -> None:
    suspects = Suspects()
    for _ in range(2):
        suspects.blame([b"a"] * 8, alone=False)
    assert suspects.company(b"a") == 2
    assert suspects.blame([b"a"] * 2, alone=False) is None
    assert suspects.company(b"a") == 1


def test_what_is_remembered_is_bounded() -> None:
    suspects = Suspects()
    names = [str(number).encode() for number in range(REMEMBERED + 1)]
    for name in names:
        suspects.blame([name], alone=True)
        suspects.blame([name], alone=True)
    assert not suspects.guilty(names[0])
    assert all(suspects.guilty(name) for name in names[1:])
    many = [str(number).encode() for number in range(4 * REMEMBERED)]
    for _ in range(2):
        suspects.blame(many, alone=False)
    assert suspects.company(many[0]) == REMEMBERED, "those of one death are all remembered"
    suspects.blame([b"x"], alone=True)
    assert suspects.company(many[0]) == math.inf


@given(
    count=st.integers(1, 300),
    deadly=st.integers(0, 299),
    strays=st.lists(st.integers(0, 9), max_size=4),
    room=st.integers(1, 64),
)
def test_the_deadly_one_is_found_and_all_others_are_answered(
    count: int, deadly: int, strays: list[int], room: int
) -> None:
    """Rounds of an engine that dies of request `deadly` whenever that runs, and in the rounds `strays` of nothing."""
    suspects = Suspects()
    waiting = list(range(count))
    name = {number: str(number).encode() for number in waiting}
    died_alone: set[int] = set()
    deaths = strayed = rounds = 0
    while waiting:
        aboard: list[int] = []
        company = math.inf
        for number in waiting:
            company = min(company, suspects.company(name[number]))
            if len(aboard) >= min(company, room):
                break
            aboard.append(number)
        assert aboard, "somebody always runs"
        stray = rounds in strays
        rounds += 1
        if not stray and deadly not in aboard:
            for number in aboard:
                suspects.clear(name[number])
            waiting = [number for number in waiting if number not in aboard]
            continue
        strayed += stray
        deaths += 1
        alone = len(aboard) == 1
        if alone:
            died_alone.add(aboard[0])
        guilty = suspects.blame([name[number] for number in aboard], alone=alone)
        if guilty is not None:
            number = int(guilty)
            assert number in died_alone
            assert number == deadly or strayed > 0
            waiting.remove(number)
        assert deaths <= strayed + 3 + math.log(max(room, 1), 4)
    if not strays and deadly < count:
        assert suspects.guilty(name[deadly])
