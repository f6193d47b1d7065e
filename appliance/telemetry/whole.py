"""Owns telemetry as one thing: built from its options, started, asked and stopped.

Must not know settings files, routes or what is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from appliance.telemetry.metrics import Metrics
from appliance.telemetry.process import Gpus
from appliance.telemetry.recorder import Exporter, Recorder
from appliance.telemetry.spans import send_spans_to
from appliance.telemetry.store import FILE, TelemetryReader, TelemetryStore

if TYPE_CHECKING:
    from appliance.telemetry.otlp import Push


class Options(msgspec.Struct, frozen=True):
    """How telemetry works; see the settings of the same names."""

    folder: Path
    version: str  # of this program
    text: bool = False
    slow_ms: float = 5000.0
    traces: int = 2000
    store_bytes: int = 64 << 20
    snapshot_s: float = 30.0
    otlp_endpoint: str = ""


class Telemetry:
    """Spans, figures and what is kept of them, of one service. One at a time in a process.

    Attributes:
        metrics: all figures.
        kept: what is on the disk.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.metrics = Metrics()
        path = options.folder / FILE
        self.kept = TelemetryReader(path)
        self._gpus = Gpus()
        self._store = TelemetryStore(path, options.store_bytes, options.traces)
        self._recorder: Recorder | None = None
        self._push: Push | None = None

    def start(self) -> None:
        """Take spans from now on.

        Raises:
            BadSetting: what sends to `otlp_endpoint` is not installed.
        """
        options = self._options
        exporters: list[Exporter] = []
        if options.otlp_endpoint:
            from appliance.telemetry.otlp import Push

            self._push = Push(options.otlp_endpoint, options.version, self.metrics)
            exporters.append(self._push.traces)
        self._gpus.open()
        self.metrics.watch(self._gpus.readings)
        self._recorder = Recorder(
            self.metrics,
            self._store,
            slow_ms=options.slow_ms,
            snapshot_s=options.snapshot_s,
            exporters=exporters,
        )
        self._recorder.start()
        if self._push is not None:
            self._push.start()
        send_spans_to(self._recorder.take, texts=options.text)

    def flush(self) -> None:
        """Count and keep what has ended until now; blocks for as long as the disk takes."""
        if self._recorder is not None:
            self._recorder.flush()

    def stop(self) -> None:
        """Take no more spans; keep and send what there is, as far as that takes a few seconds."""
        send_spans_to(None)
        if self._recorder is not None:
            self._recorder.stop()
        if self._push is not None:
            self._push.stop()
        self._gpus.close()
