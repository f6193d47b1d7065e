"""Owns the order in which a workload's requests reach an engine.

Must not know which engine it is, nor what is made of the answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from appliance.engine.protocol import Segment
from appliance.errors import Unavailable

from .answers import Answer, Engine
from .workloads import Request, Workload

_PATIENCE_S = 900.0  # for one answer: a model of billions of parameters takes minutes to read a long prompt


@dataclass(frozen=True, slots=True)
class Run:
    """All answers of one workload by one engine; those of `Workload.requests` first, in their order."""

    answers: tuple[Answer, ...]
    span_s: float  # from the first request to the last token
    client_cpu_s: float  # of this process meanwhile: taken from the engine's cores


async def measure(engine: Engine, workload: Workload) -> Run:
    """Start the engine, warm it up, have it answer everything, end it; only the answering is timed.

    Raises:
        ApplianceError: the engine failed.
    """
    try:
        await engine.start()
        for request in workload.warm:
            await _ask(engine, request)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        answers = await _Driver(engine, workload).answers()
        return Run(tuple(answers), time.perf_counter() - begin, time.process_time() - begin_cpu)
    except BaseExceptionGroup as group:
        raise _first(group) from None
    finally:
        await engine.stop()


async def _ask(engine: Engine, request: Request) -> Answer:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await engine.ask(request)
    except TimeoutError:
        raise Unavailable(f"A request was not answered within {_PATIENCE_S:g} seconds.") from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _Driver:
    """One pass through a workload."""

    def __init__(self, engine: Engine, workload: Workload) -> None:
        self._engine = engine
        self._workload = workload
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._said: dict[int, tuple[Segment, ...]] = {}
        self._answers: dict[int, Answer] = {}
        self._looped: list[Answer] = []
        self._all_answered = asyncio.Event()

    async def answers(self) -> list[Answer]:
        """See `Run.answers`."""
        pending = iter(enumerate(self._workload.requests))
        looping = asyncio.Barrier(len(self._workload.loops) + 1)
        async with asyncio.TaskGroup() as group:
            for loop in self._workload.loops:
                group.create_task(self._loop(loop, looping))
            await looping.wait()
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._workload.in_flight):
                    workers.create_task(self._work(pending))
            self._all_answered.set()
        return [*(self._answers[number] for number in range(len(self._workload.requests))), *self._looped]

    async def _work(self, pending: Iterator[tuple[int, Request]]) -> None:
        for number, request in pending:
            if request.conversation is None:
                self._answers[number] = await _ask(self._engine, request)
                continue
            # In order of arrival: a turn that waits for the one before it is first to get the lock.
            async with self._turns[request.conversation]:
                self._answers[number] = await self._converse(request.conversation, request)

    async def _converse(self, conversation: int, request: Request) -> Answer:
        prompt = self._said.get(conversation, ()) + request.prompt
        answer = await _ask(self._engine, replace(request, prompt=prompt))
        self._said[conversation] = (*prompt, Segment(answer.text))
        return answer

    async def _loop(self, requests: Iterable[Request], begun: asyncio.Barrier) -> None:
        first = True
        while not self._all_answered.is_set():
            for request in requests:
                self._looped.append(await _ask(self._engine, request))
                if first:
                    await begun.wait()
                    first = False
                if self._all_answered.is_set():
                    return
