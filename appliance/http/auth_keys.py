"""Owns the routes of API keys.

Must not know how keys are kept.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post
from litestar.params import FromPath

from appliance.http import body
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.schema import json_body
from appliance.store.keys import ApiKey, CreatedKey, NewKey


class KeyList(msgspec.Struct, frozen=True):
    """All keys, the newest first; no secrets."""

    keys: list[ApiKey]


class KeysController(Controller):
    """API keys."""

    tags = ("keys",)
    path = "/v1/keys"

    @post("/", operation_class=json_body(NewKey))
    async def create(
        self,
        request: Request[Any, Any, Any],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Response[CreatedKey]:
        """Make a key; its secret is in this reply and nowhere else."""
        data = await body.read(request, backend.settings.server.max_body_bytes, lifecycle, what="request")
        made = await backend.create_key(body.decode(data, NewKey))
        return Response(made, headers={"Cache-Control": "no-store"})

    @get("/")
    async def keys(self, backend: GivenBackend) -> KeyList:
        """All keys, those that expired or were revoked too."""
        return KeyList(list(await backend.keys()))

    @delete("/{key_id:str}", status_code=200)
    async def revoke(self, key_id: FromPath[str], backend: GivenBackend) -> ApiKey:
        """End a key for good, from now on."""
        return await backend.revoke_key(key_id)
