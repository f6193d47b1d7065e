"""Owns how many sequences and KV cells a context gets where the settings leave it open, and how much memory there is.

Must not know llama.cpp, nor what the cells are used for.

    memory = what is available, less the model (its pages count as available until they are read), less what prefixes
             outside the context may take (a quarter of it at most); half of that is for the cells, the other half
             for the encoders, the indexes and whatever else runs here
    cells  = 2,048 a sequence, at least one whole context of the model (no more than 8,192), as far as memory goes
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

MOST_SEQUENCES = 64
# Where a step of one sequence takes 25 ms on two cores, one of 8 takes 81 and one of 16 134: more of them gain
# little, and each waits longer for its next token.
SEQUENCES_PER_CORE = 4
_CELLS_PER_SEQUENCE = 2048  # instructions, passages and an answer are about half of it; the rest is conversation
_LEAST_CELLS_PER_SEQUENCE = 1024  # where memory is short, there are fewer sequences rather than smaller ones
_LARGEST_REQUEST = 8192
_MULTIPLE = 256  # llama.cpp rounds up to it


@dataclass(frozen=True, slots=True)
class Room:
    """The size of a context, and in `reason` how it was found, for the log."""

    kv_tokens: int
    max_sequences: int
    reason: str


def find_room(
    *,
    kv_tokens: int,
    max_sequences: int,
    context_tokens: int,
    token_bytes: int,
    free_bytes: int | None,
    cores: int | None,
) -> Room:
    """The size of the context.

    Args:
        kv_tokens: as set; 0: to be found.
        max_sequences: as set; 0: to be found.
        context_tokens: of one request at most.
        token_bytes: of one KV cell.
        free_bytes: memory that cells may take all in all; None: nobody knows.
        cores: that compute; None: a GPU does.
    """
    most = MOST_SEQUENCES if cores is None else min(MOST_SEQUENCES, SEQUENCES_PER_CORE * cores)
    affordable = most * _CELLS_PER_SEQUENCE
    if free_bytes is not None:
        affordable = max(free_bytes // token_bytes // _MULTIPLE, 1) * _MULTIPLE
    cells = kv_tokens or affordable
    sequences = max_sequences or max(1, min(most, cells // _LEAST_CELLS_PER_SEQUENCE))
    if not kv_tokens:
        wanted = max(sequences * _CELLS_PER_SEQUENCE, min(context_tokens, _LARGEST_REQUEST))
        cells = min(affordable, wanted)
    memory = "what is usual, as nobody knows the memory" if free_bytes is None else f"{free_bytes >> 20} MiB"
    by = "the GPU" if cores is None else "1 core" if cores == 1 else f"{cores} cores"
    reason = (
        f"{sequences} sequences ({'as set' if max_sequences else f'of {most} that {by} may serve'}), "
        f"{cells} KV cells ({'as set' if kv_tokens else f'of {affordable} that fit {memory}'}) "
        f"of {token_bytes} bytes: {cells * token_bytes >> 20} MiB"
    )
    return Room(cells, sequences, reason)


def free_for_cells(available_bytes: int, model_bytes: int, host_cache_bytes: int) -> int:
    """What of the system's memory the cells may take; see the module's text."""
    rest = max(0, available_bytes - model_bytes)
    return (rest - min(host_cache_bytes, rest // 4)) // 2


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that this process can have without swapping: the system's, or what its control groups leave it.

    Files that the kernel keeps in memory count as available, in control groups too. None: it can't be read.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                system = int(line.split()[1]) << 10
                return min([system, *_left_by_groups(proc, cgroups)])
    return None


def _left_by_groups(proc: Path, cgroups: Path) -> list[int]:
    left: list[int] = []
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            if line.startswith("0::/"):  # the unified hierarchy
                inner = cgroups / line[len("0::/") :]
                for group in [inner, *inner.parents]:
                    if not group.is_relative_to(cgroups):
                        break
                    with contextlib.suppress(OSError, ValueError):  # no limit is the word "max"
                        limit = int((group / "memory.max").read_text())
                        used = int((group / "memory.current").read_text())
                        pages = dict(row.split() for row in (group / "memory.stat").read_text().splitlines())
                        left.append(max(0, limit - used + int(pages.get("inactive_file", 0))))
    return left
