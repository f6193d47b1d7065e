"""Owns the figures of the service: their names, and one registry of them all.

Must not know spans, nor what the parts do that they are read from.

Names and units are OpenTelemetry's, its semantic conventions' where those have one; Prometheus gets them by its own
rules (`http.server.request.duration` in seconds is `http_server_request_duration_seconds`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

_log = logging.getLogger(__name__)

_UNITS: Final = {"s": "seconds", "By": "bytes"}
# Seconds. Stages take from a tenth of a millisecond (fuse) to minutes (a long answer on a small machine).
_STAGE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_REQUEST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_FIRST_TOKEN = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60)
_BETWEEN_TOKENS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)


class Metric(msgspec.Struct, frozen=True):
    """What one figure is called and says."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str  # UCUM, as OpenTelemetry has it
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    observed: bool = False  # read from the parts when it is asked for, not counted from spans

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, as queries have it (of a histogram, without `_bucket`)."""
        name = self.name.replace(".", "_")
        unit = _UNITS.get(self.unit)
        if unit and not name.endswith(unit):
            name += f"_{unit}"
        return f"{name}_total" if self.kind == "counter" else name

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        """Its labels in Prometheus."""
        return tuple(label.replace(".", "_") for label in self.labels)


def _read(name: str, kind: Literal["counter", "gauge"], unit: str, text: str, *labels: str) -> Metric:
    return Metric(name, kind, unit, text, labels, observed=True)


METRICS: Final = (
    Metric(
        "http.server.request.duration",
        "histogram",
        "s",
        "Requests, from their first byte to the reply's last.",
        ("http.request.method", "http.route", "http.response.status_code"),
        _REQUEST,
    ),
    Metric("appliance.stage.duration", "histogram", "s", "Stages of questions and documents.", ("stage",), _STAGE),
    Metric(
        "gen_ai.server.time_to_first_token",
        "histogram",
        "s",
        "From the question to the first generated token.",
        buckets=_FIRST_TOKEN,
    ),
    Metric(
        "gen_ai.server.time_per_output_token",
        "histogram",
        "s",
        "Mean time between the tokens of an answer.",
        buckets=_BETWEEN_TOKENS,
    ),
    Metric(
        "appliance.generation.longest_pause",
        "histogram",
        "s",
        "Longest time between two pieces of an answer.",
        buckets=_BETWEEN_TOKENS,
    ),
    Metric("appliance.tokens", "counter", "{token}", "Tokens of the generator.", ("kind",)),
    Metric("appliance.answers", "counter", "{answer}", "Answers, by whether they were made before.", ("cache",)),
    Metric("appliance.degraded", "counter", "{answer}", "What answers and searches did without.", ("reason",)),
    Metric("appliance.ingest.documents", "counter", "{document}", "What became of documents.", ("status",)),
    Metric("appliance.ingest.chunks", "counter", "{chunk}", "Chunks stored."),
    Metric("appliance.ingest.size", "counter", "By", "Bytes of the documents stored."),
    Metric("appliance.telemetry.traces", "counter", "{trace}", "Traces, by whether they were kept.", ("kind",)),
    _read("appliance.telemetry.faults", "counter", "{fault}", "Failures to keep or send telemetry."),
    _read("appliance.queue.length", "gauge", "{item}", "Who waits.", "queue"),
    _read("appliance.queue.age", "gauge", "s", "How long the oldest has waited.", "queue"),
    _read("appliance.engine.up", "gauge", "1", "Whether the engine is ready."),
    _read("appliance.engine.restarts", "counter", "{restart}", "Engines that were replaced by another."),
    _read("appliance.engine.sequences", "gauge", "{sequence}", "Requests that are computed together now."),
    _read("appliance.engine.steps", "counter", "{step}", "Batches computed."),
    _read("appliance.engine.step.sequences", "counter", "{sequence}", "Sequences of all batches together."),
    _read("appliance.engine.step.time", "counter", "s", "Time in batches; of it, in llama.cpp.", "where"),
    _read("appliance.engine.preempted", "counter", "{request}", "Requests that made room for more urgent ones."),
    _read("appliance.kv.cells", "gauge", "{cell}", "KV cells of the context.", "state"),
    _read("appliance.kv.moved", "counter", "{cell}", "KV cells that left the context, or came back.", "how"),
    _read("appliance.kv.host", "gauge", "By", "KV states that are kept outside the context."),
    _read("appliance.prefix.tokens", "counter", "{token}", "Tokens of prompts, and of them found computed.", "kind"),
    _read("appliance.speculation.tokens", "counter", "{token}", "Tokens guessed ahead, and of them right.", "kind"),
    _read("appliance.cache.lookups", "counter", "{lookup}", "What caches were asked for.", "cache", "outcome"),
    _read("appliance.cache.size", "gauge", "By", "What caches hold.", "cache", "where"),
    _read("appliance.library.documents", "gauge", "{document}", "Documents stored."),
    _read("appliance.library.chunks", "gauge", "{chunk}", "Chunks stored."),
    _read("appliance.index.vectors", "gauge", "{vector}", "Vectors, by where they lie.", "state"),
    _read("appliance.index.segments", "gauge", "{segment}", "Cold segments of vectors."),
    _read("process.memory.usage", "gauge", "By", "Memory that a process holds.", "process"),
    _read("process.cpu.time", "counter", "s", "Processor time of a process.", "process"),
    _read("hw.gpu.memory.usage", "gauge", "By", "Memory of a GPU that is in use, by anybody.", "gpu"),
    _read("hw.gpu.memory.limit", "gauge", "By", "Memory of a GPU.", "gpu"),
    _read("hw.gpu.utilization", "gauge", "1", "Share of the time in which a GPU computed.", "gpu"),
)
BY_NAME: Final[Mapping[str, Metric]] = {metric.name: metric for metric in METRICS}


class Reading(msgspec.Struct, frozen=True):
    """The present value of an observed metric; its labels in the metric's order."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A value as Prometheus has it: of a histogram, one of its buckets, its sum or its count."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


