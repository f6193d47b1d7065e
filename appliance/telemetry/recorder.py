"""Owns the way of ended spans: counted, put together to traces, judged, kept and sent, all in a thread of its own.

Must not know what spans mean.

    a span ends ─▶ deque (bounded) ─▶ every half second: figures, traces ─▶ sampler ─▶ store, exporters

What ends a span only appends to a deque. When that is full, the oldest are lost and counted: a flood of spans, or a
disk that hangs, costs telemetry and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from appliance.telemetry import derive
from appliance.telemetry.metrics import Metrics, Reading
from appliance.telemetry.records import TraceRecord, name_of, span_record, status_of, trace_record
from appliance.telemetry.sampling import Sampler, is_watching
from appliance.telemetry.spans import Span, Trace
from appliance.telemetry.store import TelemetryStore

TURN_S: Final = 0.5
MOST_WAITING: Final = 50_000  # spans
_MOST_OPEN: Final = 2_000  # traces whose first span has not ended, or whose spans may still come
_LATE_S: Final = 600.0  # for so long it is known of a trace whether it was kept

_log = logging.getLogger(__name__)

Exporter = Callable[[Sequence[TraceRecord]], None]


class _Open:
    """A trace that is not written yet, or may have to be written again."""

    __slots__ = ("kept", "over_s", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []  # not handled yet
        self.over_s: float | None = None  # when its first span ended
        self.kept = False


class Recorder:
    """Takes spans from any thread, by `take`.

    Args:
        metrics: counts them.
        store: keeps traces and snapshots.
        slow_ms: what takes longer is always kept.
        snapshot_s: between two snapshots of all figures.
        exporters: are given each trace that is kept; may block.
    """

    def __init__(
        self,
        metrics: Metrics,
        store: TelemetryStore,
        *,
        slow_ms: float,
        snapshot_s: float,
        exporters: Iterable[Exporter] = (),
    ) -> None:
        self._metrics = metrics
        self._store = store
        self._sampler = Sampler(slow_ms)
        self._snapshot_s = snapshot_s
        self._exporters = tuple(exporters)
        self._ended: deque[Span] = deque(maxlen=MOST_WAITING)
        self._lost = self._export_faults = 0
        self._open: OrderedDict[Trace, _Open] = OrderedDict()
        self._turning = threading.Lock()
        self._stop = threading.Event()
        self._next_snapshot_s = time.monotonic() + snapshot_s
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        metrics.watch(self._readings)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, patience_s: float = 5.0) -> None:
        """Handle what has ended, and end; a disk that hangs is not waited for longer than that."""
        self._stop.set()
        self._thread.join(patience_s)

    def take(self, span: Span) -> None:
        """A span ended: the one thing that whoever measures waits for."""
        if len(self._ended) == MOST_WAITING:
            self._lost += 1
        self._ended.append(span)

    def flush(self) -> None:
        """Handle now what has ended until now."""
        with self._turning:
            self._turn()

    def _run(self) -> None:
        while not self._stop.wait(TURN_S):
            self._guarded_flush()
        self._guarded_flush()
        self._store.close()

    def _guarded_flush(self) -> None:
        try:
            self.flush()
        except Exception:
            _log.exception("telemetry of the last moment is lost")

    def _turn(self) -> None:
        now_s = time.monotonic()
        over: list[Trace] = []
        late: set[Trace] = set()
        # Not more than are there now: what ends meanwhile comes next time.
        for _ in range(len(self._ended)):
            span = self._ended.popleft()
            trace = span.trace
            if trace is None:
                continue
            derive.count(self._metrics, span)
            entry = self._open.get(trace)
            if entry is None:
                entry = self._open[trace] = _Open()
            entry.spans.append(span)
            if span is trace.root:
                entry.over_s = now_s
                over.append(trace)
            elif entry.over_s is not None:
                late.add(trace)
        self._finish(over, now_s)
        for trace in late.difference(over):
            entry = self._open[trace]
            spans, entry.spans = entry.spans, []
            if entry.kept:
                self._store.add_spans(f"{trace.root.id:016x}", [span_record(span) for span in spans])
        self._forget_old(now_s)
        if now_s >= self._next_snapshot_s:
            self._next_snapshot_s = now_s + self._snapshot_s
            self._store.put_snapshot(time.time(), self._metrics.samples())

    def _finish(self, over: Sequence[Trace], now_s: float) -> None:
        kept: list[TraceRecord] = []
        for trace in over:
            root, entry = trace.root, self._open[trace]
            name = name_of(root)
            failed = bool(root.error) or status_of(root) >= 500 or "error.type" in root.attributes
            kind = self._sampler.verdict(name, root.ms, failed=failed, now_s=now_s)
            if kind is not None:
                kept.append(trace_record(trace, kind, [span_record(span) for span in entry.spans]))
            if kind is not None or not is_watching(name):
                self._metrics.count("appliance.telemetry.traces", 1, kind or "dropped")
            entry.spans, entry.kept = [], kind is not None
        self._store.put(kept)
        for export in self._exporters if kept else ():
            try:
                export(kept)
            except Exception as error:  # whatever a network does
                self._export_faults += 1
                if self._export_faults == 1:
                    _log.warning("traces cannot be sent: %s", error)

    def _forget_old(self, now_s: float) -> None:
        """Traces that are over for long, and the oldest of too many."""
        while self._open:
            trace, entry = next(iter(self._open.items()))
            is_old = entry.over_s is not None and now_s - entry.over_s > _LATE_S
            if not is_old and len(self._open) <= _MOST_OPEN:
                break
            del self._open[trace]

    def _readings(self) -> list[Reading]:
        return [Reading("appliance.telemetry.faults", self._store.faults + self._export_faults + self._lost)]
