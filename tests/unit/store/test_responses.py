"""Stored responses: each its caller's, the conversation they make, and that what is deleted or old is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from appliance.errors import NotFound
from appliance.store import responses
from appliance.store.responses import ResponseStore, StoredResponse


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[ResponseStore]:
    with closing(ResponseStore(path)) as opened:
        yield opened


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "time", made.time)
    return made


def put(store: ResponseStore, name: str, previous: str | None = None, label: str = "", size: int = 10) -> None:
    store.put(StoredResponse(name, label, previous, f"said in {name}".encode(), b"x" * size))


def is_there(store: ResponseStore, name: str, label: str = "") -> bool:
    try:
        store.body(name, label)
    except NotFound:
        return False
    return True


def test_a_conversation_is_the_chain_of_its_responses_also_after_a_restart(path: Path) -> None:
    with closing(ResponseStore(path)) as store:
        for name, previous in [("a", None), ("b", "a"), ("c", "b"), ("fork", "a"), ("other", None)]:
            put(store, name, previous)
    with closing(ResponseStore(path)) as store:
        assert store.turns("c", "") == [b"said in a", b"said in b", b"said in c"]
        assert store.turns("fork", "") == [b"said in a", b"said in fork"]
        assert store.turns("other", "") == [b"said in other"]
        assert store.body("b", "") == b"x" * 10


def test_a_response_is_its_callers_alone(store: ResponseStore) -> None:
    put(store, "a", label="one")
    put(store, "b", "a", label="two")  # by a caller who knows the id of another's
    for ask in (store.body, store.turns, store.delete):
        with pytest.raises(NotFound, match="no stored response a"):
            ask("a", "two")
    with pytest.raises(NotFound, match="went on from others"):
        store.turns("b", "two")
    assert store.turns("a", "one") == [b"said in a"]


def test_what_is_deleted_is_gone_and_ends_what_went_on_from_it(store: ResponseStore, path: Path) -> None:
    put(store, "a")
    put(store, "b", "a")
    assert is_there(store, "a")
    store.delete("a", "")
    assert not is_there(store, "a") and is_there(store, "b")
    with pytest.raises(NotFound, match="went on from others") as caught:
        store.turns("b", "")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(NotFound):
        store.delete("a", "")
    files = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"said in b" in files and b"said in a" not in files


def test_old_ones_go(store: ResponseStore, clock: Clock, path: Path) -> None:
    put(store, "a")
    clock.now += responses.KEEP_S / 2
    put(store, "b", "a")
    clock.now += responses.KEEP_S / 2
    assert not is_there(store, "a") and is_there(store, "b")
    with pytest.raises(NotFound):
        store.turns("b", "")
    with closing(ResponseStore(path)) as again:
        clock.now -= responses.KEEP_S / 2
        assert not is_there(again, "a") and is_there(again, "b")


def test_the_oldest_go_when_there_are_too_many(
    store: ResponseStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setattr(responses, "MOST_BYTES", 350)
    for name in "abc":
        put(store, name, size=100)
    store.delete("b", "")
    put(store, "d", size=100)
    assert [name for name in "abcd" if is_there(store, name)] == ["a", "c", "d"]
    with closing(ResponseStore(path)) as again:  # it counts what is there already
        put(again, "e", size=100)
        assert [name for name in "acde" if is_there(again, name)] == ["c", "d", "e"]


def test_a_conversation_without_end_is_none(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "a", "b")
    put(store, "b", "a")
    with pytest.raises(NotFound, match="went on from others"):
        store.turns("a", "")
