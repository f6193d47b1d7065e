"""Owns the proof that shown text depends on the bytes alone, never on how tokens cut them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine.text import TextStream

# A busy machine is no counterexample.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(chunks: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    """Every piece sent, and whether a stop string ended the text."""
    stream = TextStream(stop)
    pieces = [stream.feed(chunk) for chunk in chunks]
    pieces.append(stream.finish())
    return pieces, stream.stopped


def model(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """The definition: the stop string that is completed first ends the text, the longest of equals."""
    for end in range(1, len(text) + 1):
        ending = [len(s) for s in stop if s and text[:end].endswith(s)]
        if ending:
            return text[: end - max(ending)], True
    return text, False


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    borders = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(borders)]


PLACES = st.lists(st.integers(0, 1000), max_size=20)


@UNHURRIED
@given(st.text("ab", max_size=30), st.lists(st.text("ab", max_size=4), max_size=3), PLACES)
def test_any_cutting_gives_what_the_definition_says(text: str, stop: list[str], places: list[int]) -> None:
    pieces, stopped = run(cut(text.encode(), places), stop)
    assert ("".join(pieces), stopped) == model(text, stop)


@UNHURRIED
@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=3), max_size=2), PLACES)
def test_cutting_inside_characters_changes_nothing(text: str, stop: list[str], places: list[int]) -> None:
    pieces, stopped = run(cut(text.encode(), places), stop)
    assert ("".join(pieces), stopped) == model(text, stop)


@UNHURRIED
@given(st.binary(max_size=30), PLACES)
def test_bytes_that_are_no_text_are_dropped_alike_however_they_are_cut(data: bytes, places: list[int]) -> None:
    pieces, _ = run(cut(data, places))
    assert "".join(pieces) == data.decode("utf-8", errors="ignore")


@UNHURRIED
@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=4))
def test_nothing_is_held_back_that_can_not_become_a_stop(text: str, stop: str) -> None:
    stream = TextStream([stop])
    sent = ""
    for at, letter in enumerate(text):
        sent += stream.feed(letter.encode())
        if stream.stopped:
            return
        held = text[len(sent) : at + 1]
        assert stop.startswith(held)


@pytest.mark.parametrize("text", ["泵的扭矩是四十五牛米。", "🙂👩‍🔧🇨🇳", "naïve café"])
def test_characters_come_whole_when_each_byte_comes_alone(text: str) -> None:
    pieces, _ = run([bytes([byte]) for byte in text.encode()])
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces)
    assert all(len(piece) <= 1 for piece in pieces)


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    pieces, _ = run(["泵".encode()[:2], b""])
    assert "".join(pieces) == ""


def test_a_stop_over_several_tokens_leaks_nothing() -> None:
    pieces, stopped = run([b"The quick br", b"own", b" f", b"ox jumps"], ["own fox"])
    assert ("".join(pieces), stopped) == ("The quick br", True)


def test_of_several_stops_the_earliest_wins() -> None:
    pieces, _ = run([b"one two three"], ["three", "two"])
    assert "".join(pieces) == "one "


def test_half_a_stop_is_released() -> None:
    stream = TextStream(["END"])
    assert stream.feed(b"an EN") == "an "
    assert stream.feed(b"GINES") == "ENGINES"
    assert stream.feed(b" EN") == " "
    assert stream.finish() == "EN"
