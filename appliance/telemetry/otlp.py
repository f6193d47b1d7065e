"""Owns sending traces and figures to an OpenTelemetry collector, where one is configured.

Must not know what they say. Imported only then: without it nothing here tries the network, nor needs the packages.
The SDK's own exporters speak OTLP over HTTP; what they are given is made here of our records, off the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client.metrics_core import Metric as Family

from appliance.errors import BadSetting
from appliance.telemetry import metrics
from appliance.telemetry.metrics import Metrics
from appliance.telemetry.records import SpanRecord, TraceRecord

PUSH_S: Final = 30.0
_TIMEOUT_S: Final = 5.0

_log = logging.getLogger(__name__)


class Push:
    """Sends to one collector.

    Args:
        endpoint: its address, e.g. `http://collector:4318`.
        version: of this program.
        figures: sent every `PUSH_S` seconds.

    Raises:
        BadSetting: the exporters are not installed.
    """

    def __init__(self, endpoint: str, version: str, figures: Metrics) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise BadSetting(
                "telemetry.otlp_endpoint is set, and what sends to it is not installed.",
                remedy="Install the extra `otlp`, or leave the setting empty.",
            ) from error
        address = endpoint.rstrip("/")
        self._spans = OTLPSpanExporter(f"{address}/v1/traces", timeout=_TIMEOUT_S)
        self._metrics = OTLPMetricExporter(f"{address}/v1/metrics", timeout=_TIMEOUT_S)
        self._resource = Resource({"service.name": "appliance", "service.version": version})
        self._scope = InstrumentationScope("appliance", version)
        self._figures = figures
        self._began_ns = time.time_ns()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Send figures from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Send the last figures, and end."""
        self._stopped.set()
        self._thread.join(2 * _TIMEOUT_S)
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._metrics.shutdown()

    def traces(self, records: Sequence[TraceRecord]) -> None:
        """Send traces; blocks until they are there, or given up."""
        self._spans.export([span for record in records for span in self._sdk_spans(record)])

    def _sdk_spans(self, record: TraceRecord) -> Iterable[ReadableSpan]:
        trace_id = int(record.summary.id, 16)
        began_ns = round(record.summary.started_s * 1e9)
        for span in record.spans:
            parent = span.parent or record.remote_parent
            start_ns = began_ns + round(span.start_ms * 1e6)
            yield ReadableSpan(
                name=record.summary.name if span.id == record.summary.root else span.name,
                context=_context(trace_id, span.id),
                parent=_context(trace_id, parent, remote=not span.parent) if parent else None,
                resource=self._resource,
                attributes=_attributes(span),
                kind=SpanKind.SERVER if span.id == record.summary.root else SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                start_time=start_ns,
                end_time=start_ns + round(span.ms * 1e6),
                instrumentation_scope=self._scope,
            )

    def _run(self) -> None:
        while not self._stopped.wait(PUSH_S):
            self._push_figures()
        self._push_figures()

    def _push_figures(self) -> None:
        try:
            self._metrics.export(self.figures())
        except Exception as error:  # whatever a network does
            _log.warning("figures cannot be sent: %s", error)

    def figures(self) -> MetricsData:
        """All figures as OpenTelemetry has them."""
        now_ns = time.time_ns()
        found = [self._metric(family, now_ns) for family in self._figures.families() if family.name in _KNOWN]
        scope = ScopeMetrics(self._scope, found, schema_url="")
        return MetricsData([ResourceMetrics(self._resource, [scope], schema_url="")])

    def _metric(self, family: Family, now_ns: int) -> Metric:
        known = _KNOWN[family.name]
        data: Any
        if known.kind == "histogram":
            points = [self._histogram(known, samples, now_ns) for samples in _by_labels(family).values()]
            data = Histogram(points, AggregationTemporality.CUMULATIVE)
        else:
            numbers = [
                NumberDataPoint(_labels(known, sample.labels), self._began_ns, now_ns, float(sample.value))
                for sample in family.samples
            ]
            data = Gauge(numbers)
            if known.kind == "counter":
                data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return Metric(known.name, known.help, known.unit, data)

    def _histogram(self, known: metrics.Metric, samples: Sequence[Any], now_ns: int) -> HistogramDataPoint:
        reached = [int(sample.value) for sample in samples if sample.name.endswith("_bucket")]
        total = next(sample for sample in samples if sample.name.endswith("_sum"))
        return HistogramDataPoint(
            attributes=_labels(known, total.labels),
            start_time_unix_nano=self._began_ns,
            time_unix_nano=now_ns,
            count=reached[-1],
            sum=total.value,
            bucket_counts=[now - before for before, now in zip([0, *reached], reached, strict=False)],
            explicit_bounds=known.buckets,
            min=0.0,  # of neither is kept account
            max=0.0,
        )


# prometheus_client names the family of a counter without its `_total`.
_KNOWN: Final = {metric.prometheus.removesuffix("_total"): metric for metric in metrics.METRICS}


def _context(trace_id: int, span_id: str, *, remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, int(span_id, 16), is_remote=remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _attributes(span: SpanRecord) -> dict[str, Any]:
    return dict(span.attributes)


def _labels(known: metrics.Metric, labels: dict[str, str]) -> dict[str, Any]:
    return {name: labels[told] for name, told in zip(known.labels, known.prometheus_labels, strict=True)}


def _by_labels(family: Family) -> dict[tuple[tuple[str, str], ...], list[Any]]:
    found: dict[tuple[tuple[str, str], ...], list[Any]] = {}
    for sample in family.samples:
        key = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        found.setdefault(key, []).append(sample)
    return found
