"""The cache keeps what it was given, forgets what it must, and whatever the disk does is a miss."""

from __future__ import annotations

import contextlib
import os
import pickle
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.cache import disk as disk_module
from appliance.cache.disk import MOST_VALUE_BYTES, DiskBytes
from appliance.cache.memory import OVERHEAD_BYTES, MemoryBytes
from appliance.cache.tiers import Cache, Entry
from appliance.errors import Unavailable


def cache(folder: Path | None, memory_bytes: int = 1 << 20, wait_s: float = 60.0) -> Cache:
    return Cache(folder, memory_bytes=memory_bytes, disk_bytes=1 << 24, keep_s=3600, wait_s=wait_s)


@contextlib.contextmanager
def closing(made: Cache):  # type: ignore[no-untyped-def]
    try:
        yield made
    finally:
        made.close()


def put(made: Cache, key: bytes, value: bytes, tag: str = "t") -> None:
    made.put(key, value, tag=tag, epoch=made.epoch(tag))


def value_of(made: Cache, key: bytes) -> bytes | None:
    found = made.get(key)
    return found.value if found else None


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Call:
    set = st.tuples(st.just("set"), st.integers(0, 9), st.integers(0, 300), st.sampled_from("ab"))
    get = st.tuples(st.just("get"), st.integers(0, 9))
    forget = st.tuples(st.just("forget"), st.sampled_from("ab"))


@given(st.lists(Call.set | Call.get | Call.forget, max_size=60))
def test_memory_is_a_dict_that_forgets_the_least_recently_used(calls: list[tuple]) -> None:  # type: ignore[type-arg]
    limit = 3 * (OVERHEAD_BYTES + 101)
    memory = MemoryBytes(limit)
    model: dict[bytes, tuple[bytes, str]] = {}
    for call in calls:
        if call[0] == "set":
            key, value, tag = b"%d" % call[1], bytes(call[2]), call[3]
            memory.set(key, value, tag=tag)
            model.pop(key, None)
            model[key] = (value, tag)
            while sum(len(k) + len(v) + OVERHEAD_BYTES for k, (v, _) in model.items()) > limit:
                del model[next(iter(model))]
        elif call[0] == "get":
            key = b"%d" % call[1]
            assert memory.get(key) == (model[key][0] if key in model else None)
            if key in model:
                model[key] = model.pop(key)
        else:
            memory.forget(call[1])
            model = {key: kept for key, kept in model.items() if kept[1] != call[1]}
        assert len(memory) == len(model)
        memory.check_integrity()


# ── disk ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    with closing(cache(tmp_path / "c")) as made:
        put(made, b"k", b"value")
    with closing(cache(tmp_path / "c")) as made:
        assert made.recent(b"k") is None
        assert value_of(made, b"k") == b"value"
        assert made.recent(b"k") is not None
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


def test_a_pickle_in_the_database_is_never_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    marker = tmp_path / "loaded"
    with closing(cache(folder)) as made:
        put(made, b"k", b"value")
        put(made, b"other", b"whole")
    evil = pickle.dumps(_Evil(str(marker)))
    (folder / "evil.val").write_bytes(evil)
    for planted in (
        "mode = 4, value = :evil",
        "mode = 4, value = NULL, filename = 'evil.val'",
        "mode = 2, value = NULL, filename = 'evil.val'",
        "mode = 3, value = NULL, filename = 'evil.val'",
        "value = 'text'",
        "value = 12",
        "value = x''",
    ):
        with contextlib.closing(sqlite3.connect(folder / "cache.db")) as database, database:
            database.execute(f"UPDATE Cache SET {planted} WHERE key = x'6b'", {"evil": evil})  # noqa: S608
        with closing(cache(folder)) as made:
            assert made.get(b"k") is None, planted
            assert value_of(made, b"other") == b"whole", planted
            put(made, b"k", b"value")
    assert not marker.exists()


class _Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (open, (self.path, "w"))


