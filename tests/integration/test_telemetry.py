"""Telemetry of the real service: one trace from the request to the engine and the parser, figures, and no text."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.packs import ResolvedPack
from tests.integration.program import Service, run, run_json, serving

NOTE = "# Zeppelin winch\n\nThe zeppelin winch takes a cable of 37 metres.\n"
QUESTION = "How long is the cable of the zeppelin winch?"


@pytest.fixture(scope="module")
def service(pocket: ResolvedPack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("telemetry")
    with serving(folder / "data", folder / "log", APPLIANCE_TELEMETRY_SNAPSHOT_S="0.2") as running:
        yield running


@pytest.fixture(scope="module")
def asked(service: Service) -> dict[str, Any]:
    """A document was put in, and then asked for; the trace of the question."""
    url = f"{service.url}/v1/collections/default/documents"
    added = httpx.put(url, params={"source": "note.md"}, content=NOTE.encode(), timeout=60)
    assert added.json()["status"] == "added"
    body = {"question": QUESTION, "max_tokens": 8, "appliance": {"cache": "refresh"}}
    headers = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "X-Request-Id": "the-question"}
    with httpx.stream("POST", f"{service.url}/v1/ask", json=body, headers=headers, timeout=120) as reply:
        assert reply.status_code == 200
        reply.read()
    found: dict[str, Any] = httpx.get(f"{service.url}/v1/traces/the-question").json()
    return found


def named(trace: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {span["name"]: span for span in trace["spans"]}


def test_a_question_is_one_trace_from_the_socket_to_the_engine(asked: dict[str, Any]) -> None:
    spans = named(asked)
    assert {
        *("http.request", "cache", "queue", "recall", "embed_query", "recall.lexical", "recall.dense", "fuse"),
        *("prompt", "prefill", "decode", "sse.write"),
    } <= set(spans)
    assert asked["summary"]["id"] == "ab" * 16
    assert asked["remote_parent"] == "cd" * 8
    (chat,) = [span for name, span in spans.items() if name.startswith("chat ")]
    assert spans["prefill"]["parent"] == spans["decode"]["parent"] == chat["id"]
    told = chat["attributes"]
    assert told["gen_ai.usage.input_tokens"] == sum(
        spans["prefill"]["attributes"][f"tokens.{kind}"] for kind in ("computed", "cached")
    )
    assert 0 < told["gen_ai.usage.output_tokens"] <= 8
    phases = [span for span in asked["spans"] if span["parent"] == chat["id"]]
    assert sum(span["ms"] for span in phases) == pytest.approx(chat["ms"], rel=0.2, abs=50)
    assert spans["recall.dense"]["attributes"]["hot.vectors"] == 1
    whole = spans["http.request"]
    assert whole["attributes"]["http.response.status_code"] == 200
    assert whole["attributes"]["appliance.cache"] == "miss"
    assert whole["attributes"]["appliance.rung"]
    for span in asked["spans"]:
        assert span["start_ms"] >= 0
        assert span["start_ms"] + span["ms"] <= whole["ms"] + 1


def test_a_document_is_one_trace_through_the_parser_and_both_threads(service: Service, asked: dict[str, Any]) -> None:
    listed = httpx.get(f"{service.url}/v1/traces", params={"limit": 500}).json()["traces"]
    (upload,) = [trace for trace in listed if trace["name"].startswith("PUT ")]
    spans = named(httpx.get(f"{service.url}/v1/traces/{upload['id']}").json())
    assert {"ingest", "parse", "parse.worker", "chunk", "embed", "index"} <= set(spans)
    assert spans["ingest"]["attributes"]["status"] == "added"
    assert spans["ingest"]["parent"] == spans["http.request"]["id"]
    assert spans["parse.worker"]["ms"] <= spans["parse"]["ms"]


def test_figures_are_there_for_prometheus_and_kept(service: Service, asked: dict[str, Any]) -> None:
    text = httpx.get(f"{service.url}/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, tuple(value for name, value in sorted(sample.labels.items()) if name != "le")): sample.value
        for family in text_string_to_metric_families(text.text)
        for sample in family.samples
    }
    assert found["http_server_request_duration_seconds_count", ("POST", "200", "/v1/ask")] == 1
    assert found["appliance_library_documents", ()] == 1
    assert found["appliance_index_vectors", ("hot",)] == 1
    assert found["appliance_ingest_documents_total", ("added",)] == 1
    assert found["appliance_tokens_total", ("generated",)] >= 1
    assert found["appliance_engine_up", ()] == 1
    assert found["appliance_engine_steps_total", ()] >= 1
    assert found["appliance_kv_cells", ("total",)] > 0
    assert found["process_memory_usage_bytes", ("engine",)] > 50 << 20
    assert found["appliance_telemetry_faults_total", ()] == 0
    kept = httpx.get(f"{service.url}/v1/metrics/history", params={"name": ["appliance_engine_up"]}).json()
    assert kept["series"][0]["points"][-1][1] == 1


def test_neither_questions_nor_documents_are_kept(service: Service, asked: dict[str, Any]) -> None:
    with sqlite3.connect(f"{(service.data_dir / 'telemetry.sqlite3').as_uri()}?mode=ro", uri=True) as file:
        bodies = [zlib.decompress(body) for (body,) in file.execute("SELECT body FROM traces")]
    file.close()
    assert len(bodies) >= 2
    for word in (b"eppelin", b"metres", b"note.md", b"How long"):
        assert not any(word in body for body in bodies), word


def test_commands_show_traces_also_when_the_service_is_gone(
    service: Service, asked: dict[str, Any], tmp_path: Path
) -> None:
    listed = run_json(service.data_dir, "traces", "list")
    assert "the-question" in [trace["request_id"] for trace in listed]
    shown = run(service.data_dir, "traces", "show", "the-question")
    assert shown.returncode == 0, shown.stderr
    assert "recall.dense" in shown.stdout
    assert "█" in shown.stdout
    assert run(service.data_dir, "traces", "list", "--slow", "--failed").returncode == 0
    missing = run(tmp_path / "nothing", "traces", "show", "12345678")
    assert (missing.returncode, "traces list" in missing.stderr) == (1, True)
