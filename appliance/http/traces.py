"""Owns the routes of traces: which requests there were, and where the time of one went.

Must not know what spans mean.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from litestar import Controller, get
from litestar.params import FromPath, FromQuery, QueryParameter

from appliance.errors import NotFound
from appliance.http.given import GivenTelemetry
from appliance.telemetry.records import Kind, TraceRecord, TraceSummary

MOST_LISTED = 500


class TraceList(msgspec.Struct, frozen=True):
    """Traces that were kept, the newest first."""

    traces: list[TraceSummary]


class TracesController(Controller):
    """Requests and documents of lately, and of the slow and failed ones those of long ago."""

    tags = ("telemetry",)
    path = "/v1/traces"

    @get("/")
    async def listed(
        self,
        telemetry: GivenTelemetry,
        kind: FromQuery[list[Kind] | None] = None,
        least_ms: Annotated[float, QueryParameter(ge=0)] = 0.0,
        before_s: FromQuery[float | None] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=MOST_LISTED)] = 50,
    ) -> TraceList:
        """Traces: of a `kind` (`ordinary`, `slow`, `failed`; may be given twice), that took `least_ms`, that began
        before `before_s`."""

        def read() -> TraceList:
            telemetry.flush()
            before = 1e18 if before_s is None else before_s
            return TraceList(
                telemetry.kept.newest(kinds=tuple(kind or ()), limit=limit, least_ms=least_ms, before_s=before)
            )

        return await asyncio.to_thread(read)

    @get("/{trace_id:str}")
    async def show(self, telemetry: GivenTelemetry, trace_id: FromPath[str]) -> TraceRecord:
        """One trace with its spans: by its id, by 8 or more digits of it, or by the request's id (`X-Request-Id`)."""

        def read() -> TraceRecord | None:
            telemetry.flush()
            return telemetry.kept.get(trace_id)

        found = await asyncio.to_thread(read)
        if found is None:
            raise NotFound(f"No trace {trace_id!r} is kept.", remedy="`appliance traces list` shows those that are.")
        return found
