"""Owns `StageTimes` (milliseconds per stage of one request) and the OpenTelemetry spans around stages.

Must not know which stages exist: the names come from the callers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.util.types import AttributeValue

_tracer = trace.get_tracer("appliance")


def setup_tracing(service_version: str) -> None:
    """Install a tracer provider that records spans in this process and sends them nowhere.

    Exporters are added by configuration only: the appliance contacts no address by itself.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource({"service.name": "appliance", "service.version": service_version})
    trace.set_tracer_provider(TracerProvider(resource=resource, shutdown_on_exit=False))


@contextmanager
def span(name: str, **attributes: AttributeValue) -> Iterator[trace.Span]:
    """A span named `name` with `attributes`, current for the block."""
    with _tracer.start_as_current_span(name, attributes=attributes) as current:
        yield current


class StageTimes:
    """Wall-clock milliseconds spent in each named stage of one request.

    A stage entered twice adds up. Stages may overlap (recall runs two at once), so their sum may be more
    than `total`.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._ms: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, **attributes: AttributeValue) -> Iterator[trace.Span]:
        """Time the block as `name`, inside a span of the same name."""
        began = time.perf_counter()
        try:
            with span(name, **attributes) as current:
                yield current
        finally:
            self.add(name, (time.perf_counter() - began) * 1000.0)

    def add(self, name: str, ms: float) -> None:
        """Add `ms` milliseconds, measured elsewhere, to stage `name`."""
        self._ms[name] = self._ms.get(name, 0.0) + ms

    def elapsed_ms(self) -> float:
        """Milliseconds since the request began."""
        return (time.perf_counter() - self._started) * 1000.0

    def as_dict(self) -> dict[str, float]:
        """The times so far, rounded to a hundredth of a millisecond, with `total`."""
        return {name: round(ms, 2) for name, ms in {**self._ms, "total": self.elapsed_ms()}.items()}
