"""Owns one request over all engine processes that work at it: what it has got so far, and what its reader sees.

Must not know processes or other requests. The reader sees one answer; a death of the engine is only a pause in it.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
from typing import Literal

import msgspec
from msgspec.structs import replace

from appliance.engine.protocol import Count, Counted, Done, Failed, Started, Submit, Token
from appliance.errors import ApplianceError, BadRequest, Overloaded, PromptTooLong, Unavailable

Reply = Started | Token | Done | Counted | Failed

_Phase = Literal["queue", "prefill", "decode"]

_encoder = msgspec.msgpack.Encoder()


class Request:
    """One generation or count, from its submission to its end.

    Attributes:
        started: the engine that has it now took it out of its queue.
        abandoned: nobody reads its answer any more.
        timer: ends its waiting for an engine.
    """

    def __init__(self, message: Submit | Count) -> None:
        self.message = message
        self.started = False
        self.abandoned = False
        self.timer: asyncio.TimerHandle | None = None
        self._ids: list[int] = []
        self._sent = 0  # characters that the reader has
        self._told: Started | None = None
        self._replies: asyncio.Queue[Reply | ApplianceError] = asyncio.Queue()
        # Where its time went, by this process's clock: an engine that died can't tell.
        self._began_s = self._since_s = self._heard_s = time.monotonic()
        self._phase: _Phase = "queue"
        self._spent_ms: dict[_Phase, float] = {"queue": 0.0, "prefill": 0.0, "decode": 0.0}
        self._waited = False  # for an engine, so that the engine's own times do not tell all

    @property
    def id(self) -> int:
        """Its number in all messages."""
        return self.message.id

    @functools.cached_property
    def digest(self) -> bytes:
        """Of its content: the prompt and all that shapes the answer, not who asks or how urgently."""
        message = self.message
        content: tuple[object, ...]
        if isinstance(message, Submit):
            # Without the seed: it may have been drawn for this very request. A map has no order: sorted.
            sampling = replace(message.sampling, seed=None, logit_bias={})
            bias = sorted(message.sampling.logit_bias.items())
            content = (message.prompt, message.max_tokens, sampling, bias, message.stop, message.constraint)
        else:
            content = (message.texts,)
        return hashlib.sha256(_encoder.encode(content)).digest()

    @property
    def remaining_s(self) -> float | None:
        """Time to its deadline, which counts from its submission; at least 0; None: it has none."""
        if not isinstance(self.message, Submit) or self.message.deadline_ms is None:
            return None
        return max(0.0, self._began_s + self.message.deadline_ms / 1000 - time.monotonic())

    def due(self) -> Submit | Count:
        """What to hand to an engine now: an answer goes on after the tokens that it has already."""
        if not self._waited or not isinstance(self.message, Submit):
            return self.message
        remaining_s = self.remaining_s
        deadline_ms = None if remaining_s is None else remaining_s * 1000
        return replace(self.message, generated=tuple(self._ids), sent=self._sent, deadline_ms=deadline_ms)

    def keep_nothing(self) -> None:
        """What it quotes is gone: no engine that has it from now on may keep its prompt."""
        if isinstance(self.message, Submit):
            self.message = replace(self.message, keep=False)

    def wait(self) -> None:
        """No engine takes it at once."""
        self._waited = True

    def take(self, reply: Reply) -> None:
        """The engine says this of it."""
        self._heard_s = now = time.monotonic()
        match reply:
            case Started():
                self.started = True
                self._enter("prefill", now)
                if self._told is not None:
                    return
                if self._waited:
                    reply = replace(reply, queue_ms=self._spent_ms["queue"])
                self._told = reply
            case Token():
                self._ids += reply.ids
                self._sent += len(reply.text)
                if self._phase == "prefill":
                    self._enter("decode", now)
            case Done() if self._waited:
                reply = self._whole(reply, now)
        self._replies.put_nowait(reply)

    def lose(self) -> None:
        """The engine that had it died. What it did after its last word is lost: from then on, the request waited."""
        self.started = False
        self._enter("queue", self._heard_s if self._phase != "queue" else time.monotonic())

    def expire(self) -> None:
        """Its deadline passed while no engine had it."""
        if self._ids:
            assert self._told is not None  # noqa: S101
            prompt, cached = self._told.prompt_tokens, self._told.cached_tokens
            done = Done(self.id, "length", prompt, cached, len(self._ids), 0, 0, 0, deadline_hit=True)
            self._replies.put_nowait(self._whole(done, time.monotonic()))
        else:
            waited_ms = (time.monotonic() - self._began_s) * 1000
            self.fail(Overloaded(f"The deadline passed: the request waited for the engine for {waited_ms:.0f} ms."))

    def fail(self, error: ApplianceError) -> None:
        """End it."""
        self._replies.put_nowait(error)

    async def next(self) -> Started | Token | Done | Counted:
        """The next reply, in order. Raises what the request was failed with."""
        reply = await self._replies.get()
        if isinstance(reply, ApplianceError):
            raise reply
        if isinstance(reply, Failed):
            raise _error(reply)
        return reply

    def _enter(self, phase: _Phase, now_s: float) -> None:
        self._spent_ms[self._phase] += (now_s - self._since_s) * 1000
        self._phase, self._since_s = phase, now_s

    def _whole(self, done: Done, now_s: float) -> Done:
        """`done` with the times of all engines, and of the pauses between them as waiting."""
        self._enter("queue", now_s)
        spent = self._spent_ms
        return replace(done, queue_ms=spent["queue"], prefill_ms=spent["prefill"], decode_ms=spent["decode"])


def _error(failed: Failed) -> ApplianceError:
    match failed.code:
        case "context_length_exceeded":
            remedy = "Shorten the prompt, or ask for fewer tokens."
            return PromptTooLong(failed.message, remedy=remedy, param=failed.param or None)
        case "overloaded" | "deadline_exceeded":
            return Overloaded(failed.message)
        case "invalid_request":
            return BadRequest(failed.message, param=failed.param or None)
        case _:
            return Unavailable(failed.message)
