"""Owns how an index is built: in pieces that are kept, so that a build that was stopped goes on where it was.

Must not know which library builds it.

    <folder>/spent.json     what the pieces that were saved have cost
    <folder>/...            the side's own files
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import msgspec
import numpy as np

from build_scripts.bench._lib.conditions import say

from .data import Floats
from .sides import Side

_SLICE = 2_000
_SAVED_EVERY_S = 120.0
_TOLD_EVERY_S = 20.0
_SPENT = "spent.json"


class Built(msgspec.Struct, frozen=True):
    """What building took, saves between the pieces left out."""

    cpu_s: float = 0.0  # of all threads: comparable also where the machine did other things meanwhile
    wall_s: float = 0.0
    peak_mib: float = 0.0  # resident memory of the process, the vectors' own pages included


class Meter:
    """Counts what is spent between its making and each look."""

    def __init__(self, before: Built) -> None:
        self._before = before
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def now(self) -> Built:
        """All that was spent so far."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return Built(
            self._before.cpu_s + time.process_time() - self._cpu,
            self._before.wall_s + time.perf_counter() - self._wall,
            max(self._before.peak_mib, peak),
        )


def build(side: Side, passages: Floats, folder: Path, threads: int, *, saved_every_s: float = _SAVED_EVERY_S) -> Built:
    """Build the index of `passages` in `folder`, from where the last call was stopped."""
    file = folder / _SPENT
    meter = Meter(msgspec.json.decode(file.read_bytes(), type=Built) if file.exists() else Built())
    done = side.resume(passages, folder, threads)
    told = saved = time.monotonic()
    while done < len(passages):
        block = np.ascontiguousarray(passages[done : done + _SLICE])
        side.add(done, block)
        done += len(block)
        now = time.monotonic()
        if now - told > _TOLD_EVERY_S:
            told = now
            say(f"{done} of {len(passages)}")
        if now - saved > saved_every_s:
            meter = _save(side, folder, meter.now())
            saved = time.monotonic()
    side.finish()
    spent = meter.now()
    _save(side, folder, spent)
    side.close()
    return spent


def _save(side: Side, folder: Path, spent: Built) -> Meter:
    side.save(folder)
    (folder / _SPENT).write_bytes(msgspec.json.encode(spent))
    return Meter(spent)
