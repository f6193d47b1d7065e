"""Owns what happens to every request before it is routed: who may send it, its id, its trace, its last byte.

Must not know routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from appliance.errors import ApplianceError, BadRequest
from appliance.http.auth import Access, Caller, on_socket
from appliance.http.auth_routes import is_open
from appliance.http.lifecycle import Lifecycle, loading_error, stopping_error
from appliance.http.origins import Forbidden, Origins, RawHeaders
from appliance.http.problems import problem_of
from appliance.telemetry import Span

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})  # answered while the service loads and stops
CONSOLE_PATH = re.compile(r"/(console/.*)?")  # its page tells that the service is loading
# A client that is refused while it sends gets this long to notice; closing at once would reset the
# connection, and the reply with it.
LINGER_S = 1.0
NOBODY = Caller(frozenset())  # who asks for what is open to all


class Edge:
    """ASGI middleware around the whole application.

    Args:
        app: what it guards.
        lifecycle: refuses requests while the service loads and while it stops.
        access: tells who asks.
        origins: web pages that may.
    """

    def __init__(self, app: App, lifecycle: Lifecycle, access: Access, origins: Origins) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._access = access
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = _Headers(scope["headers"])
        request_id = headers.one("x-request-id")
        if not SANE_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        exchange = _Exchange(headers, request_id, self._origins.headers(headers.all("origin")), receive, send)
        whole = Span(
            "http.request",
            {"http.request.method": scope["method"], "url.path": scope["path"], "request.id": request_id},
        )
        with whole.begin(traceparent=headers.one("traceparent")):
            try:
                await self._guarded(scope, headers, exchange)
            finally:
                if (caller := scope["state"].get("caller")) is not None and caller.label:
                    whole.set("api_key.id", caller.label)
                whole.set("http.route", scope.get("path_template", ""))
                whole.set("http.response.status_code", exchange.status)

    async def _guarded(self, scope: Scope, headers: _Headers, exchange: _Exchange) -> None:
        try:
            check_host(scope, headers.all("host"), any_name=self._access.needs_key(scope))
            origins = headers.all("origin")
            self._origins.check(scope["method"], origins, headers.one("host"))
            asked = headers.one("access-control-request-method")
            granted = self._origins.preflight(scope["method"], origins, asked)
            if granted is not None:
                await exchange.reply(204, granted)
                return
            if scope["path"] not in HEALTH_PATHS:
                if self._lifecycle.stopping:
                    raise stopping_error()
                if self._lifecycle.loading and not CONSOLE_PATH.fullmatch(scope["path"]):
                    raise loading_error()
            caller = NOBODY
            if not is_open(scope["path"]):
                caller = await self._access.caller(scope, headers.all("authorization"))
            scope["state"]["caller"] = caller
            leave = self._access.enter(caller)
        except ApplianceError as error:
            await exchange.refuse(error)
            return
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            # After the cut the server cancels what still runs: expected, and told to the client if it can be.
            if not self._lifecycle.is_cut:
                raise
            if exchange.status == 0:
                await exchange.refuse(stopping_error())
        finally:
            leave()


class _Exchange:
    """The two channels of one request, watched."""

    def __init__(self, headers: _Headers, request_id: str, allowing: RawHeaders, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._added = [
            (b"x-request-id", request_id.encode()),
            (b"x-content-type-options", b"nosniff"),
            *allowing,
        ]
        # Until the body is asked for, only the headers tell whether there is one.
        length = headers.one("content-length") or "0"
        self._unread = length != "0" or bool(headers.one("transfer-encoding"))
        self.status = 0  # of the reply; 0: not begun

    async def receive(self) -> Message:
        """The application's channel in."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        """The application's channel out."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            close = [(b"connection", b"close")] if self._unread else []
            message = {**message, "headers": [*message.get("headers", ()), *self._added, *close]}
        elif self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    while self._unread:
                        await self.receive()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def refuse(self, error: ApplianceError) -> None:
        """Reply with `error`."""
        problem = problem_of(error)
        body = problem.body()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **problem.headers}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.reply(problem.status, raw, body)

    async def reply(self, status: int, headers: RawHeaders, body: bytes = b"") -> None:
        """Reply at once."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class _Headers:
    """Request headers by lower-case name."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self._raw = raw

    def all(self, name: str) -> list[str]:
        key = name.encode()
        return [value.decode("latin-1") for found, value in self._raw if found == key]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "")


def check_host(scope: Scope, hosts: list[str], *, any_name: bool = False) -> None:
    """Refuse a request over TCP that was sent to a name of somebody else.

    A web page can have its own name resolve to this machine (DNS rebinding) and is then, to the browser, of
    the same origin as the service. It cannot choose what `Host` says. Addresses need no resolving and are safe.
    Where a key is needed, which no such page has, the machine may have `any_name`.

    Raises:
        BadRequest: more than one `Host`.
        Forbidden: another name than localhost.
    """
    if on_socket(scope):  # file permissions guard it, no browser reaches it
        return
    if len(hosts) > 1:
        raise BadRequest("There is more than one Host header.")
    if any_name:
        return
    name = _host_name(hosts[0]) if hosts else ""
    if name != "localhost" and not _is_loopback(name):
        raise Forbidden(
            "The Host header names another host than this one.",
            remedy="Use http://127.0.0.1 or http://localhost with the service's port.",
        )


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().removesuffix(".")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
