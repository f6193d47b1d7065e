"""Owns our engine under test: its process and how it is asked.

Must not know workloads or figures.
"""

from __future__ import annotations

import time
from pathlib import Path

from appliance.config import EngineSettings
from appliance.engine.client import EngineClient
from appliance.engine.protocol import Done, EngineConfig, Priority, Sampling, Started, Token
from appliance.errors import Unavailable

from .answers import Answer
from .workloads import Kind, Request

_PRIORITIES: dict[Kind, Priority] = {"normal": "interactive", "interactive": "interactive", "long": "normal"}
_NEVER = -1e6
_STOP_S = 5.0


class Ours:
    """The appliance's engine, in its own process, as the service starts it.

    Args:
        model: a GGUF file.
        settings: of the engine.
        ends: tokens that would end an answer early.
    """

    def __init__(self, model: Path, settings: EngineSettings, ends: list[int]) -> None:
        self._client = EngineClient(EngineConfig(str(model), model.stem, settings=settings))
        self._sampling = Sampling(logit_bias=dict.fromkeys(ends, _NEVER))

    async def start(self) -> None:
        """See `Engine`."""
        await self._client.start()

    async def stop(self) -> None:
        """See `Engine`."""
        await self._client.stop(_STOP_S)

    async def ask(self, request: Request) -> Answer:
        """See `Engine`."""
        answer = Answer(request.kind, time.perf_counter())
        stream = self._client.generate(
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            sampling=self._sampling,
            priority=_PRIORITIES[request.kind],
            pinned=request.pinned,
        )
        async for message in stream:
            match message:
                case Token(text=text, ids=ids):
                    answer.arrivals.append((time.perf_counter(), len(ids)))
                    answer.text += text
                case Started(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens):
                    answer.prompt_tokens, answer.cached_tokens = prompt_tokens, cached_tokens
                case Done():
                    answer.generated_tokens = message.generated_tokens
                    answer.drafted_tokens = message.drafted_tokens
                    answer.accepted_tokens = message.accepted_tokens
        if answer.generated_tokens != request.max_tokens:
            asked = f"{request.max_tokens} tokens were asked for"
            raise Unavailable(f"Our engine generated {answer.generated_tokens} tokens; {asked}.")
        return answer
