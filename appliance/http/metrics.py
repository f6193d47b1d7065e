"""Owns the routes of figures: all of them now for Prometheus, and how they went for whoever looks at the machine.

Must not know what is measured.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import msgspec
from litestar import Controller, Response, get
from litestar.params import FromQuery, QueryParameter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from appliance.http.given import GivenTelemetry
from appliance.telemetry.store import Series

_LATELY_S = 3600.0
MOST_POINTS = 1000


class History(msgspec.Struct, frozen=True):
    """How figures went; each point is [seconds since 1970, value]."""

    since_s: float
    until_s: float
    series: list[Series]


class MetricsController(Controller):
    """Figures of the service."""

    tags = ("telemetry",)

    @get("/metrics", media_type="text/plain")
    async def now(self, telemetry: GivenTelemetry) -> Response[bytes]:
        """All figures, in Prometheus' text format."""

        def text() -> bytes:
            telemetry.flush()
            return telemetry.metrics.text()

        found = await asyncio.to_thread(text)
        return Response(found, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"})

    @get("/v1/metrics/history")
    async def history(
        self,
        telemetry: GivenTelemetry,
        name: FromQuery[list[str]],
        since_s: FromQuery[float | None] = None,
        until_s: FromQuery[float | None] = None,
        points: Annotated[int, QueryParameter(ge=1, le=MOST_POINTS)] = 200,
    ) -> History:
        """How samples went, by the `name`s (several may be given) that `GET /metrics` has for them.

        From `since_s` to `until_s`, in seconds since 1970: the last hour when they are left out.
        """
        until = time.time() if until_s is None else until_s
        since = until - _LATELY_S if since_s is None else since_s
        found = await asyncio.to_thread(telemetry.kept.history, name, since, until, points)
        return History(since, until, found)
