"""Owns traces as they are kept, shown and exported: plain data, and what is read off it.

Must not know how spans are measured or where traces lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from appliance.telemetry.spans import Attribute, Span, Trace

Kind = Literal["ordinary", "slow", "failed"]
Value = str | bool | int | float | list[str | float]


class SpanRecord(msgspec.Struct, frozen=True):
    """A span that has ended."""

    id: str  # 16 hexadecimal digits
    name: str
    start_ms: float  # since the trace began
    ms: float
    parent: str = ""  # "": the trace's first span, or one of another program's
    attributes: dict[str, Value] = {}
    error: str = ""  # the name of what ended it early


class TraceSummary(msgspec.Struct, frozen=True):
    """What a list of traces shows of one."""

    id: str  # 32 hexadecimal digits
    started_s: float  # since 1970
    ms: float
    name: str  # what was asked for: method and route of a request, else the first span's name
    kind: Kind
    status: int  # HTTP; 0: no request
    request_id: str
    root: str  # its first span here, 16 digits: a caller may send several requests of one trace


class TraceRecord(msgspec.Struct, frozen=True):
    """A whole trace; spans in the order in which they began."""

    summary: TraceSummary
    spans: tuple[SpanRecord, ...]
    remote_parent: str = ""  # the span of the caller, in another program

    def with_spans(self, more: Sequence[SpanRecord]) -> TraceRecord:
        """With spans that came after it was over."""
        spans = sorted((*self.spans, *more), key=lambda span: span.start_ms)
        return msgspec.structs.replace(self, spans=tuple(spans))

    def tree(self) -> Iterator[tuple[int, SpanRecord]]:
        """Spans with their depth, each followed by those within it; one whose parent is missing stands at the top."""
        known = {span.id for span in self.spans}
        within: dict[str, list[SpanRecord]] = {}
        for span in self.spans:
            within.setdefault(span.parent if span.parent in known else "", []).append(span)
        waiting = [(0, span) for span in reversed(within.get("", []))]
        while waiting:
            depth, span = waiting.pop()
            yield depth, span
            waiting += [(depth + 1, below) for below in reversed(within.get(span.id, []))]


def span_record(span: Span) -> SpanRecord:
    """A span that has ended, as it is kept."""
    assert span.trace is not None  # noqa: S101
    return SpanRecord(
        id=f"{span.id:016x}",
        name=span.name,
        start_ms=round((span.start_ns - span.trace.start_ns) / 1e6, 3),
        ms=round((span.end_ns - span.start_ns) / 1e6, 3),
        parent=f"{span.parent:016x}" if span.parent else "",
        attributes={name: _plain(value) for name, value in span.attributes.items()},
        error=span.error,
    )


def trace_record(trace: Trace, kind: Kind, spans: Sequence[SpanRecord]) -> TraceRecord:
    """A trace whose first span has ended, as it is kept."""
    root = trace.root
    summary = TraceSummary(
        id=f"{trace.id:032x}",
        started_s=trace.wall_ns / 1e9,
        ms=round((root.end_ns - root.start_ns) / 1e6, 3),
        name=name_of(root),
        kind=kind,
        status=status_of(root),
        request_id=str(root.attributes.get("request.id", "")),
        root=f"{root.id:016x}",
    )
    remote = f"{trace.remote_parent:016x}" if trace.remote_parent else ""
    return TraceRecord(summary, (), remote).with_spans(spans)


def name_of(root: Span) -> str:
    """What was asked for."""
    method, route = root.attributes.get("http.request.method"), root.attributes.get("http.route")
    return f"{method} {route or '?'}" if method else root.name


def status_of(root: Span) -> int:
    """The HTTP status of the reply; 0: none was given, or it was no request."""
    status = root.attributes.get("http.response.status_code", 0)
    return status if isinstance(status, int) else 0


def _plain(value: Attribute) -> Value:
    return value if isinstance(value, str | bool | int | float) else [*value]
