"""Owns how an error becomes an HTTP reply: the one place where that happens.

Must not know which error comes from where.
"""

from __future__ import annotations

import logging
import math
import re
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from appliance.errors import ApplianceError, Overloaded, Unavailable

_log = logging.getLogger(__name__)
_MISSING = re.compile(r"Missing required query parameter '(?P<name>[^']*)'")


class ClientGone(Exception):
    """The client closed the connection; nobody reads a reply."""


class Problem(msgspec.Struct, frozen=True):
    """An error as a client sees it: OpenAI's fields, a status and extra headers."""

    status: int
    message: str
    type: str
    code: str
    param: str | None = None
    headers: dict[str, str] = {}

    def as_object(self) -> dict[str, dict[str, str | None]]:
        """`{"error": {…}}`."""
        error = {"message": self.message, "type": self.type, "code": self.code, "param": self.param}
        return {"error": error}

    def body(self) -> bytes:
        """The reply's JSON."""
        return msgspec.json.encode(self.as_object())


def problem_of(error: Exception) -> Problem:
    """What to tell the client about `error`; an error that is nobody's plan is logged here."""
    if isinstance(error, ApplianceError):
        headers = {}
        if isinstance(error, (Overloaded, Unavailable)):
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        if error.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return Problem(error.status, error.text, error.kind, error.code, error.param, headers)
    if isinstance(error, HTTPException):
        return _of_framework(error)
    if isinstance(error, ClientGone):
        # The status is nginx's for this; only a log could show it.
        return Problem(499, "The client closed the connection.", "invalid_request_error", "client_gone")
    _log.error("unexpected error", exc_info=error)
    message = "Something went wrong inside the service; its log has the details under this reply's X-Request-Id."
    return Problem(500, message, "server_error", "internal_error")


def _of_framework(error: HTTPException) -> Problem:
    status = error.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("unexpected error", exc_info=error)
    param = None
    message = error.detail.rstrip(".")
    match status:
        case HTTPStatus.NOT_FOUND:
            message = "There is no such route; GET /openapi.json lists all"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            message = "This route does not take that method"
        case HTTPStatus.BAD_REQUEST if isinstance(error.extra, list) and error.extra:
            first: dict[str, Any] = error.extra[0] if isinstance(error.extra[0], dict) else {}
            param = first.get("key")
            message = f"{param}: {first.get('message', message)}" if param else message
        case HTTPStatus.BAD_REQUEST if missing := _MISSING.match(message):
            param = missing["name"]
            message = f"The query parameter {param} is missing"
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    code = HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")
    return Problem(status, message + ".", kind, code, param, dict(error.headers or {}))


def handle(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's exception handler."""
    problem = problem_of(error)
    return Response(problem.body(), status_code=problem.status, media_type="application/json", headers=problem.headers)
