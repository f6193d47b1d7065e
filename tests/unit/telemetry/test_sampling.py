"""Which traces are kept: slow and failed ones always, of the others so many a second."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.telemetry.sampling import BURST, ORDINARY_A_SECOND, Sampler, is_watching

ASK = "POST /v1/ask"


@given(st.lists(st.tuples(st.floats(0, 20_000), st.booleans(), st.floats(0, 1)), max_size=300))
def test_slow_and_failed_ones_are_kept_whatever_comes(requests: list[tuple[float, bool, float]]) -> None:
    sampler, now_s, ordinary = Sampler(5000), 0.0, 0
    for ms, failed, pause_s in requests:
        now_s += pause_s
        kind = sampler.verdict(ASK, ms, failed=failed, now_s=now_s)
        if failed:
            assert kind == "failed"
        elif ms > 5000:
            assert kind == "slow"
        ordinary += kind == "ordinary"
    assert ordinary <= BURST + now_s * ORDINARY_A_SECOND + 1


def test_what_takes_much_longer_than_its_like_is_slow() -> None:
    sampler = Sampler(5000)
    for number in range(100):
        sampler.verdict(ASK, 20 + number % 5, failed=False, now_s=number)
    assert sampler.verdict(ASK, 200, failed=False, now_s=100) == "slow"
    assert sampler.verdict(ASK, 25, failed=False, now_s=101) == "ordinary"
    assert sampler.verdict("POST /v1/search", 200, failed=False, now_s=102) == "ordinary"


def test_nothing_is_slow_by_comparison_with_a_few() -> None:
    sampler = Sampler(5000)
    for number in range(5):
        sampler.verdict(ASK, 1, failed=False, now_s=number)
    assert sampler.verdict(ASK, 100, failed=False, now_s=6) == "ordinary"


def test_watching_is_kept_only_where_it_failed() -> None:
    sampler = Sampler(5000)
    for name in ("GET /metrics", "GET /readyz", "GET /v1/traces/{trace_id}", "GET /console/{path}", "GET /"):
        assert sampler.verdict(name, 9000, failed=False, now_s=0) is None
        assert sampler.verdict(name, 1, failed=True, now_s=0) == "failed"


def test_what_is_watching_is_told_by_the_route() -> None:
    assert not is_watching(ASK)
    assert not is_watching("ingest")
    assert is_watching("GET /healthz")


def test_many_names_are_forgotten_the_oldest_first() -> None:
    sampler = Sampler(5000)
    for number in range(10_000):
        sampler.verdict(f"GET /{number}", 1, failed=False, now_s=number)
    assert len(sampler._lately) <= 64
