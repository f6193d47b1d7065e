"""The store: puts, replacements, deletes, the change log, faults."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from appliance.errors import (
    BadRequest,
    BadSetting,
    DiskFull,
    EmbedderChanged,
    NotFound,
    StoreDamaged,
    Unavailable,
)
from appliance.store import rows, schema
from appliance.store.db import Store
from appliance.store.records import Change, Loss, NewChunk, NewDocument, Vectors

Form = Literal["NFC", "NFD"]
DIM = 4


def new_document(source: str, sha256: str = "0" * 64) -> NewDocument:
    return NewDocument(
        source=source,
        name=Path(source).name,
        title="T",
        sha256=sha256,
        media_type="text/plain",
        size_bytes=3,
        pages=None,
        encoding="utf-8",
        losses=(Loss("page_without_text", "page 2", 2),),
    )


def new_chunks(*texts: str) -> list[NewChunk]:
    return [NewChunk(text, "A > B", 1, 2, i * 10, i * 10 + 10, 5) for i, text in enumerate(texts)]


def new_vectors(n: int, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float16)


def put(store: Store, source: str, *texts: str, collection: str = "c", seed: int = 0) -> Change:
    _, change = store.put(collection, new_document(source), new_chunks(*texts), new_vectors(len(texts), seed), "e1")
    return change


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store.open(path)
    yield opened
    opened.close()


def test_put_keeps_everything(store: Store) -> None:
    vectors = new_vectors(2)
    document, change = store.put("manuals", new_document("/m/a.txt"), new_chunks("one", "two"), vectors, "e1")
    assert document == store.document(document.id) == store.find("manuals", "/m/a.txt")
    assert document.losses == (Loss("page_without_text", "page 2", 2),)
    assert (document.collection, document.name, document.chunks) == ("manuals", "a.txt", 2)
    assert change == Change(1, "manuals", (), tuple(store.chunk_ids(document.id)))
    first, second = store.chunks(list(change.added))
    assert (first.text, first.heading, first.page_first, first.page_last) == ("one", "A > B", 1, 2)
    assert (second.ordinal, second.document, second.start, second.end) == (1, "a.txt", 10, 20)
    assert np.array_equal(store.vectors(change.added), vectors)
    ids, all_vectors = store.all_vectors("manuals")
    assert ids.tolist() == list(change.added) and np.array_equal(all_vectors, vectors)
    assert store.embedder() == "e1" and store.check() == []


def test_everything_is_there_after_reopening(store: Store, path: Path) -> None:
    change = put(store, "a", "one")
    identity = store.identity()
    store.close()
    again = Store.open(path)
    assert [c.text for c in again.chunks(change.added)] == ["one"]
    assert again.generation() == 1 and again.identity() == identity and again.check() == []
    again.close()


def test_replacing_keeps_the_document_id_and_never_reuses_chunk_ids(store: Store) -> None:
    first = put(store, "a", "one", "two")
    before = store.find("c", "a")
    second = put(store, "a", "three")
    after = store.find("c", "a")
    assert before and after and before.id == after.id
    assert second.removed == first.added and not set(second.added) & set(first.added)
    store.delete([after.id])
    third = put(store, "a", "four")
    assert min(third.added) > max(second.added)
    assert store.chunks([*first.added, *third.added])[0].text == "four"


def test_the_order_of_ids_is_kept_and_missing_ones_are_marked(store: Store) -> None:
    a, b = put(store, "a", "one", "two").added
    assert [c.text for c in store.chunks([b, 999, a])] == ["two", "one"]
    vectors = store.vectors([b, 999, a])
    assert np.isnan(vectors[1]).all() and np.array_equal(vectors[[2, 0]], new_vectors(2))


def test_deleting_the_last_document_keeps_the_collection(store: Store) -> None:
    change = put(store, "a", "one")
    document = store.documents("c")[0]
    assert store.delete([document.id]) == Change(2, "c", change.added, ())
    assert [(c.name, c.documents, c.chunks, c.generation) for c in store.collections()] == [("c", 0, 0, 2)]
    assert store.chunks(change.added) == [] and store.all_vectors()[0].size == 0 and store.check() == []


def test_delete_is_all_or_nothing(store: Store) -> None:
    put(store, "a", "one")
    document = store.documents("c")[0]
    with pytest.raises(NotFound, match="document 77"):
        store.delete([document.id, 77])
    assert store.documents("c") == [document]
    with pytest.raises(BadRequest):
        store.delete([])


def test_delete_collection(store: Store) -> None:
    gone = put(store, "a", "one", collection="x")
    kept = put(store, "a", "two", collection="y")
    assert store.delete_collection("x") == Change(3, "x", gone.added, ())
    assert [c.name for c in store.collections()] == ["y"]
    assert store.live_chunk_ids().tolist() == store.live_chunk_ids("y").tolist() == list(kept.added)


def test_an_unknown_collection_names_those_that_exist(store: Store) -> None:
    with pytest.raises(NotFound, match="appliance ingest"):
        store.collection("nope")
    put(store, "a", "one", collection="manuals")
    for ask in (store.collection, store.documents, store.live_chunk_ids, store.delete_collection):
        with pytest.raises(NotFound, match=r"no collection 'nope'.*manuals"):
            ask("nope")


def test_another_embedder_is_refused_until_the_store_is_empty(store: Store) -> None:
    put(store, "a", "one")
    with pytest.raises(EmbedderChanged, match="ingest the documents again"):
        store.put("c", new_document("b"), new_chunks("x"), np.ones((1, 8), np.float16), "e2")
    assert store.generation() == 1 and store.find("c", "b") is None
    store.delete_collection("c")
    store.put("c", new_document("b"), new_chunks("x"), np.ones((1, 8), np.float16), "e2")
    assert store.embedder() == "e2" and store.all_vectors()[1].shape == (1, 8) and store.check() == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a/b",
        "a\n",
        " a",
        "a ",
        "x" * 101,
        ".",
        "..",
        "\x1b[31m",
        "\u202eabc",
        "\u200b",
        "a\u2028b",
        "\udcff",
        "\ufffd",
    ],
)
def test_a_collection_needs_a_name_that_can_be_shown(store: Store, name: str) -> None:
    with pytest.raises(BadRequest, match="cannot be the name of a collection"):
        put(store, "a", "one", collection=name)
    assert store.collections() == []
    for good in ("a", "Manuals 2024", "手册", "x" * 100):
        put(store, "a", "one", collection=good)


@pytest.mark.parametrize("text", ["Prüfstände", "Ångström", "Việt", "ガイド", "가이드", "plain"])
@pytest.mark.parametrize(("given", "asked"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_a_name_is_the_same_in_every_unicode_form(store: Store, text: str, given: Form, asked: Form) -> None:
    first, second = unicodedata.normalize(given, text), unicodedata.normalize(asked, text)
    change = put(store, "a", "1", collection=first)
    assert put(store, "a", "2", collection=second).removed == change.added
    [collection] = store.collections()
    assert collection.name == change.collection == unicodedata.normalize("NFC", text)
    assert store.collection(second) == collection
    assert [found.source for found in store.documents(second)] == ["a"]
    assert store.find(second, "a") is not None
    assert len(store.live_chunk_ids(second)) == len(store.all_vectors(second)[0]) == 1
    assert store.set_recall(second, 0.99).collection == collection.name
    assert store.delete_collection(second).collection == collection.name
    assert store.collections() == []
    assert store.check() == []


def test_names_of_an_older_store_are_brought_into_one_form(path: Path) -> None:
    connection = sqlite3.connect(path)
    for statement in (statement for version in schema.MIGRATIONS[:2] for statement in version):
        connection.execute(statement)
    names = [unicodedata.normalize("NFD", "Prüfung"), unicodedata.normalize("NFD", "Lüfter"), "Lüfter", "plain"]
    connection.executemany("INSERT INTO collections (name, generation) VALUES (?, 0)", [(name,) for name in names])
    connection.execute("INSERT INTO meta VALUES ('identity', 'x')")
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()
    store = Store.open(path)
    assert [found.name for found in store.collections()] == ["Lüfter", "Lüfter (2)", "Prüfung", "plain"]
    store.close()


@pytest.mark.parametrize(
    "vectors", [np.ones((1, 4), np.float16), np.ones((2, 4), np.float32), np.full((2, 4), np.nan, np.float16)]
)
def test_wrong_vectors_are_refused(store: Store, vectors: Vectors) -> None:
    with pytest.raises(ValueError, match="vector"):
        store.put("c", new_document("a"), new_chunks("x", "y"), vectors, "e1")
    assert store.collections() == []


def test_a_failed_put_leaves_the_old_version_whole(store: Store) -> None:
    put(store, "a", "one", "two")
    bad = [*new_chunks("x"), NewChunk(None, "", None, None, 0, 1, 1)]  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        store.put("c", new_document("a"), bad, new_vectors(2), "e1")
    assert [c.text for c in store.chunks(store.live_chunk_ids().tolist())] == ["one", "two"]
    assert store.generation() == 1 and store.check() == []


def test_changes_since(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.changes_since(0) == []
    changes = [put(store, "a", "one"), put(store, "b", "two"), put(store, "a", "three")]
    assert store.changes_since(0) == changes
    assert store.changes_since(2) == changes[2:]
    assert store.changes_since(3) == []
    assert store.changes_since(4) is None  # of another store
    monkeypatch.setattr(rows, "CHANGES_KEPT", 2)
    changes.append(put(store, "d", "four"))
    assert store.changes_since(1) is None
    assert store.changes_since(2) == changes[2:]
    assert store.check() == []


def test_a_full_disk_is_told_and_loses_nothing(store: Store) -> None:
    put(store, "a", "one")
    with store._connections.exclusive_writer() as writer:
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(DiskFull, match="is full"):
        put(store, "b", "x" * 100_000)
    assert [d.source for d in store.documents("c")] == ["a"] and store.check() == []
    put(store, "b", "small")
    assert len(store.documents("c")) == 2


@pytest.mark.parametrize(
    ("free_blocks", "error", "told"),
    [(1, DiskFull, "is full; what was acknowledged before is safe"), (1 << 30, StoreDamaged, "Check the disk")],
)
def test_a_disk_error_is_no_reason_to_throw_the_store_away(
    store: Store,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_blocks: int,
    error: type[Exception],
    told: str,
) -> None:
    put(store, "a", "one")
    store.close()
    real = os.statvfs(path.parent)
    full = os.statvfs_result((*real[:4], free_blocks, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # SQLite's shared memory can't be made then: "disk I/O error", as when the last block is taken.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        with pytest.raises(error, match=told) as caught:
            Store.open(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "damaged" not in str(caught.value)
    assert [document.source for document in Store.open(path).documents("c")] == ["a"]


@pytest.mark.parametrize("document_id", [0, -1, 2**63, -(2**63) - 1, 10**30])
def test_an_id_that_no_document_can_have_is_not_found(store: Store, document_id: int) -> None:
    put(store, "a", "one")
    with pytest.raises(NotFound, match="There is no document"):
        store.document(document_id)
    with pytest.raises(NotFound, match="There is no document"):
        store.delete([document_id])
    assert len(store.documents("c")) == 1


def test_a_file_that_is_no_store(path: Path) -> None:
    path.write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(StoreDamaged, match=r"is damaged.*ingest the documents again"):
        Store.open(path)


def test_a_damaged_page_is_found(store: Store, path: Path) -> None:
    for i in range(50):
        put(store, f"d{i}", "word " * 200)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xff" * 8192)
    again = Store.open(path)
    try:
        assert again.check() != []
    except StoreDamaged:
        pass  # the damage is where the check itself must read
    finally:
        again.close()


def test_check_finds_what_sqlite_does_not(store: Store) -> None:
    put(store, "a", "one", "two")
    with store._connections.writing() as writer:
        writer.execute("UPDATE documents SET chunks = 5")
        writer.execute("UPDATE vectors SET vector = x'00' WHERE chunk_id = 1")
        writer.execute("DELETE FROM vectors WHERE chunk_id = 2")
    found = " ".join(store.check())
    for fault in ("says it has 5 chunks, but 2", "chunk 1 has 1 bytes", "chunk 2 has no vector"):
        assert fault in found


def test_a_newer_store_is_refused(store: Store, path: Path) -> None:
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreDamaged, match=r"newer program.*Install the newer program"):
        Store.open(path)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be created"):
        Store.open(tmp_path / "no" / "store.db")


def test_the_file_is_private_and_durable(store: Store, path: Path) -> None:
    put(store, "a", "one")
    for file in (path, path.with_name("store.db-wal")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with store._connections.exclusive_writer() as writer:
        assert writer.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert writer.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert writer.execute("PRAGMA foreign_keys").fetchone()[0] == 1


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(Unavailable, match="closed"):
        store.generation()
    with pytest.raises(Unavailable, match="closed"):
        put(store, "a", "one")


def test_readers_see_a_document_before_or_after_a_replacement_never_between(store: Store) -> None:
    put(store, "a", *["v0"] * 5)
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        last = 0
        while not stop.is_set():
            ids, vectors = store.all_vectors("c")
            generation = store.generation()
            if len(ids) != 5 or len(np.unique(vectors[:, 0])) != 1 or generation < last:
                wrong.append((ids, vectors, generation))
            last = generation

    readers = [threading.Thread(target=read) for _ in range(3)]
    store.put("c", new_document("a"), new_chunks(*["v"] * 5), np.full((5, DIM), 0.5, np.float16), "e1")
    for thread in readers:
        thread.start()
    for version in range(40):
        vectors = np.full((5, DIM), version, np.float16)
        store.put("c", new_document("a"), new_chunks(*[f"v{version}"] * 5), vectors, "e1")
    stop.set()
    for thread in readers:
        thread.join()
    assert wrong == [] and store.check() == []


def test_writers_of_several_threads_queue_up(store: Store) -> None:
    def write(name: str) -> None:
        for i in range(10):
            put(store, f"{name}{i}", "x")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.generation() == 30 and len(store.documents("c")) == 30
    changes = store.changes_since(0)
    assert changes is not None and [c.generation for c in changes] == list(range(1, 31))
