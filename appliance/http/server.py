"""Owns running the application: uvicorn on our own sockets, and a stop that lets streams end well.

Must not know routes.

    first signal   no new connections, readiness 503, new requests on open connections 503
    … streams and requests under way go on …
    after shutdown_grace_s, or at a second signal: streams end with an error event that says "retry"
    CUT_MARGIN_S later: uvicorn cancels what still runs (a client that does not read)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import uvicorn

from appliance.config import Settings
from appliance.errors import BadSetting
from appliance.http.address import (
    BACKLOG,
    UnixListener,
    bind_port,
    given_port,
    given_unix,
    is_exposed,
    socket_path,
)
from appliance.http.connection import Connection
from appliance.http.crowd import Crowd
from appliance.http.tls import server_context
from appliance.store.db import STORE_FILE
from appliance.store.keys import any_active

if TYPE_CHECKING:
    from appliance.http.app import Application

CUT_MARGIN_S = 1.5
KEEP_ALIVE_S = 75.0
HANDSHAKE_PATIENCE_S = 10.0
OTHER_FILES = 512  # that the process has open beside its connections, at most

_log = logging.getLogger(__name__)


class Server:
    """The bound service. A context manager: leaving it closes the sockets.

    Attributes:
        url: where it listens, e.g. `http://127.0.0.1:8080`.
        socket: the path of its unix socket.
    """

    def __init__(self, settings: Settings, given: Sequence[socket.socket] = ()) -> None:
        self._grace_s = settings.server.shutdown_grace_s
        self._most = settings.server.max_connections
        _allow_files(self._most + OTHER_FILES)
        self._tls = server_context(settings.server.tls_certificate, settings.server.tls_key)
        mode = int(settings.server.socket_mode, 8)
        with contextlib.ExitStack() as closing:
            for listener in given:
                closing.callback(listener.close)
            port = given_port(given) or bind_port(settings.server.host, settings.server.port)
            self._port = closing.enter_context(port)
            unix = given_unix(given) or UnixListener(socket_path(settings), mode)
            self._unix = closing.enter_context(contextlib.closing(unix))
            self._exposed = is_exposed(self._port)
            if self._exposed and not any_active(settings.data_path / STORE_FILE):
                raise BadSetting(
                    f"The address is {self._port.getsockname()[0]}, and there is no API key: the service listens "
                    "beyond this machine only for those who have one.",
                    remedy="Make one first: appliance keys create --name NAME --scope query",
                    param="server.host",
                )
            self._closing = closing.pop_all()
        host, number = self._port.getsockname()[:2]
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://[{host}]:{number}" if ":" in host else f"{scheme}://{host}:{number}"
        self.socket = self._unix.path
        self._app: Application | None = None
        self._uvicorn: _Uvicorn | None = None
        self._stop_asked = False

    @classmethod
    def bind(cls, settings: Settings, given: Sequence[socket.socket] = ()) -> Self:
        """Bind both addresses, at once, before anything slow is done; not those that a service manager has `given`.

        Raises:
            BadSetting: an address beyond loopback while there is no API key, or a socket path that is too long.
            CannotListen: the port is in use.
            DataDirBusy: another service answers on the socket.
        """
        return cls(settings, given)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()

    async def run(self, app: Application) -> None:
        """Serve until `stop` is called, or SIGTERM or SIGINT comes; returns when all requests have ended."""
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # nobody in front of a loopback port may say who the client is
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=int(KEEP_ALIVE_S),
        )
        # `Config` says int; what it goes to is `asyncio.wait_for`.
        config.timeout_graceful_shutdown = self._grace_s + CUT_MARGIN_S  # type: ignore[assignment]
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        app.access.exposed = self._exposed
        self._app = app
        self._uvicorn = _Uvicorn(config, self._tls, Crowd(self._most))
        if self._stop_asked:
            self.stop()
        _log.info("listening on %s and %s", self.url, self.socket)
        if self._exposed and self._tls is None:
            _log.warning("without TLS, whoever is on the way reads keys and documents: see server.tls_certificate")
        with self._signals():
            await self._uvicorn.serve(sockets=[self._port, self._unix.socket])
        # Those that uvicorn cancelled close their answers now; it does not wait for them.
        if left := self._uvicorn.server_state.tasks:
            await asyncio.wait(left, timeout=CUT_MARGIN_S)
        app.lifecycle.close()

    def stop(self) -> None:
        """Begin to stop; called again: cut what still runs."""
        self._stop_asked = True
        if self._app is None or self._uvicorn is None:
            return  # `run` will see
        _log.info("stopping")
        self._app.lifecycle.stop(self._grace_s)
        self._uvicorn.should_exit = True

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals go to the main thread; whoever runs the service elsewhere calls `stop`
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _allow_files(count: int) -> None:
    """Have the system let this process open that many files, as far as it may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        _log.warning("only %d files may be open, not %d: see server.max_connections and LimitNOFILE", hard, count)
        count = hard
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class _Uvicorn(uvicorn.Server):
    """uvicorn's server on sockets of two kinds: the network's, with TLS and a bound, and unix sockets, without."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None, crowd: Crowd) -> None:
        super().__init__(config)
        self._tls = tls
        self._crowd = crowd

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept on all of them from now on."""
        loop = asyncio.get_running_loop()
        self.servers = []
        for listener in sockets or ():
            local = listener.family == socket.AF_UNIX
            self.servers.append(
                await loop.create_server(
                    functools.partial(self._connection, None if local else self._crowd),
                    sock=listener,
                    backlog=BACKLOG,
                    ssl=None if local else self._tls,
                    ssl_handshake_timeout=None if local or self._tls is None else HANDSHAKE_PATIENCE_S,
                )
            )
        self.started = True

    def _connection(self, crowd: Crowd | None) -> Connection:
        return Connection(crowd, config=self.config, server_state=self.server_state, app_state={})

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours, above: uvicorn's would raise the signal again at the end and kill the process uncleanly."""
        yield
