"""Owns the measurement: an appliance with the sample manuals in it, searched in this process by the routes of HTTP.

Must not know the command line.

Searches without reranking are what telemetry weighs most on: about ten spans in a few milliseconds. A vector of a
question is remembered, so each is asked for once before; caches of passages are not in the way of an explained search.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence

import httpx
from msgspec.structs import replace

from appliance import samples
from appliance.config import load
from appliance.errors import Unavailable
from appliance.http.app import create_app
from appliance.observe import telemetry_of
from appliance.service import Appliance
from build_scripts.bench._lib.conditions import say
from build_scripts.bench._lib.figures import ratios, spread

SIDES = ("on", "off")


async def measure(rounds: int, searches: int) -> dict[str, list[float]]:
    """Searches a second of each side, round by round; who begins changes from round to round.

    Raises:
        ApplianceError: the models are not to be had.
    """
    with tempfile.TemporaryDirectory(prefix="telemetry-bench-") as folder:
        settings = replace(load(), data_dir=folder)
        appliance = Appliance(settings)
        await asyncio.to_thread(appliance.claim)
        try:
            await asyncio.to_thread(appliance.open)
            await asyncio.to_thread(appliance.load_models)
            for path in samples.manuals():
                say(f"reading {path.name}")
                data = await asyncio.to_thread(path.read_bytes)
                await appliance.ingest("default", str(path), path.name, data)
            queries = [question.question for question in samples.questions()]
            figures: dict[str, list[float]] = {side: [] for side in SIDES}
            await _round(appliance, queries, len(queries), on=True)
            for turn in range(rounds):
                for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
                    figures[side].append(await _round(appliance, queries, searches, on=side == "on"))
                say(f"{turn + 1}/{rounds}: " + ", ".join(f"{side} {figures[side][-1]:.1f}/s" for side in SIDES))
            return figures
        finally:
            await appliance.close()


async def _round(appliance: Appliance, queries: Sequence[str], searches: int, *, on: bool) -> float:
    telemetry = telemetry_of(appliance) if on else None
    if telemetry is not None:
        telemetry.start()
    transport = httpx.ASGITransport(create_app(appliance, telemetry=telemetry), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        began = time.perf_counter()
        for number in range(searches):
            body = {"query": queries[number % len(queries)], "rerank": False, "explain": True}
            reply = await client.post("/v1/search", json=body)
            if reply.is_error:
                raise Unavailable(f"A search failed: {reply.text}")
        if telemetry is not None:  # the work of the thread belongs to it
            await asyncio.to_thread(telemetry.flush)
        seconds = time.perf_counter() - began
    if telemetry is not None:
        await asyncio.to_thread(telemetry.stop)
    return searches / seconds


def text(figures: Mapping[str, Sequence[float]]) -> str:
    """The result as a table."""
    lines = ["| telemetry | searches/s |", "| --- | --- |"]
    for side, values in figures.items():
        told = spread(values)
        lines.append(f"| {side} | {told.median:.1f} [{told.least:.1f}, {told.most:.1f}] |")
    ratio = ratios(figures["on"], figures["off"])
    lines.append(f"\nOn to off, in each round: {ratio.median:.4f} [{ratio.least:.4f}, {ratio.most:.4f}].\n")
    return "\n".join(lines)
