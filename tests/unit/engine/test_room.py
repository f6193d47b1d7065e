"""How large a context is made where the settings do not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.room import MOST_SEQUENCES, available_bytes, find_room, free_for_cells

GIB = 1 << 30
POCKET = 23_040  # bytes of a cell in f16: 30 layers, 3 heads of 64 values for keys and values each


def room(free: int | None = 8 * GIB, cores: int | None = 2, **changes: Any) -> tuple[int, int]:
    """Sequences and cells."""
    given = {"kv_tokens": 0, "max_sequences": 0, "context_tokens": 8192, "token_bytes": POCKET} | changes
    found = find_room(free_bytes=free, cores=cores, **given)
    return found.max_sequences, found.kv_tokens


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (room(), (8, 16384)),  # two cores and plenty of memory
        (room(cores=1), (4, 8192)),
        (room(cores=64), (64, 131072)),
        (room(cores=None), (64, 131072)),
        (room(free=GIB // 8), (5, 5632)),  # 128 MiB: fewer sequences rather than small ones
        (room(free=10 << 20), (1, 256)),
        (room(free=0), (1, 256)),  # it is tried, and llama.cpp says whether there is room
        (room(free=None), (8, 16384)),
        (room(max_sequences=1), (1, 8192)),  # a request may be as long as the model allows
        (room(max_sequences=1, context_tokens=2048), (1, 2048)),
        (room(max_sequences=1, context_tokens=131072), (1, 8192)),
        (room(kv_tokens=4096), (4, 4096)),
        (room(kv_tokens=100), (1, 100)),
        (room(kv_tokens=4096, max_sequences=16, free=0), (16, 4096)),  # what is set is taken
        (room(cores=None, token_bytes=114_688, free=4 * GIB), (36, 37376)),  # a model of 3B in 8 GiB of a GPU
    ],
)
def test_sizes(found: tuple[int, int], expected: tuple[int, int]) -> None:
    assert found == expected


@given(
    free=st.integers(0, 1 << 42),
    cores=st.none() | st.integers(1, 512),
    token_bytes=st.integers(1, 1 << 22),
    context=st.integers(1, 1 << 20),
    sequences=st.integers(0, 64),
)
def test_what_is_found_fits(free: int, cores: int | None, token_bytes: int, context: int, sequences: int) -> None:
    found, cells = room(free, cores, token_bytes=token_bytes, context_tokens=context, max_sequences=sequences)
    assert 1 <= found <= MOST_SEQUENCES
    assert cells % 256 == 0 or cells == min(context, 8192)
    assert cells * token_bytes <= max(free, 256 * token_bytes)


def test_the_reason_has_the_numbers() -> None:
    free = 2 * GIB
    found = find_room(kv_tokens=0, max_sequences=0, context_tokens=8192, token_bytes=POCKET, free_bytes=free, cores=2)
    assert found.reason == (
        "8 sequences (of 8 that 2 cores may serve), 16384 KV cells (of 93184 that fit 2048 MiB) of 23040 bytes: 360 MiB"
    )
    found = find_room(kv_tokens=512, max_sequences=3, context_tokens=8192, token_bytes=POCKET, free_bytes=free, cores=2)
    assert found.reason == "3 sequences (as set), 512 KV cells (as set) of 23040 bytes: 11 MiB"


def test_what_others_need_is_left_to_them() -> None:
    assert free_for_cells(4 * GIB, GIB, GIB // 2) == 5 * GIB // 4
    assert free_for_cells(GIB, 0, 8 * GIB) == GIB * 3 // 8
    assert free_for_cells(GIB, 2 * GIB, GIB) == 0


def proc(folder: Path, group: str = "") -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    8000 kB\n")
    (folder / "self" / "cgroup").write_text(f"4:memory:/old\n0::/{group}\n")
    return folder


def limit(group: Path, most: str, used: int, files: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(most + "\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {files}\n")


def test_memory_is_what_the_system_or_the_tightest_group_leaves(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    where = proc(tmp_path / "proc", "system.slice/appliance.service")
    assert available_bytes(where, groups) == 8000 << 10
    limit(groups / "system.slice", "4000000", 1_000_000, 500_000)
    limit(groups / "system.slice" / "appliance.service", "max", 900_000, 0)
    assert available_bytes(where, groups) == 3_500_000
    limit(groups / "system.slice" / "appliance.service", "2000000", 900_000, 100_000)
    assert available_bytes(where, groups) == 1_200_000
    limit(groups / "system.slice" / "appliance.service", "100", 900_000, 0)
    assert available_bytes(where, groups) == 0


def test_where_nothing_can_be_read_nobody_knows(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "proc", tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemAvailable: many kB\n")
    assert available_bytes(tmp_path / "proc", tmp_path) is None


def test_here_there_is_some() -> None:
    assert (available_bytes() or 0) > 0
