"""The indexes against the store: any sequence of changes, restarts and damage ends in agreement."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.errors import DiskFull
from appliance.retrieval.dense.tiered import TieredVectors
from appliance.retrieval.types import SearchRequest
from appliance.store.db import Store
from appliance.store.records import Change
from tests.unit.retrieval.fakes import WordEmbedder, put, recall_over

WORDS = ["pump", "seal", "valve", "oil", "bolt", "filter", "泵", "密封圈"]
texts = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), min_size=1, max_size=5)
sources = st.sampled_from(["a.txt", "b.txt", "c.txt", "d.txt"])
collections = st.sampled_from(["one", "two"])


class StoreAndIndexes(RuleBasedStateMachine):
    """Adds, replaces, deletes, restarts, loses files and changes, and always finds what a dict finds."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store.open(self.folder / "store.sqlite3")
        self.embedder = WordEmbedder()
        self.mirror: dict[tuple[str, str], list[str]] = {}
        self.held: list[Change] = []  # committed, not yet told to the indexes

    @initialize()
    def begin(self) -> None:
        self.recall = recall_over(self.store, self.folder / "index", exact_limit=6)

    @rule(collection=collections, source=sources, texts=texts)
    def put(self, collection: str, source: str, texts: list[str]) -> None:
        self.recall.apply(put(self.store, source, texts, collection=collection))
        self.held.clear()
        self.mirror[(collection, source)] = texts

    @rule(collection=collections, source=sources, texts=texts)
    def put_and_hold(self, collection: str, source: str, texts: list[str]) -> None:
        self.held.append(put(self.store, source, texts, collection=collection))
        self.mirror[(collection, source)] = texts

    @rule(late=st.randoms(use_true_random=False))
    def tell_in_any_order(self, late: random.Random) -> None:
        late.shuffle(self.held)
        for change in self.held:
            self.recall.apply(change)
        self.held.clear()

    @rule(collection=collections, source=sources)
    def delete(self, collection: str, source: str) -> None:
        document = self.store.find(collection, source)
        if document is not None:
            self.recall.apply(self.store.delete([document.id]))
            self.held.clear()
            del self.mirror[(collection, source)]

    @rule(collection=collections)
    def delete_collection(self, collection: str) -> None:
        if any(name == collection for name, _ in self.mirror):
            self.recall.apply(self.store.delete_collection(collection))
            self.held.clear()
            self.mirror = {key: found for key, found in self.mirror.items() if key[0] != collection}

    @rule()
    def restart(self) -> None:
        self.recall.close()
        self.recall = recall_over(self.store, self.folder / "index", exact_limit=6)
        self.held.clear()

    @rule(seed=st.integers(0, 1000))
    def restart_over_damage(self, seed: int) -> None:
        self.recall.close()
        rng = random.Random(seed)
        files = sorted(path for path in (self.folder / "index").rglob("*") if path.is_file())
        file = rng.choice(files)
        if rng.random() < 0.3:
            file.unlink()
        elif data := bytearray(file.read_bytes()):
            data[rng.randrange(len(data))] ^= 0x15
            file.write_bytes(data)
        self.recall = recall_over(self.store, self.folder / "index", exact_limit=6)
        self.held.clear()

    @invariant()
    def finds_what_a_dict_finds(self) -> None:
        if self.held:
            return  # not acknowledged yet
        assert self.recall.check() == []
        for collection in {name for name, _ in self.mirror}:
            stored = {text for (name, _), found in self.mirror.items() if name == collection for text in found}
            for word in ("seal", "密封圈"):
                request = SearchRequest(word, collection, "lexical", False, 100)
                found = {passage.text for passage in self.recall.search(request).passages}
                assert found == {text for text in stored if word in text.split()}
            request = SearchRequest("pump oil", collection, "dense", False, 100)
            dense = self.recall.search(request).passages
            assert {passage.text for passage in dense} == stored
            [question] = self.embedder.embed_queries(["pump oil"])
            own = self.embedder.embed_passages([passage.text for passage in dense]) @ question
            assert [passage.score for passage in dense] == pytest.approx(own.tolist(), abs=2e-3)

    def teardown(self) -> None:
        self.recall.close()
        self.store.close()
        shutil.rmtree(self.folder)


