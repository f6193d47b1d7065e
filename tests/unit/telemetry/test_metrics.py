"""The registry: names by OpenTelemetry's and Prometheus' rules, what is read, and sources that fail."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from appliance.telemetry.derive import STAGES
from appliance.telemetry.metrics import BY_NAME, METRICS, Metrics, Reading
from appliance.telemetry.process import Gpus, of_processes


def test_names_are_unique_and_as_prometheus_wants_them() -> None:
    assert len(BY_NAME) == len(METRICS) == len({metric.prometheus for metric in METRICS})
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.prometheus), metric.prometheus
        assert metric.prometheus.endswith("_total") == (metric.kind == "counter")
        if metric.unit == "s":
            assert re.search(r"_seconds(_total)?$", metric.prometheus), metric.prometheus
        if metric.unit == "By":
            assert re.search(r"_bytes(_total)?$", metric.prometheus), metric.prometheus
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert metric.help.endswith(".")


VALUES = st.dictionaries(st.sampled_from(STAGES), st.lists(st.floats(0, 1000), min_size=1, max_size=5), max_size=5)


@settings(max_examples=25)
@given(VALUES)
def test_the_text_says_what_was_measured(values: dict[str, list[float]]) -> None:
    metrics = Metrics()
    for stage, seconds in values.items():
        for value in seconds:
            metrics.measure("appliance.stage.duration", value, stage)
    metrics.watch(lambda: [Reading("appliance.queue.length", 4, ("recall",)), Reading("appliance.engine.steps", 9)])
    read = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    assert read == {(sample.name, sample.labels): sample.value for sample in metrics.samples()}
    for stage, seconds in values.items():
        labels = (("stage", stage),)
        assert read["appliance_stage_duration_seconds_count", labels] == len(seconds)
        for bound in BY_NAME["appliance.stage.duration"].buckets:
            key = (("le", str(float(bound))), ("stage", stage))
            assert read["appliance_stage_duration_seconds_bucket", key] == sum(value <= bound for value in seconds)
    assert read["appliance_queue_length", (("queue", "recall"),)] == 4
    assert read["appliance_engine_steps_total", ()] == 9


def test_a_source_that_fails_takes_nothing_with_it(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()

    def broken() -> list[Reading]:
        raise OSError("gone")

    metrics.watch(broken)
    metrics.watch(lambda: [Reading("appliance.engine.up", 1)])
    assert "appliance_engine_up 1.0" in metrics.text().decode()
    assert "figures cannot be read" in caplog.text


def test_processes_tell_their_memory_and_time() -> None:
    found = {(reading.name, reading.labels): reading.value for reading in of_processes({"api": os.getpid(), "x": None})}
    assert 10 << 20 < found["process.memory.usage", ("api",)] < 100 << 30
    assert found["process.cpu.time", ("api",)] > 0
    assert len(found) == 2
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert list(of_processes({"engine": gone.pid})) == []


def test_without_a_gpu_nothing_is_said_of_any() -> None:
    gpus = Gpus()
    gpus.open()
    if not Path("/dev/nvidiactl").exists():
        assert list(gpus.readings()) == []
    gpus.close()
