"""The table of API keys: what is kept of them, that they end for good, and that it is all there after a restart."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.errors import BadRequest, NotFound, StoreDamaged
from appliance.store import keys as keys_module
from appliance.store.db import Store
from appliance.store.keys import ApiKey, KeyExists, NewKey, Scope, any_active, split

PAST, FUTURE = "2020-01-01", "2999-01-01"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(Store.open(path)) as opened:
        yield opened


def parts(token: str) -> tuple[str, str]:
    found = split(token)
    assert found is not None
    return found


def create(store: Store, wanted: NewKey) -> tuple[ApiKey, str]:
    made = store.keys.create(wanted)
    return made.key, made.secret


def test_a_key_opens_with_its_own_secret_alone(store: Store) -> None:
    key, token = create(store, NewKey("web", ("query", "query", "ingest"), FUTURE, 60, 4))
    _, foreign = create(store, NewKey("other", ("admin",)))
    assert (key.scopes, key.rate_per_min, key.concurrency, key.state()) == (("query", "ingest"), 60, 4, "active")
    assert key.expires_at == "2999-01-01T00:00:00.000+00:00"
    key_id, secret = parts(token)
    assert key_id == key.id
    assert store.keys.get(key_id) == key
    assert store.keys.matches(key_id, secret)
    assert not store.keys.matches(key_id, parts(foreign)[1])
    assert not store.keys.matches(key_id, secret[:-1] + ("A" if secret[-1] != "A" else "B"))
    assert not store.keys.matches("0" * 16, secret)


def test_the_secret_is_nowhere_in_the_store(store: Store, path: Path) -> None:
    _, token = create(store, NewKey("web", ("query",)))
    secret = parts(token)[1].encode()
    for file in path.parent.iterdir():
        assert secret not in file.read_bytes(), file


def test_keys_outlive_a_restart_and_so_does_their_end(path: Path) -> None:
    with closing(Store.open(path)) as store:
        first, token = create(store, NewKey("a", ("query",)))
        second, _ = create(store, NewKey("b", ("ingest",), FUTURE))
        ended = store.keys.revoke(second.id)
        assert ended.state() == "revoked"
        assert store.keys.revoke(second.id) == ended, "again changes nothing"
    with closing(Store.open(path)) as store:
        assert {key.id: key for key in store.keys.list()} == {first.id: first, second.id: ended}
        assert store.keys.matches(*parts(token))


def test_a_name_is_of_one_key_at_a_time(store: Store) -> None:
    key, _ = create(store, NewKey("web", ("query",)))
    with pytest.raises(KeyExists, match="Revoke it first"):
        store.keys.create(NewKey("web", ("admin",)))
    store.keys.revoke(key.id)
    again, _ = create(store, NewKey("web", ("query",)))
    assert again.id != key.id
    assert [found.state() for found in store.keys.list()].count("active") == 1


def test_one_of_many_at_once_gets_the_name(store: Store) -> None:
    gate = threading.Barrier(8)

    def one(_: int) -> bool:
        gate.wait()
        try:
            store.keys.create(NewKey("web", ("query",)))
        except KeyExists:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == 1


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "x" * 101, "\u202eweb", "a\ufffd", "a\ud800"])
def test_names_that_cannot_be_shown(store: Store, name: str) -> None:
    with pytest.raises(BadRequest, match="name of a key"):
        store.keys.create(NewKey(name, ("query",)))


@pytest.mark.parametrize(
    "moment", ["", "soon", "2027", "2027-02-30", "20270131", "2027-01-31T25:00", "0001-01-01T00:00+09"]
)
def test_ends_that_are_no_moment(store: Store, moment: str) -> None:
    with pytest.raises(BadRequest) as caught:
        store.keys.create(NewKey("a", ("query",), moment))
    assert caught.value.param == "expires_at"


def test_a_key_ends_at_its_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="expired already"):
        store.keys.create(NewKey("a", ("query",), PAST))
    key, _ = create(store, NewKey("a", ("query",), "2999-01-01T02:00+02:00"))
    for now, state in (("2998-12-31T23:59:59.999+00:00", "active"), ("2999-01-01T00:00:00.000+00:00", "expired")):
        monkeypatch.setattr(keys_module, "_now", lambda now=now: now)
        assert key.state() == state


def test_what_is_not_there_is_not_revoked(store: Store) -> None:
    with pytest.raises(NotFound, match="keys list"):
        store.keys.revoke("0" * 16)


@pytest.mark.parametrize(
    "token", ["", "none", "sk-123", "apl_", "apl_0123456789abcdef_short", "apl_0123456789ABCDEF_" + "x" * 43]
)
def test_what_has_not_the_form_of_a_key(token: str) -> None:
    assert split(token) is None


def test_whether_a_store_that_nobody_opened_has_a_key(path: Path) -> None:
    assert not any_active(path)
    assert not path.exists()
    with closing(Store.open(path)) as store:
        assert not any_active(path)
        key, _ = create(store, NewKey("a", ("query",)))
        assert any_active(path), "also while a service has it open"
        store.keys.revoke(key.id)
        assert not any_active(path)
        store.keys.create(NewKey("b", ("query",), FUTURE))
    assert any_active(path)
    with closing(sqlite3.connect(path)) as older:
        older.execute("DROP TABLE keys")
    assert not any_active(path)
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreDamaged):
        any_active(path)


class Keys(RuleBasedStateMachine):
    """Any order of making, ending and reopening, against a dictionary of what was made."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(keys_module, "_LOG2_N", 2)  # its slowness is not what is tested
        self.store = Store.open(self.path)
        self.made: dict[str, ApiKey] = {}
        self.secrets: dict[str, str] = {}

    @rule(name=st.sampled_from("abc"), scope=st.sampled_from(("query", "admin")), limit=st.none() | st.integers(1, 9))
    def create(self, name: str, scope: Scope, limit: int | None) -> None:
        taken = any(key.name == name and key.revoked_at is None for key in self.made.values())
        try:
            key, token = create(self.store, NewKey(name, (scope,), rate_per_min=limit))
        except KeyExists:
            assert taken
        else:
            assert not taken
            self.made[key.id] = key
            self.secrets[key.id] = parts(token)[1]

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        if self.made:
            key_id = data.draw(st.sampled_from(sorted(self.made)))
            self.made[key_id] = self.store.keys.revoke(key_id)
            assert self.made[key_id].state() == "revoked"

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path)

    @invariant()
    def all_is_there(self) -> None:
        assert {key.id: key for key in self.store.keys.list()} == self.made
        assert all(self.store.keys.matches(key_id, secret) for key_id, secret in self.secrets.items())
        assert any_active(self.path) == any(key.state() == "active" for key in self.made.values())

    def teardown(self) -> None:
        self.store.close()
        self.patch.undo()
        self.folder.cleanup()


TestKeys = Keys.TestCase
TestKeys.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)
