"""Owns which figures are counted from which spans.

Must not know how spans are made or kept. Every span is counted, whether its trace is kept or not.
"""

from __future__ import annotations

from typing import Final

from appliance.telemetry.metrics import Metrics
from appliance.telemetry.spans import Span

REQUEST: Final = "http.request"
DOCUMENT: Final = "ingest"
# Of questions and documents, in their order.
STAGES: Final = (
    "queue",
    "cache",
    "recall",
    "filter",
    "embed_query",
    "recall.lexical",
    "recall.dense",
    "fuse",
    "rerank",
    "prompt",
    "prefill",
    "decode",
    "sse.write",
    DOCUMENT,
    "parse",
    "chunk",
    "embed",
    "index",
)
_STAGES: Final = frozenset(STAGES)


def count(metrics: Metrics, span: Span) -> None:
    """Add a span that has ended to all figures that follow from it."""
    seconds = (span.end_ns - span.start_ns) / 1e9
    name, told = span.name, span.attributes
    if name in _STAGES:
        metrics.measure("appliance.stage.duration", seconds, name)
        if name == DOCUMENT:
            _document(metrics, span)
    elif name == REQUEST:
        _request(metrics, span, seconds)
    elif told.get("gen_ai.operation.name") == "chat":
        _generation(metrics, span)


def _request(metrics: Metrics, span: Span, seconds: float) -> None:
    told = span.attributes
    labels = (told.get("http.request.method", ""), told.get("http.route", ""), told.get("http.response.status_code", 0))
    metrics.measure("http.server.request.duration", seconds, *map(str, labels))
    if (outcome := told.get("appliance.cache")) is not None:
        metrics.count("appliance.answers", 1, str(outcome))
    reasons = told.get("appliance.degraded", ())
    for reason in reasons if isinstance(reasons, list) else ():
        metrics.count("appliance.degraded", 1, str(reason))


def _generation(metrics: Metrics, span: Span) -> None:
    generated = _number(span, "gen_ai.usage.output_tokens")
    first_s = _number(span, "appliance.ttft_ms") / 1000
    cached = _number(span, "gen_ai.usage.cache_read.input_tokens")
    for kind, amount in (
        ("prompt", _number(span, "gen_ai.usage.input_tokens")),
        ("cached", cached),
        ("generated", generated),
    ):
        if amount:
            metrics.count("appliance.tokens", amount, kind)
    if first_s:
        metrics.measure("gen_ai.server.time_to_first_token", first_s)
    if generated > 1 and (writing_ms := _number(span, "appliance.writing_ms")):
        metrics.measure("gen_ai.server.time_per_output_token", writing_ms / 1000 / (generated - 1))
        metrics.measure("appliance.generation.longest_pause", _number(span, "appliance.longest_pause_ms") / 1000)


def _document(metrics: Metrics, span: Span) -> None:
    status = str(span.attributes.get("status", "failed"))
    metrics.count("appliance.ingest.documents", 1, status)
    if status in ("added", "replaced"):
        metrics.count("appliance.ingest.chunks", _number(span, "chunks"))
        metrics.count("appliance.ingest.size", _number(span, "size_bytes"))


def _number(span: Span, name: str) -> float:
    value = span.attributes.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
