"""Owns the routes of the caches.

Must not know what is cached or how.
"""

from __future__ import annotations

import msgspec
from litestar import Controller, delete, get

from appliance.cache.tiers import Figures
from appliance.http.given import GivenBackend


class CacheList(msgspec.Struct, frozen=True):
    """What the caches hold and did since the start, by name."""

    caches: dict[str, Figures]


class CacheController(Controller):
    """What is kept of earlier work."""

    tags = ("cache",)
    path = "/v1/cache"

    @get("/")
    async def figures(self, backend: GivenBackend) -> CacheList:
        """What the caches hold, and how often they were of use."""
        return CacheList(dict(await backend.cache_figures()))

    @delete("/")
    async def clear(self, backend: GivenBackend) -> None:
        """Delete all that is cached; documents and conversations are not."""
        await backend.clear_caches()
