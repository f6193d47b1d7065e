"""Owns the measurement of our engine's own time in a step: what is not llama.cpp's.

Must not know processes, sockets or the peer.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from appliance.config import EngineSettings
from appliance.engine.core import Core
from appliance.engine.llama import Llama
from appliance.engine.protocol import EngineConfig, Failed, Sampling, Segment, Submit, Token
from appliance.engine.totals import Totals
from appliance.errors import Unavailable

from . import texts
from .sizes import Size


class Overhead(msgspec.Struct, frozen=True):
    """Time of steps in which all sequences decode."""

    steps: int
    step_ms: float
    outside_ms: float  # of a step: scheduling, sampling, text

    @property
    def share(self) -> float:
        """Of a step's time."""
        return self.outside_ms / self.step_ms


def measure_overhead(model: Path, settings: EngineSettings, ends: list[int], size: Size) -> Overhead:
    """Have `size.users` sequences generate `size.answer` tokens each, together, in this process.

    Raises:
        Unavailable: a request failed.
    """
    llama = Llama(EngineConfig(str(model), model.stem, settings=settings))
    try:
        core = Core(llama, settings)
        rng = random.Random(size.users)
        sampling = Sampling(logit_bias=dict.fromkeys(ends, -1e6))
        for number in range(size.users):
            core.submit(Submit(number, (Segment(texts.prose(rng, size.passage)),), size.answer, sampling))
        answering: set[int] = set()
        while len(answering) < size.users:
            core.step()
            for message in core.take_messages():
                if isinstance(message, Failed):
                    raise Unavailable(f"The engine failed: {message.message}")
                if isinstance(message, Token):
                    answering.add(message.id)
        core.totals = Totals()
        while core.heartbeat().running == size.users:
            core.step()
            core.take_messages()
        times = core.totals
        while core.busy:
            core.step()
        if not times.steps:
            raise Unavailable("The answers are too short: the first ended before the last began.")
        return Overhead(
            steps=times.steps,
            step_ms=times.total_s / times.steps * 1000,
            outside_ms=(times.total_s - times.decode_s) / times.steps * 1000,
        )
    finally:
        llama.close()
