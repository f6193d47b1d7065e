"""What a collector gets where one is configured, over a real socket; and that nobody is called where none is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from appliance import telemetry
from appliance.errors import BadSetting
from appliance.telemetry.metrics import METRICS, Reading
from appliance.telemetry.whole import Options, Telemetry


class Collector(ThreadingHTTPServer):
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.got: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """Says yes to everything."""

    server: Collector

    def do_POST(self) -> None:
        self.server.got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_collector_gets_traces_and_figures(collector: Collector, tmp_path: Path) -> None:
    whole = Telemetry(Options(tmp_path, "1.2.3", otlp_endpoint=collector.url))
    whole.metrics.watch(
        lambda: [Reading("appliance.engine.steps", 7), Reading("appliance.queue.length", 2, ("engine",))]
    )
    whole.start()
    root = telemetry.span("http.request", **{"http.request.method": "POST", "http.route": "/v1/ask"})
    with root.begin(traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01"), telemetry.span("recall", tags=["a", "b"]):
        pass
    whole.stop()
    sent = ExportTraceServiceRequest()
    (body,) = [body for path, body in collector.got if path == "/v1/traces"]
    sent.ParseFromString(body)
    spans = {span.name: span for span in sent.resource_spans[0].scope_spans[0].spans}
    assert spans.keys() == {"POST /v1/ask", "recall"}
    assert {span.trace_id.hex() for span in spans.values()} == {"ab" * 16}
    assert spans["POST /v1/ask"].parent_span_id.hex() == "cd" * 8
    assert spans["recall"].parent_span_id == spans["POST /v1/ask"].span_id
    took_ns = spans["recall"].end_time_unix_nano - spans["recall"].start_time_unix_nano
    assert 0 <= took_ns < spans["POST /v1/ask"].end_time_unix_nano - spans["POST /v1/ask"].start_time_unix_nano + 2000
    figures = ExportMetricsServiceRequest()
    figures.ParseFromString([body for path, body in collector.got if path == "/v1/metrics"][-1])
    found = {metric.name: metric for metric in figures.resource_metrics[0].scope_metrics[0].metrics}
    assert found.keys() <= {metric.name for metric in METRICS}
    assert found["appliance.engine.steps"].sum.data_points[0].as_double == 7
    assert found["appliance.engine.steps"].sum.is_monotonic
    assert found["appliance.queue.length"].gauge.data_points[0].attributes[0].value.string_value == "engine"
    (point,) = found["http.server.request.duration"].histogram.data_points
    assert (point.count, sum(point.bucket_counts)) == (1, 1)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert {attribute.key for attribute in point.attributes} == {
        "http.request.method",
        "http.route",
        "http.response.status_code",
    }


def test_without_a_collector_nothing_that_sends_is_even_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "appliance.telemetry.otlp", raising=False)
    whole = Telemetry(Options(tmp_path, "1"))
    whole.start()
    with telemetry.span("work"):
        pass
    whole.stop()
    assert "appliance.telemetry.otlp" not in sys.modules


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_without_a_collector_no_socket_of_the_network_is_made(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from appliance import telemetry\n"
        "from appliance.telemetry.whole import Options, Telemetry\n"
        "whole = Telemetry(Options(Path(sys.argv[1]), '1', snapshot_s=0.01)); whole.start()\n"
        "with telemetry.span('work'): pass\n"
        "whole.flush(); whole.metrics.text(); whole.stop()"
    )
    calls = tmp_path / "calls"
    tracing = ["strace", "-f", "-e", "trace=socket,connect,sendto", "-o", str(calls)]
    subprocess.run([*tracing, sys.executable, "-c", program, str(tmp_path)], check=True, timeout=120)
    assert (tmp_path / "telemetry.sqlite3").exists()
    assert "exited with 0" in calls.read_text()
    assert "AF_INET" not in calls.read_text()


def test_what_is_not_installed_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(BadSetting, match="extra `otlp`"):
        Telemetry(Options(tmp_path, "1", otlp_endpoint="http://127.0.0.1:9")).start()