Source = Callable[[], Iterable[Reading]]


class Metrics(Collector):
    """All figures of one service. For any thread."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a time beside each counter, which nothing here reads
        self._registry = CollectorRegistry()
        self._sources: list[Source] = []
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._measured: dict[
            tuple[str, ...], Histogram
        ] = {}  # of each name and its labels: looking one up takes longer
        for metric in METRICS:
            if metric.observed:
                continue
            name, labels = metric.prometheus, metric.prometheus_labels
            if metric.kind == "counter":
                self._counters[metric.name] = Counter(name, metric.help, labels, registry=self._registry)
            else:
                self._histograms[metric.name] = Histogram(
                    name, metric.help, labels, registry=self._registry, buckets=metric.buckets
                )
        self._registry.register(self)

    def watch(self, source: Source) -> None:
        """Have `source` asked for observed metrics whenever figures are wanted; it may block for a moment."""
        self._sources.append(source)

    def count(self, name: str, amount: float = 1, *labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def measure(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram, in its unit."""
        histogram = self._measured.get((name, *labels))
        if histogram is None:
            histogram = self._histograms[name]
            histogram = self._measured[name, *labels] = histogram.labels(*labels) if labels else histogram
        histogram.observe(value)

    def families(self) -> Iterator[Family]:
        """All figures, a family for each metric, as prometheus_client has them."""
        yield from self._registry.collect()

    def text(self) -> bytes:
        """All figures in Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)

    def samples(self) -> list[Sample]:
        """All figures, one by one."""
        return [
            Sample(sample.name, tuple(sorted(sample.labels.items())), sample.value)
            for family in self.families()
            for sample in family.samples
        ]

    def describe(self) -> Iterable[Family]:
        """prometheus_client's: so that registering asks no source."""
        return ()

    def collect(self) -> Iterator[Family]:
        """prometheus_client's: what is observed, now. A source that fails leaves its figures out."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for source in tuple(self._sources):
            try:
                readings = list(source())
            except Exception:
                _log.exception("figures cannot be read")
                continue
            for reading in readings:
                metric = BY_NAME[reading.name]
                family = families.get(metric.name)
                if family is None:
                    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                    family = kind(metric.prometheus, metric.help, labels=metric.prometheus_labels)
                    families[metric.name] = family
                family.add_metric(reading.labels, reading.value)
        yield from families.values()
