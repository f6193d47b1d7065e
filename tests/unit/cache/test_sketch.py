"""Counts that are never too low, hardly ever too high, and fade."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from appliance.cache.sketch import Sketch


@given(st.lists(st.binary(max_size=3), max_size=200))
def test_an_estimate_is_never_too_low(keys: list[bytes]) -> None:
    sketch, exact = Sketch(), Counter[bytes]()
    for key in keys:
        exact[key] += 1
        assert sketch.count(key) >= exact[key]
    assert all(sketch.estimate(key) >= count for key, count in exact.items())


def test_many_rare_keys_do_not_look_like_a_frequent_one() -> None:
    sketch, rng = Sketch(), random.Random(1)
    keys = [rng.randbytes(8) for _ in range(4000)]
    for key in keys:
        sketch.count(key)
    assert sum(sketch.estimate(key) >= 3 for key in keys) < 4


def test_what_is_not_asked_any_more_fades() -> None:
    sketch = Sketch(period=100)
    for _ in range(40):
        sketch.count(b"a")
    for number in range(500):
        sketch.count(b"%d" % number)
    assert sketch.estimate(b"a") <= 2


def test_counting_has_an_end() -> None:
    sketch = Sketch(period=10_000)
    assert max(sketch.count(b"a") for _ in range(1000)) == 255
