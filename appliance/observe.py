"""Owns which figures of the parts are shown: reads them off a running appliance whenever they are wanted.

Must not know how figures are kept or shown; `cli/` joins the two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from appliance import __version__
from appliance.engine.protocol import Heartbeat
from appliance.service import Appliance
from appliance.telemetry.metrics import Reading
from appliance.telemetry.process import of_processes
from appliance.telemetry.whole import Options, Telemetry


def telemetry_of(appliance: Appliance) -> Telemetry | None:
    """The telemetry of an appliance as its settings want it, not started; None where they want none."""
    settings = appliance.settings.telemetry
    if not settings.enabled:
        return None
    telemetry = Telemetry(
        Options(
            folder=appliance.settings.data_path,
            version=__version__,
            text=settings.text,
            slow_ms=settings.slow_ms,
            traces=settings.traces,
            store_bytes=settings.store_bytes,
            snapshot_s=settings.snapshot_s,
            otlp_endpoint=settings.otlp_endpoint,
        )
    )
    telemetry.metrics.watch(lambda: readings(appliance))
    return telemetry


def readings(appliance: Appliance) -> Iterator[Reading]:
    """All figures that are read, not counted. Asks the store and the caches: may block for a moment."""
    engine = appliance.engine
    pid = engine.pid if engine is not None else None
    yield from of_processes({"api": os.getpid(), "engine": pid})
    if engine is not None:
        yield Reading("appliance.engine.up", float(engine.state == "ready"))
        yield Reading("appliance.engine.restarts", engine.restarts)
        if pid is not None and engine.heartbeat is not None:
            yield from _engine(engine.heartbeat)
    if appliance.opened:
        yield from _library(appliance)


def _engine(beat: Heartbeat) -> Iterator[Reading]:
    yield Reading("appliance.queue.length", beat.waiting, ("engine",))
    yield Reading("appliance.queue.age", beat.oldest_wait_ms / 1000, ("engine",))
    yield Reading("appliance.engine.sequences", beat.running)
    yield Reading("appliance.engine.steps", beat.steps)
    yield Reading("appliance.engine.step.sequences", beat.step_sequences)
    yield Reading("appliance.engine.step.time", beat.step_ms / 1000, ("all",))
    yield Reading("appliance.engine.step.time", beat.decode_ms / 1000, ("llama",))
    yield Reading("appliance.engine.preempted", beat.preempted)
    for state, cells in (
        ("total", beat.kv_total_tokens),
        ("used", beat.kv_used_tokens),
        ("cached", beat.kv_cached_tokens),
        ("pinned", beat.kv_pinned_tokens),
    ):
        yield Reading("appliance.kv.cells", cells, (state,))
    yield Reading("appliance.kv.moved", beat.kv_evicted_tokens, ("evicted",))
    yield Reading("appliance.kv.moved", beat.kv_restored_tokens, ("restored",))
    yield Reading("appliance.kv.host", beat.host_cache_bytes)
    yield Reading("appliance.prefix.tokens", beat.prompt_tokens, ("prompt",))
    yield Reading("appliance.prefix.tokens", beat.cached_tokens, ("cached",))
    yield Reading("appliance.speculation.tokens", beat.drafted_tokens, ("drafted",))
    yield Reading("appliance.speculation.tokens", beat.accepted_tokens, ("accepted",))


def _library(appliance: Appliance) -> Iterator[Reading]:
    waiting, oldest_s = appliance.waiting
    yield Reading("appliance.queue.length", waiting, ("recall",))
    yield Reading("appliance.queue.age", oldest_s, ("recall",))
    yield Reading("appliance.queue.length", appliance.documents_waiting(), ("ingest",))
    collections = appliance.stored()
    yield Reading("appliance.library.documents", sum(found.documents for found in collections))
    yield Reading("appliance.library.chunks", sum(found.chunks for found in collections))
    sizes = appliance.vectors()
    for state in ("hot", "cold", "pending", "removed"):
        yield Reading("appliance.index.vectors", getattr(sizes, state), (state,))
    yield Reading("appliance.index.segments", sizes.segments)
    for name, cache in appliance.caches().items():
        for outcome in ("memory_hits", "disk_hits", "misses", "faults"):
            yield Reading("appliance.cache.lookups", getattr(cache, outcome), (name, outcome))
        yield Reading("appliance.cache.size", cache.memory_bytes, (name, "memory"))
        yield Reading("appliance.cache.size", cache.disk_bytes, (name, "disk"))
