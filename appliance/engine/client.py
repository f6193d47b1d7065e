"""Owns the engine as the API process sees it: requests and their streams, supervision and restarts.

Must not know HTTP, documents or what prompts mean. One event loop; nothing here blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from appliance.engine.child import EngineChild
from appliance.engine.dispatch import Dispatch
from appliance.engine.oblivion import Oblivion
from appliance.engine.process import engine_command
from appliance.engine.protocol import (
    Constraint,
    Count,
    Counted,
    Done,
    EngineConfig,
    Forget,
    Forgotten,
    FrameError,
    Heartbeat,
    Priority,
    Ready,
    Sampling,
    Segment,
    Started,
    Submit,
    Token,
)
from appliance.errors import ApplianceError, BadRequest, BadSetting, ModelCorrupt, Unavailable

__all__ = ["EngineClient", "EngineConfig", "State"]

State = Literal["starting", "ready", "restarting", "failed", "stopped"]

BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 4.0)  # before the first, second, … start after a death
GIVE_UP_AFTER = 5  # deaths without becoming ready in between
RETRY_FAILED_S = 30.0
LAST_WORDS_S = 0.5  # from the end of its socket to its own end; killed before, a process could not say why it ended

_log = logging.getLogger(__name__)


class EngineClient:
    """Starts, watches and restarts one engine process, and sends it requests.

    A request outlives the process: while the engine starts, requests wait for it; when it dies, the next one goes
    on with every answer where it stopped. See `Suspects` for those that kill it.

    Args:
        spec: what the engine is started with.
        command: how it is started, without its arguments; by default as part of this program.

    Attributes:
        oblivion: what was removed and must be forgotten by engines and their files; see `forget`.
    """

    def __init__(self, spec: EngineConfig, command: Sequence[str] = ()) -> None:
        self._spec = spec
        self._command = tuple(command) or engine_command()
        self._device = spec.device
        self._state: State = "stopped"
        self._changed = asyncio.Event()  # replaced at each change: whoever waits holds the old one
        self._ready: Ready | None = None
        self._heartbeat: Heartbeat | None = None
        self._restarts = 0
        self._child: EngineChild | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._dispatch = Dispatch(spec.settings.max_queue, spec.settings.start_timeout_s)
        self._ids = itertools.count(1)
        self._reason = "The engine was not started."
        self._degraded = ""
        self.oblivion = Oblivion(Path(spec.cache_dir) if spec.cache_dir else None)
        self._memory = 0
        self._told = self._forgotten = 0  # removals: of which the running engine was told, which it has forgotten
        self._chore: asyncio.Task[None] | None = None

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
    def degraded(self) -> str:
        """Why the engine does not run on the device that it was to run on; "": it does."""
        return self._degraded

    @property
    def pid(self) -> int | None:
        """Process id of the running engine."""
        return self._child.pid if self._child else None

    @property
    def memory(self) -> int:
        """Another number whenever something had to be forgotten: what was read before is not to be kept after."""
        return self._memory

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
                self._set("failed", f"The engine does not start: {error}")
                raise
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def stop(self, grace_s: float) -> None:
        """End the engine; what still runs after `grace_s` is cut off with `Unavailable`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._dispatch.idle.wait()
        self._set("stopped", "The service is stopping.")
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        if self._child is not None:
            await self._child.stop(grace_s=1.0)
            self._child = None
        if self._chore is not None:
            await self._chore
        await self._forget_late()  # what the last engine could not be told

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until the engine is ready. Raises `Unavailable` when that takes longer, or it does not start at all."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._state in ("starting", "restarting"):
                    await self._changed.wait()
        if self._state != "ready":
            raise Unavailable(self._reason)

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
        constraint: Constraint | None = None,
        pinned: int = 0,
        memory: int | None = None,
    ) -> AsyncGenerator[Started | Token | Done]:
        """Generate. Closing the iterator, or cancelling the task that reads it, ends the generation.

        When the engine dies meanwhile, the text goes on after a pause. `deadline_ms` counts from this call. `memory`:
        what `self.memory` was before the prompt's documents were read; None: there are none.

        Raises:
            PromptTooLong: prompt and answer do not fit the context; the message has the numbers.
            BadRequest: another fault of the request.
            Quarantined: the same request killed the engine before.
            Overloaded: the queue is full, or the deadline passed before the first token.
            EngineDied: the engine died of this request.
            Unavailable: the engine does not start, was not ready in time, or failed to compute.
        """
        if not all(stop):
            raise BadRequest("A stop string must not be empty.", param="stop")
        sampling = sampling or Sampling()
        if sampling.seed is None:  # drawn here: an answer that another engine takes over must go on as it was
            sampling = replace(sampling, seed=secrets.randbits(63))
        submit = Submit(
            id=next(self._ids),
            prompt=tuple(prompt),
            max_tokens=max_tokens,
            sampling=sampling,
            stop=tuple(stop),
            priority=priority,
            deadline_ms=deadline_ms,
            label=label,
            constraint=constraint,
            pinned=pinned,
            keep=memory is None or memory == self._memory,
        )
        self._check_state()
        with self._dispatch.request(submit) as request:
            while True:
                message = await request.next()
                assert not isinstance(message, Counted)  # noqa: S101
                yield message
                if isinstance(message, Done):
                    return

    async def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text as content. Raises `Unavailable`, `EngineDied` and `Overloaded` as `generate` does."""
        self._check_state()
        with self._dispatch.request(Count(next(self._ids), tuple(texts))) as request:
            message = await request.next()
        assert isinstance(message, Counted)  # noqa: S101
        return list(message.tokens)

    async def forget(self) -> None:
        """Have all that is due in `oblivion` forgotten: nothing of it can be found or come back when this returns.

        An engine that is ready answers for its context and its memory; what one that is not has goes with it. Then
        the files go. Where an engine starts or restarts, the note of it stays until that has forgotten too.

        Raises:
            Unavailable: a file can't be deleted.
        """
        due = self.oblivion.due
        if due <= self.oblivion.settled:
            return
        self._memory += 1
        self._dispatch.forget()
        while self._state == "ready" and self._forgotten < due:
            self._tell_to_forget()
            await self._changed.wait()
        forgotten = self._forgotten >= due or (self._state == "stopped" and self._child is None)
        await asyncio.to_thread(self.oblivion.remove_files)
        if forgotten:
            await asyncio.to_thread(self.oblivion.settle, due)

    def _tell_to_forget(self) -> None:
        due = self.oblivion.due
        if self._child is not None and due > self._told:
            self._told = due
            self._child.send(Forget(due))

    def _check_state(self) -> None:
        if self._state in ("failed", "stopped"):
            raise Unavailable(self._reason)

    def _set(self, state: State, reason: str) -> None:
        self._state, self._reason = state, reason
        self._notify()
        if state in ("failed", "stopped"):
            self._dispatch.fail_all(Unavailable(reason))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _launch(self) -> None:
        """One start; afterwards the engine is ready, or nothing of it is left.

        Where a GPU may be what fails, the CPU is tried next, and kept to when that works. No file of the model is
        told to be damaged before: a GPU's memory that is too small looks the same.
        """
        try:
            child, ready = await self._spawn(self._device)
        except (ApplianceError, FrameError, OSError) as error:
            if self._device == "cpu" or isinstance(error, BadSetting):
                raise
            _log.error("the engine did not start with device %s, now with the CPU: %s", self._device, error)
            child, ready = await self._spawn("cpu")
            self._degraded = f"The engine runs on the CPU: it did not start with device {self._device}. {error}"
            self._device = "cpu"
        self._child, self._ready, self._heartbeat = child, ready, None
        self._told = self._forgotten = self.oblivion.settled
        self._set("ready", "The engine is ready.")
        _log.info("engine %d is ready: %s in %.0f ms", child.pid, ready.model, ready.load_ms)
        if self.oblivion.owed:
            self._tell_to_forget()  # before any request can find what it read from files
            self._chore = asyncio.create_task(self._forget_late(), name="forget")
        self._dispatch.attach(child.send)

    async def _forget_late(self) -> None:
        try:
            await self.forget()
        except ApplianceError as error:
            _log.error("%s", error)

    async def _spawn(self, device: str) -> tuple[EngineChild, Ready]:
        child = await EngineChild.spawn(self._command, replace(self._spec, device=device))
        try:
            return child, await child.become_ready(self._spec.settings.start_timeout_s)
        except BaseException:
            await child.kill()
            raise

    async def _supervise(self) -> None:
        deaths = 0
        while True:
            if self._child is None:
                try:
                    await self._launch()
                except (ApplianceError, FrameError, OSError) as error:
                    # Another try would end the same way: only somebody who changes a file or a setting helps.
                    deaths = GIVE_UP_AFTER if isinstance(error, ModelCorrupt | BadSetting) else deaths + 1
                    _log.error("the engine did not start (%d): %s", deaths, error)
                    if deaths >= GIVE_UP_AFTER:
                        self._set("failed", f"The engine does not start: {error}")
                    await asyncio.sleep(_backoff(deaths))
                    continue
            deaths = 0
            child = self._child
            assert child is not None  # noqa: S101
            try:
                why = await self._serve(child)
            except Exception as error:  # a fault of ours: nobody must wait for ever because of it
                _log.exception("the engine's messages could not be handled")
                why = f"was given up: {error!r}"
            self._child = None
            self._set("restarting", "The engine is restarting.")
            waiting = self._dispatch.lose_engine()
            await child.stop(LAST_WORDS_S)
            if self.oblivion.owed:
                await self._forget_late()  # what it wrote while it died
            _log.error("engine %d %s (%s); %d requests wait for the next one", child.pid, child.end, why, waiting)
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
                    elif isinstance(message, Forgotten):
                        self._forgotten = max(self._forgotten, message.id)
                        self._notify()
                    elif not isinstance(message, Ready):
                        self._dispatch.receive(message)
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


def _backoff(deaths: int) -> float:
    return RETRY_FAILED_S if deaths >= GIVE_UP_AFTER else BACKOFF_S[deaths - 1]
