"""Saved prefixes: only what was written, whole, for this model and build, comes back; the budget holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.engine.persist import Identity, PrefixFiles, remove_unpinned

IDENTITY = Identity("sha", "build 1", "f16")
TOKENS = [5, 6, 7, 8]
DATA = bytes(range(256)) * 4


def wrote(folder: Path, *, identity: Identity = IDENTITY, most: int = 1 << 20, count: int = 1) -> PrefixFiles:
    files = PrefixFiles(folder, identity, most)
    for number in range(count):
        assert files.write("tenant", [number, *TOKENS], 1, DATA, pinned=True)
        while files._writes.qsize():  # the queue is short by design: each write is taken before the next
            os.sched_yield()
    files.close()
    return files


def reopened(folder: Path, identity: Identity = IDENTITY) -> PrefixFiles:
    return PrefixFiles(folder, identity, 1 << 20)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    assert wrote(tmp_path / "kv").stats.written == 1
    (saved,) = reopened(tmp_path / "kv").load()
    assert (saved.start, saved.end, saved.size) == (1, 5, 0)
    assert saved.header.label == "tenant" and saved.header.tokens == (0, *TOKENS) and saved.header.pinned
    assert saved.read() == DATA


def test_all_but_pinned_ones_are_removed(tmp_path: Path) -> None:
    files = PrefixFiles(tmp_path, IDENTITY, 1 << 20)
    assert files.write("", [1, 2], 0, DATA, pinned=True)
    assert files.write("", [1, 2, 3], 2, DATA, pinned=False)
    files.close()
    (tmp_path / "half.part").write_bytes(b"APKV")
    (tmp_path / "broken.kv").write_bytes(b"APKV0001")
    (tmp_path / "notes.txt").write_text("not ours")
    assert remove_unpinned(tmp_path) == 3
    assert [saved.header.tokens for saved in reopened(tmp_path).load()] == [(1, 2)]
    assert (tmp_path / "notes.txt").exists()
    assert remove_unpinned(tmp_path) == 0
    assert remove_unpinned(tmp_path / "nothing") == 0


def test_it_is_told_when_all_is_written(tmp_path: Path) -> None:
    files = PrefixFiles(tmp_path, IDENTITY, 1 << 20)
    there: list[int] = []
    assert files.write("", [1, 2], 0, DATA, pinned=True)
    files.after_writes(lambda: there.append(len(list(tmp_path.glob("*.kv")))))
    files.close()
    assert there == [1]


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    wrote(tmp_path / "kv")
    (path,) = (tmp_path / "kv").iterdir()
    assert (tmp_path / "kv").stat().st_mode & 0o077 == 0 and path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.5, 0.999])
def test_a_file_cut_short_is_deleted_and_counted(tmp_path: Path, share: float) -> None:
    wrote(tmp_path)
    (path,) = tmp_path.iterdir()
    os.truncate(path, int(path.stat().st_size * share))
    files = reopened(tmp_path)
    assert files.load() == [] and files.stats.refused == 1
    assert list(tmp_path.iterdir()) == []


def test_no_flipped_byte_goes_unseen(tmp_path: Path) -> None:
    wrote(tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    for place in [*range(0, len(good) - len(DATA), 3), len(good) - len(DATA), len(good) - 1]:
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        files = reopened(tmp_path)
        assert [saved.read() for saved in files.load()] in ([], [None])
        assert files.stats.refused == 1
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "other",
    [Identity("other", "build 1", "f16"), Identity("sha", "build 2", "f16"), Identity("sha", "build 1", "q8_0")],
)
def test_files_of_another_model_build_or_type_are_deleted(tmp_path: Path, other: Identity) -> None:
    wrote(tmp_path, identity=other)
    files = reopened(tmp_path)
    assert files.load() == [] and files.stats.refused == 1
    assert list(tmp_path.iterdir()) == []


def test_what_a_power_cut_left_half_written_is_deleted(tmp_path: Path) -> None:
    wrote(tmp_path)
    (path,) = tmp_path.iterdir()
    (tmp_path / "x.part").write_bytes(path.read_bytes())
    (tmp_path / "notes.txt").write_text("not ours")
    assert len(reopened(tmp_path).load()) == 1
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".kv", ".txt"]


def test_the_oldest_go_when_the_budget_is_spent(tmp_path: Path) -> None:
    files = wrote(tmp_path, most=5000, count=10)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5000
    assert files.stats.dropped == 10 - len(list(tmp_path.iterdir())) > 0
    assert max(saved.header.tokens[0] for saved in reopened(tmp_path).load()) == 9
    assert not files.write("", TOKENS, 0, bytes(5001), pinned=False)


def test_a_folder_that_cannot_be_written_costs_the_files_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = wrote(tmp_path / "file" / "kv")
    assert files.stats.failed == 1 and files.load() == []
