"""The benchmark of what telemetry costs: what its table says."""

from __future__ import annotations

from build_scripts.bench.telemetry_bench.measure import text


def test_the_ratio_is_of_sides_of_one_round() -> None:
    told = text({"on": [99.0, 49.0, 198.0], "off": [100.0, 50.0, 200.0]})
    assert "| on | 99.0 [49.0, 198.0] |" in told
    assert "0.9900 [0.9800, 0.9900]" in told
