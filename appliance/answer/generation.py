"""Owns what one generation tells of itself: its span, the spans of its phases, and their part in the stage times.

Must not know prompts, citations or wire formats.
"""

from __future__ import annotations

import time

from appliance.answer.types import Question, TokenCounts
from appliance.engine.protocol import Done, Ready, Started
from appliance.telemetry import Attribute, Span, StageTimes, past


class Generation:
    """Watches one generation.

    Its span has what OpenTelemetry's conventions for generative models say. The engine measures how long the request
    waited, was read and was written, and tells it with the end; the spans of these are made here, one after the other
    from the moment of the request on.

    Args:
        counts: its times are the request's; those of the choices beside it are not added to them.
    """

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts
        self.ttft_ms = 0.0  # from the question to the first token
        self._span = Span("chat")
        self._started: Started | None = None
        self._done: Done | None = None
        self._first_ns = self._last_ns = self._longest_ns = 0

    def begin(self, ready: Ready | None, question: Question, max_tokens: int, deadline_ms: float) -> None:
        """The engine is asked now."""
        sampling = question.sampling
        model = ready.model if ready else ""
        self._span = Span(
            f"chat {model}".rstrip(),
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "llama.cpp",
                "gen_ai.request.model": model,
                "gen_ai.request.max_tokens": max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "appliance.deadline_ms": round(deadline_ms, 1),
                "appliance.priority": question.priority,
                "appliance.constrained": question.constraint is not None,
            },
        ).begin()

    def start(self, message: Started) -> None:
        """It left the engine's queue."""
        self._started = message

    def hear(self, times: StageTimes) -> None:
        """More of it came."""
        now_ns = time.perf_counter_ns()
        if self._first_ns:
            self._longest_ns = max(self._longest_ns, now_ns - self._last_ns)
        else:
            self._first_ns = now_ns
            self.ttft_ms = times.elapsed_ms()
        self._last_ns = now_ns

    def end(self, message: Done) -> None:
        """It came to its end."""
        self._done = message

    def tell(self, tokens: TokenCounts, times: StageTimes, error: str = "") -> None:
        """End the span, whole or broken off, with `tokens` so far."""
        span, done = self._span, self._done
        span.error = error
        span.attributes |= {
            "gen_ai.usage.input_tokens": tokens.prompt,
            "gen_ai.usage.output_tokens": tokens.generated,
            "gen_ai.usage.cache_read.input_tokens": tokens.cached,
            "gen_ai.response.finish_reasons": [done.finish_reason if done else "cancelled"],
            "appliance.ttft_ms": round(self.ttft_ms, 2),
            "appliance.writing_ms": round((self._last_ns - self._first_ns) / 1e6, 2),
            "appliance.longest_pause_ms": round(self._longest_ns / 1e6, 2),
        }
        if done is not None:
            span.attributes["appliance.drafted_tokens"] = done.drafted_tokens
            span.attributes["appliance.accepted_tokens"] = done.accepted_tokens
        span.end()
        if self._started is None:
            return
        known: dict[str, dict[str, Attribute]] = {
            "prefill": {"tokens.computed": tokens.prompt - tokens.cached, "tokens.cached": tokens.cached},
            "decode": {"tokens": tokens.generated},
        }
        at_ns = span.start_ns
        for name, ms in self._phases(self._started).items():
            at_ns = past(name, ms, known.get(name), within=span, start_ns=at_ns).end_ns
            if self._counts:
                times.add(name, ms)

    def _phases(self, started: Started) -> dict[str, float]:
        """Milliseconds of each, as the engine told them; of one that was broken off, as far as this side knows."""
        done = self._done
        if done is not None:
            return {"queue": done.queue_ms, "prefill": done.prefill_ms, "decode": done.decode_ms}
        phases = {"queue": started.queue_ms}
        if self._first_ns:
            began_ns = self._span.start_ns + round(started.queue_ms * 1e6)
            phases["prefill"] = max(0.0, (self._first_ns - began_ns) / 1e6)
            phases["decode"] = (self._span.end_ns - self._first_ns) / 1e6
        return phases
