"""Owns the engine as the API process sees it: requests and their streams, supervision and restarts.

Must not know HTTP, documents or what prompts mean. One event loop; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Literal

from appliance.engine.child import EngineChild
from appliance.engine.protocol import (
    Cancel,
    Count,
    Counted,
    Done,
    EngineConfig,
    Failed,
    FrameError,
    FromEngine,
    Heartbeat,
    Priority,
    Ready,
    Sampling,
    Segment,
    Started,
    Submit,
    Token,
)
from appliance.errors import ApplianceError, BadRequest, EngineDied, Overloaded, PromptTooLong, Unavailable

__all__ = ["EngineClient", "EngineConfig", "State"]

State = Literal["starting", "ready", "restarting", "failed", "stopped"]

BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 4.0)  # before the first, second, … start after a death
GIVE_UP_AFTER = 5  # deaths without becoming ready in between
RETRY_FAILED_S = 30.0

_log = logging.getLogger(__name__)

_Reply = Started | Token | Done


class _Pending:
    """One request that waits for messages; `fail` ends it from outside."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[FromEngine | ApplianceError] = asyncio.Queue()

    def put(self, message: FromEngine | ApplianceError) -> None:
        self._queue.put_nowait(message)

    async def next(self) -> FromEngine:
        """The next message. Raises what the request was failed with."""
        message = await self._queue.get()
        if isinstance(message, ApplianceError):
            raise message
        if isinstance(message, Failed):
            raise _error(message)
        return message