TestStoreAndIndexes = StoreAndIndexes.TestCase
TestStoreAndIndexes.settings = settings(
    max_examples=8, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def documents_of(store: Store, recall_folder: Path, count: int, exact_limit: int) -> None:
    """`count` documents of ten chunks; more than eight times `exact_limit` chunks make a segment."""
    recall = recall_over(store, recall_folder, exact_limit=exact_limit)
    for number in range(count):
        recall.apply(put(store, f"{number}.txt", [f"pump {number} part {part}" for part in range(10)]))
    deadline = time.monotonic() + 60
    while count * 10 > 8 * exact_limit and not list(recall_folder.rglob("manifest-*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    recall.close()


def test_segments_are_opened_and_not_built_again(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents_of(store, tmp_path / "index", 6, exact_limit=5)
    assert len(list((tmp_path / "index" / "dense").rglob("header"))) == 1

    def never(*_: object) -> None:
        raise AssertionError("vectors were read from the store")

    monkeypatch.setattr(store, "vectors", never)
    recall = recall_over(store, tmp_path / "index", exact_limit=5)
    assert len(recall.search(SearchRequest("pump 2", "manuals", "dense", False, 5)).passages) == 5
    recall.close()


@pytest.mark.parametrize("damage", ["segment", "manifest", "all"])
def test_what_is_damaged_is_built_again(store: Store, tmp_path: Path, damage: str) -> None:
    documents_of(store, tmp_path / "index", 6, exact_limit=5)
    dense = tmp_path / "index" / "dense"
    wanted = {"segment": "vectors", "manifest": "manifest-*.json", "all": "*"}[damage]
    for file in [path for path in dense.rglob(wanted) if path.is_file()]:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
    recall = recall_over(store, tmp_path / "index", exact_limit=5)
    assert recall.check() == []
    recall.close()


def test_many_missing_vectors_are_found_while_they_are_read_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from appliance.retrieval.dense import tiers

    documents_of(store, tmp_path / "index", 6, exact_limit=5)
    shutil.rmtree(tmp_path / "index" / "dense")
    monkeypatch.setattr(tiers, "_READ_NOW", 10)
    held = threading.Event()
    maintain = TieredVectors.maintain
    monkeypatch.setattr(TieredVectors, "maintain", lambda tier, **how: held.wait() and maintain(tier, **how))
    recall = recall_over(store, tmp_path / "index", exact_limit=5)
    assert recall.check() == []
    request = SearchRequest("pump 2 part 7", "manuals", "dense", False, 5)
    before = recall.search(request).passages
    held.set()
    deadline = time.monotonic() + 60
    while not list((tmp_path / "index").rglob("manifest-*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert recall.search(request).passages == before
    assert recall.check() == []
    recall.close()


def test_work_on_the_side_that_fails_is_tried_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from appliance.retrieval.dense import tiers

    monkeypatch.setattr(tiers, "_RETRY_S", 0.01)
    maintain, failed = TieredVectors.maintain, threading.Event()

    def failing(tier: TieredVectors, *, quiet: bool) -> bool:
        if not failed.is_set():
            failed.set()
            raise OSError(28, "No space left on device")
        return maintain(tier, quiet=quiet)

    monkeypatch.setattr(TieredVectors, "maintain", failing)
    documents_of(store, tmp_path / "index", 6, exact_limit=5)
    assert failed.is_set()
    recall = recall_over(store, tmp_path / "index", exact_limit=5)
    assert recall.check() == []
    recall.close()


def test_a_folder_of_a_collection_that_is_gone_is_removed(store: Store, tmp_path: Path) -> None:
    documents_of(store, tmp_path / "index", 2, exact_limit=5)
    left_over = tmp_path / "index" / "dense" / "0123456789abcdef"
    left_over.mkdir()
    (left_over.parent / "manifest.json").write_text("{}")  # of an earlier version
    recall = recall_over(store, tmp_path / "index", exact_limit=5)
    recall.apply(store.delete_collection("manuals"))
    recall.close()
    assert list(left_over.parent.iterdir()) == []


def test_an_index_folder_of_another_store_is_not_believed(tmp_path: Path) -> None:
    with_pumps = Store.open(tmp_path / "one.sqlite3")
    documents_of(with_pumps, tmp_path / "index", 2, exact_limit=5)
    with_pumps.close()
    other = Store.open(tmp_path / "two.sqlite3")
    for number in range(2):
        put(other, f"{number}.txt", [f"valve {number} part {part}" for part in range(10)])
    recall = recall_over(other, tmp_path / "index", exact_limit=5)
    assert recall.check() == []
    assert recall.search(SearchRequest("pump", "manuals", "lexical", False)).passages == ()
    assert len(recall.search(SearchRequest("valve", "manuals", "lexical", False, 50)).passages) == 20
    recall.close()
    other.close()


def test_a_store_that_went_back_to_a_backup_is_believed(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "a.txt", ["the pump"]))
    recall.close()
    shutil.copy(tmp_path / "store.sqlite3", tmp_path / "backup.sqlite3")
    for file in tmp_path.glob("store.sqlite3-*"):
        shutil.copy(file, tmp_path / file.name.replace("store", "backup"))
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "b.txt", ["the valve"]))
    recall.close()
    backup = Store.open(tmp_path / "backup.sqlite3")
    recall = recall_over(backup, tmp_path / "index")
    assert recall.check() == []
    assert recall.search(SearchRequest("valve", "manuals", "lexical", False)).passages == ()
    recall.close()
    backup.close()


def test_check_names_what_does_not_agree(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "a.txt", ["the pump", "the valve"]))
    put(store, "b.txt", ["never told"])
    assert recall.check() == [
        "lexical index: 1 stored chunks are missing, the first is 3",
        "vectors of 'manuals': 1 stored chunks are missing, the first is 3",
    ]
    recall.close()


def test_a_full_disk_is_told_and_made_up_for(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "a.txt", ["the pump"]))
    lexical = recall._indexes._lexical
    commit = lexical.commit

    def full(_: int) -> None:
        raise ValueError("An IO error occurred: 'No space left on device (os error 28)'")

    monkeypatch.setattr(lexical, "commit", full)
    with pytest.raises(DiskFull):
        recall.apply(put(store, "b.txt", ["the valve"]))
    monkeypatch.setattr(lexical, "commit", commit)
    recall.apply(put(store, "c.txt", ["the bolt"]))
    assert recall.check() == []
    assert len(recall.search(SearchRequest("valve bolt", "manuals", "lexical", False)).passages) == 2
    recall.close()
