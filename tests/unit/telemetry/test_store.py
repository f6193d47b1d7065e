"""What telemetry keeps on the disk: within its limits, through damage, for readers beside the writer."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.telemetry.metrics import Sample
from appliance.telemetry.records import Kind, SpanRecord
from appliance.telemetry.store import TelemetryReader, TelemetryStore
from tests.unit.telemetry.records import trace

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.sqlite3"


def opened(path: Path, most_bytes: int = 4 * MIB, most_traces: int = 100) -> tuple[TelemetryStore, TelemetryReader]:
    return TelemetryStore(path, most_bytes, most_traces), TelemetryReader(path)


def test_a_trace_comes_back_as_it_was(path: Path) -> None:
    store, reader = opened(path)
    store.put([trace(1), trace(2, "slow")])
    assert reader.get(f"{1:032x}") == trace(1)
    assert reader.get("request-2") == trace(2, "slow")
    assert reader.get(f"{1:032x}"[:31]) in (trace(1), trace(2, "slow"))
    assert reader.get("0000000") is None, "seven digits name no trace"
    assert [found.request_id for found in reader.newest()] == ["request-2", "request-1"]
    assert [found.kind for found in reader.newest(kinds=["slow", "failed"])] == ["slow"]
    assert reader.newest(least_ms=11) == []
    assert [found.request_id for found in reader.newest(before_s=2)] == ["request-1"]
    store.close()
    assert reader.get("request-1") == trace(1), "also when nobody writes any more"


def test_nothing_kept_is_nothing_found(path: Path) -> None:
    reader = TelemetryReader(path)
    assert reader.newest() == []
    assert reader.get("request-1") is None
    assert reader.history(["x"], 0, 1, 10) == []
    assert not path.exists()


def test_spans_that_come_late_are_put_where_they_belong(path: Path) -> None:
    store, reader = opened(path)
    store.put([trace(1)])
    late = SpanRecord("f" * 16, "decode", 1.5, 99.0, parent=trace(1).summary.root)
    store.add_spans(trace(1).summary.root, [late])
    store.add_spans("0" * 16, [late])
    found = reader.get("request-1")
    assert found is not None
    assert [span.name for span in found.spans] == ["http.request", "stage 1", "decode", "stage 2"]
    assert store.faults == 0


KINDS = st.sampled_from(["ordinary", "slow", "failed"])


@settings(max_examples=30)
@given(st.lists(KINDS, max_size=60), st.integers(1, 10))
def test_the_newest_of_each_sort_are_kept(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[Kind], most: int
) -> None:
    store, reader = opened(tmp_path_factory.mktemp("ring") / "file", most_traces=most)
    for number, kind in enumerate(kinds):
        store.put([trace(number, kind, spans=1)])
    store.close()
    kept = {found.request_id for found in reader.newest(limit=1000)}
    ordinary = [number for number, kind in enumerate(kinds) if kind == "ordinary"]
    others = [number for number, kind in enumerate(kinds) if kind != "ordinary"]
    assert kept == {f"request-{number}" for number in ordinary[-most:] + others[-most:]}


def test_the_file_keeps_to_its_size_and_slow_traces_outlive_quick_ones(path: Path) -> None:
    store, reader = opened(path, most_bytes=MIB, most_traces=100_000)
    noise = random.Random(1)
    store.put([trace(0, "slow")])
    for number in range(1, 400):
        store.put([trace(number, filler=noise.randbytes(8000).hex())])
        store.put_snapshot(float(number), [Sample("up", (), float(number))])
    assert path.stat().st_size <= MIB
    assert store.faults == 0
    kept = reader.newest(limit=1000)
    assert kept[0].request_id == "request-399"
    assert 20 < len(kept) < 400
    (series,) = reader.history(["up"], 0, 1000, 10)
    assert (series.points[-1].time_s, series.points[-1].value) == (399.0, 399.0)


@pytest.mark.parametrize("what", ["rubbish", "cut", "flipped", "other schema", "other rows"])
def test_a_damaged_file_is_begun_anew(path: Path, what: str) -> None:
    store, reader = opened(path)
    store.put([trace(number, filler="x" * 3000) for number in range(50)])
    store.close()
    data = bytearray(path.read_bytes())
    if what == "rubbish":
        path.write_bytes(b"no database" * 1000)
    elif what == "cut":
        path.write_bytes(data[: len(data) // 2 + 7])
    elif what == "flipped":
        for at in range(100, len(data), 50):
            data[at] ^= 0xFF
        path.write_bytes(data)
    else:
        with sqlite3.connect(path) as file:
            if what == "other schema":
                file.executescript("DROP TABLE traces; CREATE TABLE traces (x); CREATE TABLE more (y)")
            else:
                file.execute("UPDATE traces SET body = 'nothing'")
        file.close()
    reader.newest()
    reader.get("request-1")
    for number in range(3):
        store.put([trace(100 + number)])
        store.put_snapshot(1.0, [])
    assert [found.request_id for found in reader.newest()][:1] == ["request-102"]
    assert 0 < store.faults <= 3
    store.close()


def test_a_disk_that_takes_nothing_is_counted_and_no_fault(tmp_path: Path) -> None:
    missing = tmp_path / "file" / "telemetry.sqlite3"
    missing.parent.write_text("a file where a folder should be")
    store, reader = opened(missing)
    store.put([trace(1)])
    store.put_snapshot(1.0, [])
    store.add_spans("0" * 16, [])
    assert store.faults >= 2
    assert reader.newest() == []


def test_history_has_the_last_value_of_each_span_of_time(path: Path) -> None:
    store, reader = opened(path)
    for second in range(100):
        samples = [
            Sample("appliance_queue_length", (("queue", queue),), float(second)) for queue in ("engine", "recall")
        ]
        store.put_snapshot(float(second), [*samples, Sample("other", (), 1.0)])
    found = reader.history(["appliance_queue_length"], 0, 100, 10)
    assert [series.labels for series in found] == [{"queue": "engine"}, {"queue": "recall"}]
    assert [point.value for point in found[0].points] == [9.0, 19.0, 29.0, 39.0, 49.0, 59.0, 69.0, 79.0, 89.0, 99.0]
    assert [len(series.points) for series in reader.history(["other"], 50, 60, 1000)] == [11]
