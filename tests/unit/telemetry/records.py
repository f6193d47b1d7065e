"""Owns traces made up for tests.

Must not know any test.
"""

from __future__ import annotations

from appliance.telemetry.records import Kind, SpanRecord, TraceRecord, TraceSummary


def trace(number: int, kind: Kind = "ordinary", *, spans: int = 3, filler: str = "") -> TraceRecord:
    """A trace that began `number` seconds after 1970."""
    root = SpanRecord(f"{number:08x}{0:08x}", "http.request", 0.0, 10.0, attributes={"filler": filler, "codes": ["a"]})
    below = [
        SpanRecord(f"{number:08x}{at:08x}", f"stage {at}", float(at), 1.0, parent=root.id) for at in range(1, spans)
    ]
    summary = TraceSummary(
        f"{number:032x}", float(number), 10.0, "POST /v1/ask", kind, 200, f"request-{number}", root.id
    )
    return TraceRecord(summary, (root, *below))
