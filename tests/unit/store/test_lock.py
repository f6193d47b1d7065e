"""The data directory's lock, between real processes."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import BadSetting, DataDirBusy
from appliance.store.lock import DataDirLock

HOLDER = """
import sys, pathlib
from appliance.store.lock import DataDirLock
lock = DataDirLock(pathlib.Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_holder_is_named(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(DataDirBusy, match=rf"in use by process {holder.pid} \(-c .*data\)\. Stop it first"):
        DataDirLock(tmp_path / "data").acquire()


def test_a_killed_holder_leaves_no_lock(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with DataDirLock(tmp_path / "data"):
        assert (tmp_path / "data" / "lock").read_text().splitlines()[0] == str(os.getpid())


def test_it_can_be_taken_again_after_release(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path / "a" / "data")
    with lock, pytest.raises(DataDirBusy):
        DataDirLock(tmp_path / "a" / "data").acquire()
    with lock:
        pass


def test_the_directory_is_private(tmp_path: Path) -> None:
    with DataDirLock(tmp_path / "a" / "data"):
        assert stat.S_IMODE((tmp_path / "a" / "data").stat().st_mode) == 0o700


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(BadSetting, match="cannot be made"):
        DataDirLock(tmp_path / "data").acquire()


def test_a_path_that_no_file_system_takes_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be made: File name too long"):
        DataDirLock(tmp_path / ("x" * 300)).acquire()


def test_a_full_disk_does_not_keep_anyone_from_their_data(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # no file can grow, as on a full disk
    try:
        with DataDirLock(tmp_path / "data"), pytest.raises(DataDirBusy, match="in use by another process"):
            DataDirLock(tmp_path / "data").acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
