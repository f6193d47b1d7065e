"""Owns what the service manager is told while the service runs: progress, readiness, signs of life, reloads, the stop.

Must not know how it is told (`systemd`) or how parts are built.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from appliance import config
from appliance.errors import ApplianceError
from appliance.http.health import ABLE
from appliance.http.ports import ComponentState

if TYPE_CHECKING:
    from appliance.http.lifecycle import Lifecycle
    from appliance.systemd import Notifier

TURN_S = 0.2
MORE_TIME_S = 60.0  # that a start asks for, again and again as long as nothing has failed
FEEDS = 3  # in the watchdog's time: two may be late
SILENCE = 3.0  # times `engine.heartbeat_timeout_s`; after once, the engine's own supervisor should have replaced it

_log = logging.getLogger(__name__)


class Supervised(Protocol):
    """What is watched."""

    def health(self) -> Mapping[str, ComponentState]:
        """The state of each part."""
        ...

    def pulse(self) -> object | None:
        """The last sign of life of the engine, another object each time; None where no engine is to give one."""
        ...


class Pulse:
    """Whether the engine gives signs of life as it should."""

    def __init__(self, limit_s: float, clock: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._last: object | None = None
        self._since = clock()

    def beats(self, sign: object | None) -> bool:
        """Whether the last change of `sign` is at most the limit ago; an engine that is down is not expected to.

        An engine that is known to be down is started again by its supervisor, and questions get quotations meanwhile;
        to kill the whole service then would take those away.
        """
        now = self._clock()
        if sign is None or sign is not self._last:
            self._last, self._since = sign, now
        return now - self._since <= self._limit_s


class Supervision:
    """Tells the service manager all there is to tell; does nothing where there is none.

    Args:
        notifier: to whom it is told.
        service: what is watched.
        lifecycle: whether the service loads or stops.
        path: the service's own socket, on which it must answer to be alive.
        heartbeat_timeout_s: the setting `engine.heartbeat_timeout_s`.
        reread: reads the settings again and says in a line what came of it.
        clock: seconds.
    """

    def __init__(
        self,
        notifier: Notifier,
        service: Supervised,
        lifecycle: Lifecycle,
        *,
        path: Path,
        heartbeat_timeout_s: float,
        reread: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notifier = notifier
        self._service = service
        self._lifecycle = lifecycle
        self._path = path
        self._reread = reread
        self._clock = clock
        self._pulse = Pulse(heartbeat_timeout_s * SILENCE, clock)
        self._reload_asked = self._reloaded = False
        self._ready = False
        self._told = self._note = self._trouble = ""
        self._asked_at = self._fed_at = float("-inf")

    def reload(self) -> None:
        """Have the settings read again soon; for a signal."""
        self._reload_asked = True

    async def run(self) -> None:
        """Tell until the stop; runs beside the server.

        READY is said once, when the first question could be answered. The watchdog is fed only if the API answers on
        its own socket and the engine's signs of life come.
        """
        if not self._notifier.listening:
            return
        try:
            while not self._lifecycle.stopping:
                self.tell_state()
                if self._reload_asked:
                    await self._reload()
                await self._feed_watchdog()
                await asyncio.sleep(TURN_S)
        finally:
            self._notifier.tell(STOPPING=1, STATUS="Stopping: requests under way are finished")

    def tell_state(self) -> None:
        """Tell what has changed: the line of status, readiness, or that a start takes longer."""
        parts = self._service.health()
        loading = self._lifecycle.loading
        line = ("Loading models and indexes" if loading else summary(parts)) + self._note
        if line != self._told and self._notifier.tell(STATUS=line):
            self._told = line
        if self._reloaded and self._notifier.tell(READY=1):
            self._reloaded = False
        if self._ready:
            return
        states = {part.state for part in parts.values()}
        if not loading and states <= ABLE:
            self._ready = self._notifier.tell(READY=1)
        elif "failed" not in states and self._clock() - self._asked_at > MORE_TIME_S / 4:
            self._asked_at = self._clock()
            self._notifier.tell(EXTEND_TIMEOUT_USEC=int(MORE_TIME_S * 1e6))

    async def _reload(self) -> None:
        self._reload_asked = False
        if self._ready:  # before, a manager takes READY as the end of the start
            self._notifier.tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        try:
            self._note = await asyncio.to_thread(self._reread)
        except ApplianceError as error:
            _log.error("the settings are not read again: %s", error.text)
            self._note = f"; the settings in the file are wrong: {error.text}"
        self._reloaded = self._ready

    async def _feed_watchdog(self) -> None:
        beats = self._pulse.beats(self._service.pulse())
        period_s = self._notifier.watchdog_s
        # The manager watches from READY on.
        if period_s is None or not self._ready or self._clock() - self._fed_at < period_s / FEEDS:
            return
        trouble = ""
        if not beats:
            trouble = "the engine gives no sign of life, and is not replaced"
        elif not await api_answers(self._path, period_s / FEEDS):
            trouble = "the service does not answer on its own socket"
        elif self._notifier.tell(WATCHDOG=1):
            self._fed_at = self._clock()
        if trouble and trouble != self._trouble:
            _log.error("the watchdog is not told that all is well: %s", trouble)
        self._trouble = trouble


async def api_answers(path: Path, timeout_s: float) -> bool:
    """Whether the service answers a request for its health on its own socket."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            finally:
                writer.close()
    except OSError:  # of which `TimeoutError` is one
        return False


def summary(parts: Mapping[str, ComponentState]) -> str:
    """One line: that questions can be answered, or which parts are not ready, and why."""
    waiting = [f"{name}: {part.detail or part.state}" for name, part in parts.items() if part.state not in ABLE]
    if waiting:
        return f"Not ready: {', '.join(waiting)}"
    worse = [f"; {name}: {part.detail}" for name, part in parts.items() if part.state == "degraded"]
    return "Ready for questions" + "".join(worse)


def difference(running: config.Settings, read: config.Settings) -> str:
    """What a restart would change, as the end of the line of status; "": nothing."""
    changed = [name for name in config.setting_names() if _value(running, name) != _value(read, name)]
    if not changed:
        _log.info("the settings were read again: nothing has changed")
        return ""
    _log.warning("a restart is needed for what has changed in the settings: %s", ", ".join(changed))
    return f"; a restart is needed for changed settings: {', '.join(changed)}"


def _value(settings: config.Settings, name: str) -> object:
    return functools.reduce(getattr, name.split("."), settings)
