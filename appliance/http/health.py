"""Owns the routes that say whether the service lives, can answer, and with which models.

Must not know what the components do.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import Controller, Response, get

from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.ports import ComponentState

Status = Literal["ready", "not_ready", "loading", "stopping"]
ABLE = frozenset({"ready", "degraded"})


class Readiness(msgspec.Struct, frozen=True):
    """Whether questions can be answered, and each component's part in it."""

    status: Status
    components: dict[str, ComponentState]


class ModelExtension(msgspec.Struct, frozen=True):
    """What OpenAI's model object has no field for."""

    role: str
    languages: tuple[str, ...]
    context_tokens: int


class ModelObject(msgspec.Struct, frozen=True):
    """OpenAI's model object."""

    id: str
    created: int
    appliance: ModelExtension
    object: Literal["model"] = "model"
    owned_by: str = "appliance"


class ModelList(msgspec.Struct, frozen=True):
    """OpenAI's list of models."""

    data: list[ModelObject]
    object: Literal["list"] = "list"


class HealthController(Controller):
    """Liveness, readiness, models."""

    tags = ("service",)

    @get("/healthz", sync_to_thread=False)
    def alive(self) -> dict[str, str]:
        """The process lives."""
        return {"status": "alive"}

    @get("/readyz", sync_to_thread=False)
    def ready(
        self,
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Response[Readiness]:
        """Whether questions can be answered: 200, else 503."""
        components = backend.health()
        able = all(component.state in ABLE for component in components.values())
        status: Status = "ready" if able else "not_ready"
        if lifecycle.loading:
            status = "loading"
        if lifecycle.stopping:
            status = "stopping"
        headers = {"Cache-Control": "no-store"}
        if status == "ready":
            return Response(Readiness(status, components), headers=headers)
        return Response(Readiness(status, components), status_code=503, headers={**headers, "Retry-After": "1"})

    @get("/v1/models", sync_to_thread=False)
    def models(
        self,
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> ModelList:
        """The models of the pack in use."""
        return ModelList(
            [
                ModelObject(
                    model.id,
                    lifecycle.started_at,
                    ModelExtension(model.role, model.languages, model.context_tokens),
                )
                for model in backend.models()
            ]
        )
