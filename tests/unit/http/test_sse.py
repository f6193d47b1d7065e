"""Server-sent events, read back by a parser written from the HTML standard."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from appliance.answer.types import Delta
from appliance.http import sse
from appliance.http.ask import AskFormat


def parse(raw: bytes) -> list[tuple[str, str]]:
    """`(event, data)` of each event, as the HTML standard's algorithm dispatches them."""
    found: list[tuple[str, str]] = []
    event, data = "", None
    for line in re.split("\r\n|\n|\r", raw.decode("utf-8")):
        if line == "":
            if data is not None:
                found.append((event or "message", data.removesuffix("\n")))
            event, data = "", None
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                event = value
            elif name == "data":
                data = (data or "") + value + "\n"
    assert (event, data) == ("", None), "the last event does not end with a blank line"
    return found


@given(st.text(), st.sampled_from(["", "delta", "error"]))
def test_any_text_arrives_with_its_line_ends_as_lf(text: str, event: str) -> None:
    joined = text.replace("\r\n", "\n").replace("\r", "\n")
    assert parse(sse.encode(text, event)) == [(event or "message", joined)]


@given(st.lists(st.text(min_size=1), min_size=1))
def test_deltas_arrive_unchanged_even_with_every_kind_of_line_end(pieces: list[str]) -> None:
    raw = b"".join(AskFormat().event(Delta(piece)) + sse.PING for piece in pieces)
    assert [json.loads(data)["text"] for _, data in parse(raw)] == pieces
    # Python's own idea of a line end is wider than the standard's; clients are written with it.
    lines = [line for line in raw.decode().splitlines() if line.startswith("data: ")]
    assert [json.loads(line.removeprefix("data: "))["text"] for line in lines] == pieces


def test_separators_that_json_leaves_as_they_are() -> None:
    assert len(AskFormat().event(Delta("a\u2028b\u2029c\x85d\x1ce\x0bf")).decode().splitlines()) == 3


def test_a_ping_is_no_event() -> None:
    assert parse(sse.PING) == []
    assert sse.PING.endswith(b"\n\n")
