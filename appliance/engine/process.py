"""Owns the engine process: its start, its loop over socket and steps, its end.

Must not know requests (that is `core`) or who supervises it. The process ends when its socket does.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from appliance.engine.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Count,
    EngineConfig,
    Failed,
    Forget,
    FrameBuffer,
    FrameError,
    FromEngine,
    Ready,
    Shutdown,
    Submit,
    ToEngine,
    decode_to_engine,
    encode,
)
from appliance.errors import ApplianceError

if TYPE_CHECKING:
    from appliance.engine.core import Core

HEARTBEAT_S = 0.5
EXIT_CANNOT_START = 3
EXIT_BAD_FRAME = 4
_READ_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1

_log = logging.getLogger(__name__)


def engine_command() -> list[str]:
    """How an engine is started, without its arguments: from source and from a frozen program."""
    if getattr(sys, "frozen", False):
        return [sys.executable, "engine"]
    return [sys.executable, "-m", "appliance", "engine"]


def engine_arguments(fd: int, config: EngineConfig) -> list[str]:
    """The arguments of `engine_command` that `main` reads back."""
    return [str(fd), msgspec.json.encode(config).decode()]


def main(arguments: Sequence[str]) -> NoReturn:
    """Entry of the process: the number of the inherited socket, and the `EngineConfig` as JSON."""
    try:
        fd, config = int(arguments[0]), msgspec.json.decode(arguments[1], type=EngineConfig)
    except (IndexError, ValueError) as error:
        sys.exit(f"The engine is started by the service, not by hand: {error}")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    sys.exit(run_engine(fd, config))


def run_engine(fd: int, config: EngineConfig) -> int:
    """Serve the socket `fd` until it is closed or `Shutdown` comes. Returns the exit code."""
    _die_with_parent()
    # Ctrl-C goes to the whole terminal; the API process decides when streams end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _Channel(socket.socket(fileno=fd))
    begin = time.monotonic()
    # Imported here: the API process, which only wants `engine_command`, needs neither numpy nor llama.cpp.
    from appliance.engine.core import Core
    from appliance.engine.llama import Llama
    from appliance.engine.persist import Identity, PrefixFiles

    try:
        llama = Llama(config)
    except ApplianceError as error:
        channel.send(Failed(0, error.code, error.text))
        channel.flush()
        return EXIT_CANNOT_START
    channel.send(
        Ready(
            protocol=PROTOCOL_VERSION,
            model=config.model_name,
            context_tokens=llama.context_tokens,
            max_sequences=llama.max_sequences,
            chat_template=config.chat_template or llama.chat_template,
            bos=llama.bos,
            eos=llama.eos,
            build=llama.build,
            load_ms=(time.monotonic() - begin) * 1000,
            device=llama.device,
        )
    )
    files = None
    if config.cache_dir and config.settings.disk_cache_bytes and not config.settings.deterministic:
        identity = Identity(config.model_sha256, llama.build, config.settings.kv_type)
        files = PrefixFiles(Path(config.cache_dir), identity, config.settings.disk_cache_bytes)
    core = Core(llama, config.settings, files, wake=channel.wake)
    try:
        _loop(channel, core)
    except FrameError as error:
        _log.error("the API process sent what is no message: %s", error)
        return EXIT_BAD_FRAME
    except ConnectionError:
        pass  # the API process is gone
    finally:
        core.close()
        llama.close()
    return 0


def _loop(channel: _Channel, core: Core) -> None:
    """Messages in, one step, messages out; a heartbeat when one is due. A step that hangs gives none."""
    next_beat = 0.0
    while True:
        now = time.monotonic()
        for message in channel.receive(0.0 if core.busy else max(0.0, next_beat - now)):
            if isinstance(message, Submit):
                core.submit(message)
            elif isinstance(message, Cancel):
                core.cancel(message)
            elif isinstance(message, Count):
                core.count(message)
            elif isinstance(message, Forget):
                core.forget(message)
            elif isinstance(message, Shutdown):
                channel.flush()
                return
        core.collect()
        if core.busy:
            core.step()
        else:
            core.idle()
        for answer in core.take_messages():
            channel.send(answer)
        now = time.monotonic()
        if now >= next_beat:
            channel.send(core.heartbeat())
            next_beat = now + HEARTBEAT_S
        channel.write()


class _Channel:
    """Frames over a non-blocking socket. A reader that is slow never stops a step."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._poll = select.poll()  # not `select`: the inherited number may be over 1023
        self._poll.register(sock)
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._poll.register(self._woken, select.POLLIN)
        self._in = FrameBuffer()
        self._out = bytearray()

    def send(self, message: FromEngine) -> None:
        """Queue a message for `write`."""
        self._out += encode(message)

    def write(self) -> None:
        """Send what the socket takes now. Raises `ConnectionError` when the other side is gone."""
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass

    def flush(self) -> None:
        """Send everything, waiting if need be."""
        self._sock.setblocking(True)
        self._sock.sendall(self._out)
        self._out.clear()

    def wake(self) -> None:
        """End the wait of `receive`, from any thread."""
        with contextlib.suppress(BlockingIOError):  # it has enough to wake up from
            os.write(self._waker, b".")

    def receive(self, timeout_s: float) -> list[ToEngine]:
        """Messages that have arrived; waits for the first, or for `wake`, at most `timeout_s`.

        Raises:
            ConnectionError: the other side is gone.
            FrameError: what arrived is no message.
        """
        self._poll.modify(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
        for number, event in self._poll.poll(timeout_s * 1000):
            if number == self._woken:
                os.read(self._woken, _READ_BYTES)
            elif event & select.POLLOUT:
                self.write()
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the socket was closed")
        return [decode_to_engine(body) for body in self._in.feed(data)]


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, however it ends."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel was asked
            raise SystemExit(0)
