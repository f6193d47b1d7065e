"""Owns the application: its routes, its error handler, its description of itself.

Must not know sockets or how it is run.
"""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Request, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig

from appliance import __version__
from appliance.errors import NotFound
from appliance.http.ask import AskController
from appliance.http.auth import Access
from appliance.http.auth_backend import LabelledBackend
from appliance.http.auth_keys import KeysController
from appliance.http.auth_routes import check_scope
from appliance.http.cached import CacheController
from appliance.http.chat import ChatController
from appliance.http.console import ConsoleController
from appliance.http.docs import DocsController
from appliance.http.edge import Edge
from appliance.http.embeddings import EmbeddingsController
from appliance.http.health import HealthController
from appliance.http.jobs import JobController
from appliance.http.lifecycle import Lifecycle
from appliance.http.metrics import MetricsController
from appliance.http.openapi import WholeDocument
from appliance.http.originals import OriginalController
from appliance.http.origins import Origins
from appliance.http.ports import Backend
from appliance.http.problems import handle
from appliance.http.rerank import RerankController
from appliance.http.responses import ResponsesController
from appliance.http.search import SearchController
from appliance.http.stored import StoredController
from appliance.http.traces import TracesController
from appliance.telemetry.whole import Telemetry


class Application(Litestar):
    """The ASGI application over a backend.

    Attributes:
        lifecycle: how it is told that the backend can be asked, and to stop.
        access: how it is told where it listens.
    """

    def __init__(self, backend: Backend, *, loading: bool = False, telemetry: Telemetry | None = None) -> None:
        self.lifecycle = Lifecycle(loading=loading)
        self.access = Access(backend)

        def labelled(request: Request[Any, Any, Any]) -> Any:
            return LabelledBackend(backend, request.state["caller"].label)

        def measuring() -> Telemetry:
            if telemetry is None:
                raise NotFound("Telemetry is off.", remedy="Set telemetry.enabled = true and start the service again.")
            return telemetry

        super().__init__(
            route_handlers=[
                HealthController,
                MetricsController,
                TracesController,
                AskController,
                SearchController,
                RerankController,
                ChatController,
                ResponsesController,
                StoredController,
                JobController,
                OriginalController,
                CacheController,
                KeysController,
                EmbeddingsController,
                ConsoleController,
                DocsController,
            ],
            dependencies={
                "backend": Provide(labelled, sync_to_thread=False),
                "lifecycle": Provide(lambda: self.lifecycle, sync_to_thread=False),
                "telemetry": Provide(measuring, sync_to_thread=False),
            },
            guards=[check_scope],
            exception_handlers={Exception: handle},
            logging_config=None,
            request_max_body_size=None,  # `body.read` has a limit for each route
            openapi_config=OpenAPIConfig(
                title="appliance",
                version=__version__,
                # Only the document itself: the viewers that Litestar offers load scripts from the network.
                openapi_router=Router("/openapi.json", route_handlers=[], include_in_schema=False),
                render_plugins=[WholeDocument(path="/")],
                use_handler_docstrings=True,
            ),
            state=State({}),
        )
        routed: Any = super().__call__  # Litestar's ASGI types are closed unions; the edge takes any ASGI
        allowed = backend.settings.server.cors_origins
        self._edge = Edge(routed, self.lifecycle, self.access, Origins(allowed))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] == "http":
            await self._edge(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(backend: Backend, *, loading: bool = False, telemetry: Telemetry | None = None) -> Application:
    """The application over `backend`; `loading`: of which only the health is asked until `lifecycle.loaded()`.

    `telemetry` is what the routes of traces and figures show; None: that there is none.
    """
    return Application(backend, loading=loading, telemetry=telemetry)