@pytest.mark.parametrize("damage", ["garbage", "cut", "empty", "flipped", "folder"])
def test_a_damaged_file_is_a_miss_and_the_cache_mends_itself(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "c"
    with closing(cache(folder)) as made:
        for number in range(200):
            put(made, b"%d" % number, os.urandom(500))
    database = folder / "cache.db"
    data = database.read_bytes()
    for leftover in folder.glob("cache.db-*"):
        leftover.unlink()
    if damage == "folder":
        database.unlink()
        database.mkdir()
    else:
        half = len(data) // 2
        flipped = bytes(data[:half]) + bytes(255 - byte for byte in data[half:])
        database.write_bytes(
            {"garbage": os.urandom(5000), "cut": data[:half], "empty": b"", "flipped": flipped}[damage]
        )
    with closing(cache(folder)) as made:
        for number in range(200):
            made.get(b"%d" % number)  # whatever: no exception
    with closing(cache(folder)) as made:
        put(made, b"new", b"value")
    with closing(cache(folder)) as made:
        assert value_of(made, b"new") == b"value"


def test_one_flipped_bit_of_a_value_is_a_miss(tmp_path: Path) -> None:
    with closing(cache(tmp_path)) as made:
        put(made, b"k", b"value")
    with contextlib.closing(sqlite3.connect(tmp_path / "cache.db")) as database, database:
        (value,) = database.execute("SELECT value FROM Cache").fetchone()
        for place in range(len(value)):
            flipped = bytes(byte ^ (at == place) for at, byte in enumerate(value))
            with database:
                database.execute("UPDATE Cache SET value = ?", (flipped,))
            with closing(cache(tmp_path)) as made:
                assert made.get(b"k") is None
            with database:
                database.execute("DELETE FROM Cache")
                database.execute(
                    "INSERT INTO Cache (key, raw, store_time, expire_time, mode, value)"
                    " VALUES (x'6b', 1, 0, 1e12, 1, ?)",
                    (value,),
                )
            with closing(cache(tmp_path)) as made:
                assert value_of(made, b"k") == b"value"


def test_a_locked_database_is_a_miss_soon(tmp_path: Path) -> None:
    with closing(cache(tmp_path)) as made:
        put(made, b"k", b"value")
    with contextlib.closing(sqlite3.connect(tmp_path / "cache.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(cache(tmp_path)) as made:
            assert made.get(b"k") is None
            put(made, b"new", b"value")
            assert value_of(made, b"new") == b"value"  # from memory
            assert made.figures().faults > 0
        other.execute("ROLLBACK")
    with closing(cache(tmp_path)) as made:
        assert value_of(made, b"k") == b"value"


def test_a_disk_that_hangs_costs_a_moment_and_then_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    monkeypatch.setattr(DiskBytes, "get", lambda *_: hang.wait())
    made = cache(tmp_path, wait_s=0.05)
    try:
        for number in range(70):
            assert made.get(b"%d" % number) is None
        put(made, b"k", b"value")
        assert value_of(made, b"k") == b"value"
        assert made._pending <= 64
    finally:
        hang.set()
        made.close()


def test_a_folder_that_can_not_be_written_is_a_miss(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")
    with closing(cache(tmp_path / "c")) as made:
        put(made, b"k", b"value")
        assert value_of(made, b"k") == b"value"


def test_a_full_disk_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(disk_module, "_open", full)
    with closing(cache(tmp_path)) as made:
        put(made, b"k", b"value")
        assert value_of(made, b"k") == b"value"
        assert made.get(b"other") is None


def test_two_processes_open_it_for_the_first_time_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from appliance.cache.tiers import Cache\n"
        "made = Cache(Path(sys.argv[1]), memory_bytes=0, disk_bytes=1 << 24, keep_s=99, wait_s=60)\n"
        "for n in range(20): made.put(b'%d' % n, b'v', tag='t', epoch=0); made.get(b'%d' % n)\n"
        "made.close()\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "c")]) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    with closing(cache(tmp_path / "c")) as made:
        put(made, b"k", b"value")
    with closing(cache(tmp_path / "c")) as made:
        assert value_of(made, b"k") == b"value"


def test_a_value_that_is_too_large_for_the_disk_is_not_kept_there(tmp_path: Path) -> None:
    with closing(cache(tmp_path, memory_bytes=0)) as made:
        put(made, b"k", bytes(MOST_VALUE_BYTES + 1))
        assert made.get(b"k") is None


# ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 3), st.sampled_from("ab"))
        | st.tuples(st.just("forget"), st.sampled_from("ab"))
        | st.tuples(st.just("restart"))
        | st.tuples(st.just("clear")),
        max_size=25,
    )
)
def test_what_was_forgotten_never_comes_back(calls: list[tuple], tmp_path_factory: pytest.TempPathFactory) -> None:  # type: ignore[type-arg]
    folder = tmp_path_factory.mktemp("cache")
    made = cache(folder, memory_bytes=2 * (OVERHEAD_BYTES + 20))  # less than all: the disk is asked
    model: dict[bytes, tuple[bytes, str]] = {}
    try:
        for call in calls:
            if call[0] == "put":
                key = f"{call[1]}{call[3]}".encode()
                put(made, key, b"%d" % call[2], tag=call[3])
                model[key] = (b"%d" % call[2], call[3])
            elif call[0] == "forget":
                made.forget(call[1])
                model = {key: kept for key, kept in model.items() if kept[1] != call[1]}
            elif call[0] == "clear":
                made.clear()
                model.clear()
            else:
                made.close()
                made = cache(folder, memory_bytes=2 * (OVERHEAD_BYTES + 20))
            for key in (f"{number}{tag}".encode() for number in range(6) for tag in "ab"):
                assert value_of(made, key) == (model[key][0] if key in model else None)
    finally:
        made.close()


def test_what_was_read_before_a_deletion_is_not_kept_after_it(tmp_path: Path) -> None:
    with closing(cache(tmp_path)) as made:
        epoch, other = made.epoch("t"), made.epoch("u")
        made.forget("t")
        made.put(b"k", b"deleted", tag="t", epoch=epoch)
        made.put(b"l", b"kept", tag="u", epoch=other)
        assert made.get(b"k") is None
        assert value_of(made, b"l") == b"kept"


def test_a_deletion_that_the_disk_does_not_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskBytes, "forget", lambda *_: False)
    with closing(cache(tmp_path)) as made, pytest.raises(Unavailable):
        made.forget("t")


def test_what_was_made_in_the_future_is_of_unknown_age() -> None:
    assert Entry(100.0, b"").age_s(130.0) == 30
    assert Entry(100.0, b"").age_s(99.0) == float("inf")
