"""Owns what memory a process holds, as the kernel counts it.

Must not know what it is for.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """Resident memory of a process, MiB."""

    resident: float  # all of it
    anonymous: float  # that which can't be given up: not pages of a file

    def __sub__(self, before: Memory) -> Memory:
        """What was taken since `before`."""
        return Memory(self.resident - before.resident, self.anonymous - before.anonymous)


def memory_now(rollup: Path = Path("/proc/self/smaps_rollup")) -> Memory:
    """Of this process (Linux)."""
    kilobytes = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", rollup.read_text(), re.M)}
    return Memory(kilobytes["Rss"] / 1024, kilobytes["Anonymous"] / 1024)
