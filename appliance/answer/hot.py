"""Owns answers that were given before: they are given again, and while one is made, all who ask for it share it.

Must not know how an answer is made, nor wire formats.

    fresh             ─▶ replayed ("hit"); a popular one is made anew in the background before it gets old
    old               ─▶ made anew; who waited `wait_ms` for that gets the old one ("stale")
    none              ─▶ made, or shared with whoever asked first

An answer is kept under all that it follows from: the question, the collection's generation, the models, the settings
and the caller. What changes one of these makes the answer unreachable; its text is deleted with the collection's next
change all the same. `stale` therefore means old by the clock, never of other documents.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from appliance.answer.same import key, repeatable
from appliance.answer.types import CacheOutcome, Event, Finished, Question, Sources
from appliance.cache.flight import Flight, Flights
from appliance.cache.sketch import Sketch
from appliance.cache.tiers import Cache, Entry
from appliance.config import CacheSettings
from appliance.telemetry import note, note_text, span

_PLAIN = ""  # the tag of answers without documents
_POPULAR = 3  # times a question was asked lately, from which on its answer is made anew before it gets old
_AHEAD = 1  # answers that are made in the background at once: they take time from those that somebody waits for
_JITTER = 0.1  # of a lifetime, so that what was made at once does not get old at once
# What a degraded answer may have lost and still be the answer to keep: all that comes again at the next try. What a
# busy or broken moment took away is not kept.
_LASTING = (
    "effort_fast",
    "generator_language",
    "no_reranker",
    "no_room_for_passages",
    "query_cut",
    "rerank_partial",
    "repetition",
    "unsupported",
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Event]).decode


class HotAnswers:
    """Answers, from the cache where that has them. For one event loop.

    Args:
        make: makes what is not there; see `pipeline.Answerer.ask`.
        cache: for answers alone.
        version: what an answer in that collection (None: in none) follows from, beside the question.
        settings: how long an answer is good.
        busy: while it is, old answers are given at once, and none is made anew that nobody waits for.
    """

    def __init__(
        self,
        make: Callable[[Question], AsyncGenerator[Event]],
        cache: Cache,
        version: Callable[[str | None], bytes],
        settings: CacheSettings,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._make = make
        self._busy = busy
        self._cache = cache
        self._version = version
        self._settings = settings
        self._flights: Flights[Event] = Flights()
        self._asked = Sketch()

    def ask(self, question: Question) -> AsyncGenerator[Event]:
        """The events of one answer, made now or before. Raises what `make` raises.

        Where tools may be called, it is made: what they do is not done again by telling what they were asked to do.
        """
        kept = question.tools is None and (repeatable(question) or self._settings.sampled)
        if question.cache == "bypass" or not kept:
            return self._make(question)
        return self._shared(question)

    async def close(self) -> None:
        """End what is being made."""
        await self._flights.close()

    async def _shared(self, question: Question) -> AsyncGenerator[Event]:
        refresh = question.cache == "refresh"
        outcome: CacheOutcome = "miss"
        kept: list[Event] | None = None
        with span("cache") as looking:
            name = key(question, self._version(question.collection))
            self._asked.count(name)
            if not refresh:
                kept, outcome = await self._kept(question, name)
            flying = None if refresh or kept is not None else self._flights.get(_flight_key(question, name))
            outcome = "hit" if flying is not None else outcome
            looking.set("outcome", outcome)
        note({"appliance.cache": outcome})
        note_text("appliance.question", question.messages[-1].content)
        if kept is not None:
            for event in _replayed(kept, question, outcome, looking.ms):
                yield event
            return
        flight = flying or self._fly(question, name, apart=refresh)
        async with contextlib.aclosing(_retold(flight.follow(), question, outcome)) as events:
            async for event in events:
                yield event

    async def _kept(self, question: Question, name: bytes) -> tuple[list[Event] | None, CacheOutcome]:
        """The answer that is kept, made anew first where it is old and there is time; None where there is none."""
        entry = self._cache.recent(name) or await asyncio.to_thread(self._cache.get, name)
        kept = _events(entry) if entry is not None else None
        if entry is None or kept is None:
            return None, "miss"
        age_s = entry.age_s(time.time())
        if age_s >= self._lifetime_s(name):
            if not self._busy() and await self._renew(question, name, self._settings.wait_ms / 1000):
                renewed = _events(self._cache.recent(name) or entry)
                return (renewed, "hit") if renewed is not None else (kept, "stale")
            return kept, "stale"
        if age_s >= self._settings.hot_s and self._is_popular(name):
            await self._renew(question, name, 0)
        return kept, "hit"

    def _is_popular(self, name: bytes) -> bool:
        """Whether an answer is worth being made anew ahead, now."""
        idle = not self._busy() and self._flights.unattended() < _AHEAD
        return idle and self._asked.estimate(name) >= _POPULAR

    def _lifetime_s(self, name: bytes) -> float:
        """How long an answer is good: of each a little more or less."""
        return self._settings.fresh_s * (1 - _JITTER + 2 * _JITTER * name[0] / 255)

    async def _renew(self, question: Question, name: bytes, wait_s: float) -> bool:
        """Have an answer made anew, for nobody in particular; whether it was there within `wait_s`."""
        flying = self._flights.get(_flight_key(question, name))
        if flying is None:
            behind = replace(question, priority="normal" if wait_s else "batch")
            flying = self._fly(behind, name, for_result=True)
        return wait_s > 0 and await flying.wait(wait_s)

    def _fly(self, question: Question, name: bytes, *, for_result: bool = False, apart: bool = False) -> Flight[Event]:
        tag = question.collection if question.collection is not None else _PLAIN
        epoch = self._cache.epoch(tag)

        def keep(events: list[Event]) -> None:
            if _worth_keeping(events):
                self._cache.put(name, _encode(events), tag=tag, epoch=epoch)

        flight_key = object() if apart else _flight_key(question, name)
        return self._flights.start(flight_key, self._make(question), keep, for_result=for_result)


def _flight_key(question: Question, name: bytes) -> tuple[bytes, float | None]:
    # Who waits longer must not get what was cut short for somebody in a hurry.
    return name, question.deadline_ms


def _worth_keeping(events: Sequence[Event]) -> bool:
    last = events[-1] if events else None
    return isinstance(last, Finished) and all(reason.split(":")[0] in _LASTING for reason in last.report.degraded)


def _events(entry: Entry) -> list[Event] | None:
    try:
        return _decode(entry.value)
    except msgspec.DecodeError:
        return None  # of another version of this program


def _replayed(events: Iterable[Event], question: Question, outcome: CacheOutcome, ms: float) -> Iterable[Event]:
    """The events of an answer that was made before, as of this question; texts come as they came then."""
    timings = {"cache": round(ms, 3), "total": round(ms, 3)}
    for event in events:
        if isinstance(event, Sources):
            yield replace(event, timings_ms=timings)
        elif isinstance(event, Finished):
            report = replace(event.report, request_id=question.request_id, cache=outcome, timings_ms=timings)
            yield replace(event, report=report)
        else:
            yield event


async def _retold(events: AsyncGenerator[Event], question: Question, outcome: CacheOutcome) -> AsyncGenerator[Event]:
    """The events of an answer that is being made, as of this question."""
    async with contextlib.aclosing(events) as made:
        async for event in made:
            if isinstance(event, Finished):
                report = replace(event.report, request_id=question.request_id, cache=outcome)
                yield replace(event, report=report)
            else:
                yield event