class EngineClient:
    """Starts, watches and restarts one engine process, and sends it requests."""

    def __init__(self, spec: EngineConfig) -> None:
        self._spec = spec
        self._state: State = "stopped"
        self._changed = asyncio.Event()  # replaced at each change: whoever waits holds the old one
        self._ready: Ready | None = None
        self._heartbeat: Heartbeat | None = None
        self._restarts = 0
        self._child: EngineChild | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._pending: dict[int, _Pending] = {}
        self._idle = asyncio.Event()  # nothing is pending
        self._idle.set()
        self._ids = itertools.count(1)
        self._reason = "The engine was not started."

    @property
    def state(self) -> State:
        """What the engine does now."""
        return self._state

    @property
    def ready(self) -> Ready | None:
        """What the engine said of its model when it last became ready; None while it never was."""
        return self._ready

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The last sign of life of the running process."""
        return self._heartbeat

    @property
    def restarts(self) -> int:
        """How often a process that had been ready was replaced by a new one."""
        return self._restarts

    @property
    def pid(self) -> int | None:
        """Process id of the running engine."""
        return self._child.pid if self._child else None

    async def start(self, *, wait: bool = True) -> None:
        """Start the engine and watch it from now on; `wait` False: it becomes ready in the background.

        Raises:
            ModelCorrupt, BadSetting, Unavailable: it did not become ready; nothing is left running.
        """
        if self._supervisor is not None:
            raise RuntimeError("the engine was started already")
        self._set("starting", "The engine is starting.")
        if wait:
            try:
                await self._launch()
            except BaseException as error:
                self._set("failed", str(error))
                raise
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def stop(self, grace_s: float) -> None:
        """End the engine; what still runs after `grace_s` is cut off with `Unavailable`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        self._set("stopped", "The engine is stopping.")
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        if self._child is not None:
            child, self._child = self._child, None
            await child.stop(grace_s=1.0)
        self._fail_all(Unavailable("The service is stopping."))

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until requests can be sent. Raises `Unavailable` when that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._state != "ready":
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable(self._reason) from None

    async def generate(
        self,
        *,
        prompt: Sequence[Segment],
        max_tokens: int,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        priority: Priority = "interactive",
        deadline_ms: float | None = None,
        label: str = "",
    ) -> AsyncGenerator[Started | Token | Done]:
        """Generate. Closing the iterator, or cancelling the task that reads it, ends the generation.

        Raises:
            PromptTooLong: prompt and answer do not fit the context; the message has the numbers.
            BadRequest: another fault of the request.
            Overloaded: the queue is full, or the deadline passed before the first token.
            EngineDied: the engine ended meanwhile; a retry will work.
            Unavailable: the engine is not ready, or failed to compute.
        """
        if not all(stop):
            raise BadRequest("A stop string must not be empty.", param="stop")
        submit = Submit(
            id=next(self._ids),
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            sampling=sampling or Sampling(),
            stop=tuple(stop),
            priority=priority,
            deadline_ms=deadline_ms,
            label=label,
        )
        with self._request(submit) as (child, pending):
            ended = False
            try:
                while not ended:
                    message = await pending.next()
                    ended = isinstance(message, Done)
                    assert isinstance(message, _Reply)  # noqa: S101
                    yield message
            except ApplianceError:
                ended = True
                raise
            finally:
                if not ended:
                    child.send(Cancel(submit.id))

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text as content. Raises `Unavailable`, `EngineDied` as `generate` does."""
        with self._request(Count(next(self._ids), tuple(texts))) as (_, pending):
            message = await pending.next()
        assert isinstance(message, Counted)  # noqa: S101
        return list(message.tokens)

    @contextlib.contextmanager
    def _request(self, message: Submit | Count) -> Iterator[tuple[EngineChild, _Pending]]:
        child = self._child
        if child is None or self._state != "ready":
            raise Unavailable(self._reason)
        pending = self._pending[message.id] = _Pending()
        self._idle.clear()
        try:
            child.send(message)
            yield child, pending
        finally:
            del self._pending[message.id]
            if not self._pending:
                self._idle.set()

    def _set(self, state: State, reason: str) -> None:
        self._state, self._reason = state, reason
        self._changed.set()
        self._changed = asyncio.Event()

    async def _launch(self) -> None:
        """One start; afterwards the engine is ready, or nothing of it is left."""
        child = await EngineChild.spawn(self._spec)
        try:
            self._ready = await child.become_ready(self._spec.settings.start_timeout_s)
        except BaseException:
            await child.kill()
            raise
        self._child, self._heartbeat = child, None
        self._set("ready", "The engine is ready.")
        _log.info("engine %d is ready: %s in %.0f ms", child.pid, self._ready.model, self._ready.load_ms)

    async def _supervise(self) -> None:
        deaths = 0
        while True:
            if self._child is None:
                try:
                    await self._launch()
                except (ApplianceError, FrameError, OSError) as error:
                    deaths += 1
                    _log.error("the engine did not start (%d): %s", deaths, error)
                    if deaths >= GIVE_UP_AFTER:
                        self._set("failed", f"The engine does not start: {error}")
                    await asyncio.sleep(_backoff(deaths))
                    continue
            deaths = 0
            child = self._child
            assert child is not None  # noqa: S101
            why = await self._serve(child)
            self._child = None
            self._set("restarting", "The engine is restarting.")
            lost = len(self._pending)
            self._fail_all(EngineDied("The generation engine ended while it was answering."))
            await child.kill()
            _log.error("engine %d %s (%s); %d requests lost", child.pid, child.end, why, lost)
            self._restarts += 1
            deaths = 1
            await asyncio.sleep(_backoff(deaths))

    async def _serve(self, child: EngineChild) -> str:
        """Pass messages on until the process ends or falls silent; returns why."""
        reading = asyncio.create_task(self._read(child))
        watching = asyncio.create_task(self._watch())
        try:
            done, _ = await asyncio.wait((reading, watching), return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in (reading, watching):
                task.cancel()
            await asyncio.gather(reading, watching, return_exceptions=True)

    async def _read(self, child: EngineChild) -> str:
        try:
            while messages := await child.receive():
                self._silent_s = 0.0
                for message in messages:
                    if isinstance(message, Heartbeat):
                        self._heartbeat = message
                    elif not isinstance(message, Ready) and (pending := self._pending.get(message.id)):
                        pending.put(message)
        except FrameError as error:
            return f"sent what is no message: {error}"
        return "socket closed"

    async def _watch(self) -> str:
        """Returns when no message came for the heartbeat's timeout.

        Silence is counted in turns of this loop: when the API process itself was stopped for a while, the
        engine's messages are waiting to be read and it is not to blame.
        """
        limit = self._spec.settings.heartbeat_timeout_s
        turn = limit / 10
        self._silent_s = 0.0
        while self._silent_s < limit:
            before = time.monotonic()
            await asyncio.sleep(turn)
            self._silent_s += min(time.monotonic() - before, 2 * turn)
        return f"no sign of life for {limit:g} s"

    def _fail_all(self, error: ApplianceError) -> None:
        for pending in self._pending.values():
            pending.put(error)


def _backoff(deaths: int) -> float:
    return RETRY_FAILED_S if deaths >= GIVE_UP_AFTER else BACKOFF_S[deaths - 1]


def _error(failed: Failed) -> ApplianceError:
    match failed.code:
        case "context_length_exceeded":
            return PromptTooLong(failed.message, remedy="Shorten the prompt, or ask for fewer tokens.")
        case "overloaded" | "deadline_exceeded":
            return Overloaded(failed.message)
        case "invalid_request":
            return BadRequest(failed.message)
        case _:
            return Unavailable(failed.message)
