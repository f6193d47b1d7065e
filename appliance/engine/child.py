"""Owns one engine process as seen from the API: spawned, its messages, its last words, its end.

Must not know requests or when to restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Sequence

from appliance.engine.process import engine_arguments
from appliance.engine.protocol import (
    PROTOCOL_VERSION,
    EngineConfig,
    Failed,
    FrameBuffer,
    FromEngine,
    Ready,
    Shutdown,
    ToEngine,
    decode_from_engine,
    encode,
)
from appliance.errors import ApplianceError, BadSetting, ModelCorrupt, Unavailable

_READ_BYTES = 1 << 16
_LAST_LINES = 20
# OpenMP threads that spin while they wait for each other collapse (ten times slower, measured on two cores) as
# soon as anything else wants a core, and here search and the API do; threads that sleep at once lose a quarter of an
# idle machine's speed. A short spin has the better of both (figures in ARCHITECTURE). Set in the environment, it wins.
_ENVIRONMENT = {"GOMP_SPINCOUNT": "200"}

_log = logging.getLogger(__name__)


class EngineChild:
    """A running engine process with both ends of its talk. Made by `spawn`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._frames = FrameBuffer()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._logs = asyncio.create_task(self._read_log())

    @classmethod
    async def spawn(cls, command: Sequence[str], config: EngineConfig) -> EngineChild:
        """Start a process by `command` and the arguments that tell it its socket and `config`; it is not ready yet."""
        ours, theirs = socket.socketpair()
        process = None
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    *engine_arguments(theirs.fileno(), config),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    env=_ENVIRONMENT | os.environ,
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException as error:  # also when it is cancelled: nothing may be left behind
            ours.close()
            if process is not None:
                process.kill()
                await process.wait()
            if isinstance(error, OSError):
                raise Unavailable(f"The engine process can't be started: {error}.") from error
            raise
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def become_ready(self, timeout_s: float) -> Ready:
        """Wait for the model to be loaded.

        Raises:
            ModelCorrupt, BadSetting, Unavailable: it can't be; with the engine's reason or last log lines.
        """
        try:
            async with asyncio.timeout(timeout_s):
                messages = await self.receive()
        except TimeoutError:
            raise Unavailable(
                f"The engine was not ready after {timeout_s:g} s.",
                remedy=f"Raise engine.start_timeout_s, or use a smaller model. {self._last_words()}",
            ) from None
        match messages[0] if messages else None:
            case Ready(protocol=protocol) as ready if protocol == PROTOCOL_VERSION:
                # What came with `Ready` can only be the first heartbeat.
                return ready
            case Failed(code=code, message=message):
                raise _start_error(code, message)
        await self._ended()
        raise Unavailable(f"The engine {self.end} before it was ready.", remedy=self._last_words())

    async def receive(self) -> list[FromEngine]:
        """The next messages, at least one; empty: the process is gone.

        Raises:
            FrameError: what arrived is no message.
        """
        while True:
            try:
                data = await self._reader.read(_READ_BYTES)
            except ConnectionError:
                return []
            if not data:
                return []
            if bodies := self._frames.feed(data):
                return [decode_from_engine(body) for body in bodies]

    def send(self, message: ToEngine) -> None:
        """Send a message; silently lost when the process is gone, which `receive` tells."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def stop(self, grace_s: float) -> None:
        """Ask the process to end; kill it after `grace_s`. Nothing is left of it afterwards."""
        self.send(Shutdown())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Kill the process if it still runs, and free everything; also when the caller is cancelled meanwhile."""
        ending = asyncio.create_task(self._end())
        try:
            await asyncio.shield(ending)
        finally:
            await asyncio.wait((ending,))

    async def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.kill()
        await self._ended()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    @property
    def end(self) -> str:
        """How the process ended, for messages."""
        code = self._process.returncode
        if code is None:
            return "is running"
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    async def _ended(self) -> None:
        await self._process.wait()
        await self._logs

    def _last_words(self) -> str:
        return f"Its last lines: {' | '.join(self._lines)}" if self._lines else "It left no message."

    async def _read_log(self) -> None:
        assert self._process.stderr is not None  # noqa: S101
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # a line longer than the reader's limit: dropped
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._lines.append(text)
            level = logging.WARNING if text.startswith(("WARNING", "ERROR", "CRITICAL")) else logging.INFO
            _log.log(level, "engine %d: %s", self.pid, text)


def _start_error(code: str, message: str) -> ApplianceError:
    kinds: dict[str, type[ApplianceError]] = {"model_corrupt": ModelCorrupt, "bad_setting": BadSetting}
    return kinds.get(code, Unavailable)(message)
