"""The note of what is to be forgotten: there before anything is removed, gone only when all of it is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.oblivion import NOTE, Oblivion
from appliance.errors import Unavailable


def test_a_note_is_there_from_before_the_removal_until_it_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    oblivion = Oblivion(folder)
    oblivion.incur()
    assert (folder / NOTE).exists() and not oblivion.owed, "it has not happened yet"
    oblivion.commit()
    assert (oblivion.due, oblivion.settled) == (1, 0)
    oblivion.settle(1)
    assert (oblivion.due, oblivion.settled) == (1, 1) and not (folder / NOTE).exists()


def test_the_next_process_finds_the_note(tmp_path: Path) -> None:
    Oblivion(tmp_path).incur()
    later = Oblivion(tmp_path)
    assert later.owed
    later.settle(later.due)
    assert not Oblivion(tmp_path).owed


@given(st.lists(st.sampled_from(["incur", "commit", "settle"]), max_size=20))
def test_the_note_stays_while_anything_announced_is_not_forgotten(
    tmp_path_factory: pytest.TempPathFactory, calls: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("prefixes")
    oblivion = Oblivion(folder)
    announced = due = forgotten = 0
    for call in calls:
        match call:
            case "incur":
                oblivion.incur()
                announced += 1
            case "commit":
                oblivion.commit()
                due = announced
            case _:
                oblivion.settle(oblivion.due)
                forgotten = due
        assert oblivion.owed == (due > forgotten)
        assert (folder / NOTE).exists() == (announced > forgotten)


def test_where_no_note_can_be_written_nothing_is_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="writable"):
        Oblivion(tmp_path / "file" / "prefixes").incur()


def test_a_file_that_stays_is_told(tmp_path: Path) -> None:
    (tmp_path / "folder.kv").mkdir()
    oblivion = Oblivion(tmp_path)
    with pytest.raises(Unavailable, match="still kept"):
        oblivion.remove_files()


def test_without_a_folder_there_is_nothing_to_note() -> None:
    oblivion = Oblivion(None)
    oblivion.incur()
    oblivion.commit()
    oblivion.remove_files()
    oblivion.settle(oblivion.due)
    assert not oblivion.owed
