"""Owns the proof that every message survives the way between the processes."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.engine import protocol as p

# A busy machine is no counterexample.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TO_ENGINE: list[p.ToEngine] = [
    p.Submit(
        id=1,
        prompt=(p.Segment("<|im_start|>", template=True), p.Segment("扭矩 🙂")),
        max_tokens=5,
        sampling=p.Sampling(temperature=0.5, logit_bias={3: -100.0}, seed=7),
        stop=("own fox",),
        priority="batch",
        deadline_ms=1500.0,
        label="tenant",
    ),
    p.Cancel(2),
    p.Count(3, ("a", "")),
    p.Forget(4),
    p.Shutdown(),
]
FROM_ENGINE: list[p.FromEngine] = [
    p.Ready(p.PROTOCOL_VERSION, "m", 8192, 8, "{{ x }}", "<s>", "</s>", "build", 12.5, "gpu"),
    p.Heartbeat(1, 2, 3, 4),
    p.Started(1, 10, 0, 0.5),
    p.Token(1, "泵", (5, 6)),
    p.Done(1, "stop", 10, 0, 5, 0.1, 0.2, 0.3, deadline_hit=True),
    p.Failed(1, "invalid_request", "no", "response_format"),
    p.Counted(3, (1, 0)),
    p.Forgotten(4),
]


def test_the_samples_below_hold_every_message() -> None:
    assert {type(message) for message in TO_ENGINE} == set(get_args(p.ToEngine))
    assert {type(message) for message in FROM_ENGINE} == set(get_args(p.FromEngine))


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda m: type(m).__name__)
def test_messages_to_the_engine_come_back_equal(message: p.ToEngine) -> None:
    (body,) = p.FrameBuffer().feed(p.encode(message))
    assert p.decode_to_engine(body) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda m: type(m).__name__)
def test_messages_from_the_engine_come_back_equal(message: p.FromEngine) -> None:
    (body,) = p.FrameBuffer().feed(p.encode(message))
    assert p.decode_from_engine(body) == message


@UNHURRIED
@given(st.lists(st.sampled_from(FROM_ENGINE), max_size=6), st.lists(st.integers(0, 2000), max_size=10))
def test_frames_are_found_however_the_stream_is_cut(messages: list[p.FromEngine], places: list[int]) -> None:
    data = b"".join(p.encode(message) for message in messages)
    borders = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    buffer = p.FrameBuffer()
    bodies = [body for a, b in pairwise(borders) for body in buffer.feed(data[a:b])]
    assert [p.decode_from_engine(body) for body in bodies] == messages


def test_a_frame_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(p.FrameError):
        p.FrameBuffer().feed(struct.pack(">I", p.MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa4type\xa5Nonsense"])
def test_what_is_no_message_is_told_as_such(body: bytes) -> None:
    with pytest.raises(p.FrameError):
        p.decode_to_engine(body)
    with pytest.raises(p.FrameError):
        p.decode_from_engine(body)
