"""A model file is there whole or not at all."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import DiskFull
from appliance.packs.files import ModelsDirUnusable, one_writer, sha256_of, written_beside
from appliance.packs.lock import LOCK, LockedFile, read_lock, write_lock


def test_a_failure_in_the_middle_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), written_beside(path) as file:
        file.write(b"half of the new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "model"
    (tmp_path / "model.part").symlink_to("/dev/full")  # every write to it fails for want of room
    with pytest.raises(DiskFull, match=r"no room.*model"), written_beside(path) as file:
        file.write(b"x" * 100_000)
    assert not path.exists()


def test_a_models_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelsDirUnusable, match="file"), written_beside(tmp_path / "file" / "model"):
        pass


def test_the_sum_is_that_of_the_whole_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000  # more than two reads
    (tmp_path / "model").write_bytes(content)
    assert sha256_of(tmp_path / "model") == hashlib.sha256(content).hexdigest()


def test_a_second_writer_waits_for_the_first(tmp_path: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with one_writer(tmp_path, waiting.set):
            order.append("second")

    with one_writer(tmp_path, lambda: order.append("waited")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
sums = st.binary(min_size=32, max_size=32).map(bytes.hex)
locks = st.dictionaries(names, st.builds(LockedFile, sums, st.integers(0, 1 << 40), sums))


@given(locks)
def test_a_lock_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, LockedFile]
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    write_lock(folder, files)
    assert read_lock(folder) == files
    assert (folder / LOCK).exists()


def test_a_folder_without_a_lock_has_an_empty_one(tmp_path: Path) -> None:
    assert read_lock(tmp_path) == {}
