"""Owns which routes are open, and which scopes of a key open the others: all of it, in one table.

Must not know keys, nor what the routes do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from appliance.http.auth import Caller, Grant, MissingScope

# Nothing of what is stored, and the same for everybody.
OPEN: Final = re.compile(r"/(healthz|readyz|openapi\.json|docs|console/.*)?")

_QUERY: Final = frozenset[Grant]({"query"})
_INGEST: Final = frozenset[Grant]({"ingest"})
_EITHER: Final = frozenset[Grant]({"query", "ingest"})
_ADMIN: Final = frozenset[Grant]({"admin"})
_KEYS: Final = frozenset[Grant]({"keys"})

# Route → grants, of which a caller needs one. What is not here needs "admin".
ROUTES: Final[Mapping[tuple[str, str], frozenset[Grant]]] = {
    ("GET", "/v1/models"): _EITHER,
    ("POST", "/v1/ask"): _QUERY,
    ("POST", "/v1/search"): _QUERY,
    ("POST", "/v1/chat/completions"): _QUERY,
    ("POST", "/v1/responses"): _QUERY,
    ("GET", "/v1/responses/{response_id}"): _QUERY,
    ("DELETE", "/v1/responses/{response_id}"): _QUERY,
    ("POST", "/v1/embeddings"): _QUERY,
    ("POST", "/v1/rerank"): _QUERY,
    ("GET", "/v1/collections"): _EITHER,
    ("PATCH", "/v1/collections/{collection_name}"): _INGEST,
    ("DELETE", "/v1/collections/{collection_name}"): _INGEST,
    ("PUT", "/v1/collections/{collection_name}/documents"): _INGEST,
    ("POST", "/v1/collections/{collection_name}/documents"): _INGEST,
    ("GET", "/v1/jobs"): _INGEST,
    ("GET", "/v1/jobs/{job_id}"): _INGEST,
    ("POST", "/v1/jobs/{job_id}/cancel"): _INGEST,
    ("POST", "/v1/jobs/{job_id}/retry"): _INGEST,
    ("GET", "/v1/documents"): _EITHER,
    ("DELETE", "/v1/documents/{document_id}"): _INGEST,
    ("GET", "/v1/documents/{document_id}/content"): _QUERY,
    ("GET", "/v1/cache"): _ADMIN,
    ("DELETE", "/v1/cache"): _ADMIN,
    ("GET", "/metrics"): _ADMIN,
    ("GET", "/v1/metrics/history"): _ADMIN,
    ("GET", "/v1/traces"): _ADMIN,
    ("GET", "/v1/traces/{trace_id}"): _ADMIN,
    ("POST", "/v1/keys"): _KEYS,
    ("GET", "/v1/keys"): _KEYS,
    ("DELETE", "/v1/keys/{key_id}"): _KEYS,
}


def is_open(path: str) -> bool:
    """Whether a path is answered to everybody."""
    return OPEN.fullmatch(path) is not None


def needed(method: str, route: str) -> frozenset[Grant]:
    """The grants of which one opens a route, given as the application has it: `/v1/documents/{document_id}`."""
    return ROUTES.get((method, route), _ADMIN)


def check_scope(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Litestar's guard of every route.

    Raises:
        MissingScope: the caller's key does not open it.
    """
    scope: Any = connection.scope  # its type is one of HTTP or of WebSockets, which there are none of
    method, route = scope["method"], scope["path_template"]
    if is_open(route.rstrip("/") or "/") or method == "OPTIONS":
        return
    caller: Caller = connection.state["caller"]
    grants = needed(method, route.rstrip("/"))
    if caller.grants & grants:
        return
    if caller.key is None:
        raise MissingScope(
            "API keys are managed over the unix socket, or with a key of scope admin.",
            remedy="Use `appliance keys` on the machine itself.",
        )
    raise MissingScope(
        f"The API key {caller.key.name!r} has the scopes {', '.join(caller.key.scopes)}; "
        f"this needs {' or '.join(sorted(grants - {'keys'}) or ['admin'])}.",
        remedy="`appliance keys create --scope …` makes another key.",
    )
