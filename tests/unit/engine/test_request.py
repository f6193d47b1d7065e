"""What a request's content is: the same whoever asks again, and taken from every parameter there is."""

from __future__ import annotations

import msgspec
import pytest

from appliance.engine.protocol import Constraint, Count, Sampling, Segment, Submit
from appliance.engine.request import Request

SAMPLING = Sampling(temperature=0.5, logit_bias={2: -1.0, 1: 3.0}, logprobs=3)
SUBMIT = Submit(1, (Segment("a"),), 5, SAMPLING, ("x",), constraint=Constraint("regex", "a+"))


def digest(message: Submit | Count) -> bytes:
    return Request(message).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"id": 9, "priority": "batch", "deadline_ms": 5.0, "label": "other", "generated": (4,), "pinned": 1},
        {"sampling": msgspec.structs.replace(SAMPLING, seed=7)},
        {"sampling": msgspec.structs.replace(SAMPLING, logit_bias={1: 3.0, 2: -1.0})},
    ],
)
def test_who_asks_and_how_urgently_and_the_seed_do_not_matter(changes: dict[str, object]) -> None:
    assert digest(msgspec.structs.replace(SUBMIT, **changes)) == digest(SUBMIT)


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(SUBMIT, prompt=(Segment("b"),)),
        msgspec.structs.replace(SUBMIT, max_tokens=6),
        msgspec.structs.replace(SUBMIT, sampling=msgspec.structs.replace(SAMPLING, logit_bias={1: 3.0})),
        msgspec.structs.replace(SUBMIT, sampling=msgspec.structs.replace(SAMPLING, top_k=4)),
        msgspec.structs.replace(SUBMIT, constraint=None),
        Count(1, ("a",)),
    ],
)
def test_what_is_computed_does(other: Submit | Count) -> None:
    assert digest(other) != digest(SUBMIT)
