"""From ended spans to figures and kept traces, off the thread that measures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from appliance import telemetry
from appliance.telemetry import Span
from appliance.telemetry import recorder as module
from appliance.telemetry.metrics import Metrics
from appliance.telemetry.recorder import Recorder
from appliance.telemetry.records import TraceRecord
from appliance.telemetry.spans import send_spans_to
from appliance.telemetry.store import TelemetryReader, TelemetryStore

Make = Callable[..., Recorder]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A recorder over a file in `tmp_path`, which takes the spans; not started: it works when it is flushed."""
    made: list[Recorder] = []

    def build(**options: float) -> Recorder:
        exporters = options.pop("exporters", ())
        store = TelemetryStore(tmp_path / "file", 4 << 20, 100)
        values = {"slow_ms": 5000.0, "snapshot_s": 3600.0, **options}
        recorder = Recorder(Metrics(), store, exporters=exporters, **values)  # type: ignore[arg-type]
        made.append(recorder)
        send_spans_to(recorder.take)
        return recorder

    yield build
    send_spans_to(None)


def request(status: int = 200, route: str = "/v1/ask", told: dict[str, telemetry.Attribute] | None = None) -> Span:
    whole = telemetry.span("http.request")
    whole.attributes |= {"http.request.method": "POST", "http.route": route, "request.id": "r", **(told or {})}
    with whole, telemetry.span("recall"), telemetry.span("recall.dense", **{"hot.vectors": 7}):
        whole.set("http.response.status_code", status)
    return whole


def samples(metrics: Metrics) -> dict[str, float]:
    return {
        sample.name + "".join(f"|{value}" for name, value in sample.labels if name != "le"): sample.value
        for sample in metrics.samples()
        if not sample.name.endswith("_bucket")
    }


def test_a_request_becomes_a_trace_and_figures(make: Make, tmp_path: Path) -> None:
    recorder = make()
    request(told={"appliance.cache": "miss", "appliance.degraded": ["rerank_skipped"]})
    recorder.flush()
    reader = TelemetryReader(tmp_path / "file")
    (summary,) = reader.newest()
    assert (summary.name, summary.kind, summary.status) == ("POST /v1/ask", "ordinary", 200)
    found = reader.get("r")
    assert found is not None
    assert [(depth, span.name) for depth, span in found.tree()] == [
        (0, "http.request"),
        (1, "recall"),
        (2, "recall.dense"),
    ]
    assert found.spans[2].attributes == {"hot.vectors": 7}
    told = samples(recorder._metrics)
    assert told["http_server_request_duration_seconds_count|POST|200|/v1/ask"] == 1
    assert told["appliance_stage_duration_seconds_count|recall.dense"] == 1
    assert told["appliance_answers_total|miss"] == 1
    assert told["appliance_degraded_total|rerank_skipped"] == 1
    assert told["appliance_telemetry_traces_total|ordinary"] == 1


def test_a_generation_is_counted_by_its_tokens(make: Make) -> None:
    recorder = make()
    told: dict[str, telemetry.Attribute] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 11,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "appliance.ttft_ms": 250.0,
        "appliance.writing_ms": 400.0,
        "appliance.longest_pause_ms": 90.0,
    }
    with telemetry.span("chat model", **told):
        pass
    recorder.flush()
    found = samples(recorder._metrics)
    assert [found[f"appliance_tokens_total|{kind}"] for kind in ("prompt", "cached", "generated")] == [100, 60, 11]
    assert found["gen_ai_server_time_to_first_token_seconds_sum"] == 0.25
    assert found["gen_ai_server_time_per_output_token_seconds_sum"] == pytest.approx(0.04)
    assert found["appliance_generation_longest_pause_seconds_sum"] == pytest.approx(0.09)


@pytest.mark.parametrize("how", ["status", "error", "in the stream"])
def test_failed_requests_are_kept_as_such(make: Make, tmp_path: Path, how: str) -> None:
    recorder = make()
    if how == "status":
        request(503, "/readyz")
    elif how == "error":
        with pytest.raises(RuntimeError), telemetry.span("http.request"):
            raise RuntimeError
    else:
        request(told={"error.type": "engine_died"})
    recorder.flush()
    assert [found.kind for found in TelemetryReader(tmp_path / "file").newest()] == ["failed"]


def test_what_comes_after_the_reply_is_added_to_the_trace(make: Make, tmp_path: Path) -> None:
    recorder = make()
    whole = telemetry.span("http.request").begin()
    job = telemetry.span("ingest", status="added", chunks=3, size_bytes=10).begin(whole)
    whole.end()
    recorder.flush()
    with telemetry.inside(job), telemetry.span("embed"):
        pass
    job.end()
    recorder.flush()
    (summary,) = TelemetryReader(tmp_path / "file").newest()
    found = TelemetryReader(tmp_path / "file").get(summary.id)
    assert found is not None
    assert [span.name for span in found.spans] == ["http.request", "ingest", "embed"]
    assert samples(recorder._metrics)["appliance_ingest_chunks_total"] == 3


def test_two_requests_of_one_callers_trace_are_kept_both(make: Make, tmp_path: Path) -> None:
    recorder = make()
    for _ in range(2):
        with telemetry.span("http.request").begin(traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01"):
            pass
    recorder.flush()
    found = TelemetryReader(tmp_path / "file").newest()
    assert [summary.id for summary in found] == ["ab" * 16] * 2
    assert found[0].root != found[1].root


def test_a_flood_costs_spans_and_neither_memory_nor_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 100)
    recorder = make()
    for _ in range(250):
        with telemetry.span("recall"):
            pass
    assert len(recorder._ended) == 100
    recorder.flush()
    told = samples(recorder._metrics)
    assert told["appliance_stage_duration_seconds_count|recall"] == 100
    assert told["appliance_telemetry_faults_total"] == 150


def test_traces_whose_end_never_comes_are_forgotten(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_OPEN", 10)
    recorder = make()
    for _ in range(50):
        telemetry.span("part").begin(telemetry.span("whole").begin()).end()
    recorder.flush()
    assert len(recorder._open) <= 10


def test_what_cannot_be_sent_is_kept_all_the_same(make: Make, tmp_path: Path) -> None:
    def unplugged(records: Sequence[TraceRecord]) -> None:
        raise OSError("no network")

    recorder = make(exporters=[unplugged])
    request()
    recorder.flush()
    assert len(TelemetryReader(tmp_path / "file").newest()) == 1
    assert samples(recorder._metrics)["appliance_telemetry_faults_total"] == 1


def test_whoever_wants_to_see_has_it_handled_at_once(make: Make, tmp_path: Path) -> None:
    recorder = make()
    for number in range(3):
        request()
        flusher = threading.Thread(target=recorder.flush)
        flusher.start()
        flusher.join()
        assert len(TelemetryReader(tmp_path / "file").newest()) == number + 1
    assert samples(recorder._metrics)["appliance_telemetry_faults_total"] == 0


def test_the_thread_works_by_itself_and_hands_in_what_is_left(make: Make, tmp_path: Path) -> None:
    recorder = make(snapshot_s=0.0)
    recorder.start()
    request()
    recorder.stop()
    assert len(TelemetryReader(tmp_path / "file").newest()) == 1
    now = time.time()
    assert TelemetryReader(tmp_path / "file").history(["appliance_telemetry_faults_total"], now - 60, now, 10)
    assert not [thread for thread in threading.enumerate() if thread.name == "telemetry"]
