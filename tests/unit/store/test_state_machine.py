"""The store against a plain dict, over random puts, replacements, deletes and reopenings."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.errors import NotFound
from appliance.store.attributes import Comparison
from appliance.store.db import Store
from appliance.store.records import Change, NewChunk, NewDocument

COLLECTIONS = st.sampled_from(["a", "b"])
SOURCES = st.sampled_from(["x", "y", "z"])
# Everything that SQLite can store as text: no lone surrogates.
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=4)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.store = Store.open(self.path)
        self.model: dict[str, dict[str, list[str]]] = {}  # collection → source → texts
        self.attributes: dict[tuple[str, str], int] = {}  # collection, source → value, 0 for none
        self.changes: list[Change] = []
        self.seen_ids: set[int] = set()
        self.live: dict[str, set[int]] = {}  # what an index that follows the changes would hold

    @initialize()
    def empty(self) -> None:
        assert self.store.generation() == 0 and self.store.collections() == []

    def follow(self, change: Change) -> None:
        assert change.generation == len(self.changes) + 1
        assert not set(change.added) & self.seen_ids
        self.seen_ids |= set(change.added)
        live = self.live.setdefault(change.collection, set())
        assert set(change.removed) <= live
        live -= set(change.removed)
        live |= set(change.added)
        self.changes.append(change)

    @rule(collection=COLLECTIONS, source=SOURCES, texts=TEXTS)
    def put(self, collection: str, source: str, texts: list[str]) -> None:
        document = NewDocument(source, source, "", "0", "text/plain", 1, None, None)
        chunks = [NewChunk(text, "", None, None, 0, 1, 1) for text in texts]
        vectors = np.full((len(texts), 3), len(self.changes) % 100, np.float16)
        stored, change = self.store.put(collection, document, chunks, vectors, "e")
        assert self.store.chunk_ids(stored.id) == list(change.added)
        self.model.setdefault(collection, {})[source] = texts
        self.follow(change)
        self.attributes.setdefault((collection, source), 0)

    @rule(collection=COLLECTIONS, source=SOURCES, value=st.integers(1, 3))
    def set_attributes(self, collection: str, source: str, value: int) -> None:
        document = self.store.find(collection, source)
        if document:
            self.follow(self.store.set_attributes(document.id, {"value": value})[1])
            self.attributes[collection, source] = value

    @rule(collection=COLLECTIONS, source=SOURCES)
    def delete(self, collection: str, source: str) -> None:
        document = self.store.find(collection, source)
        assert (document is not None) == (source in self.model.get(collection, {}))
        if document:
            self.follow(self.store.delete([document.id]))
            del self.model[collection][source], self.attributes[collection, source]

    @rule(collection=COLLECTIONS)
    def delete_collection(self, collection: str) -> None:
        if collection in self.model:
            self.follow(self.store.delete_collection(collection))
            for source in self.model.pop(collection):
                del self.attributes[collection, source]
        else:
            with pytest.raises(NotFound):
                self.store.delete_collection(collection)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path)

    @rule(data=st.data())
    def changes_from_anywhere(self, data: st.DataObject) -> None:
        generation = data.draw(st.integers(0, len(self.changes)))
        assert self.store.changes_since(generation) == self.changes[generation:]

    @invariant()
    def equals_the_model(self) -> None:
        assert {c.name for c in self.store.collections()} == set(self.model)
        for name, documents in self.model.items():
            assert [d.source for d in self.store.documents(name)] == sorted(documents)
            for value in (1, 2, 3):
                matching = self.store.matching(name, Comparison("eq", "value", value)).tolist()
                sources = {self.store.document(i).source for i in matching}
                assert sources == {s for (c, s), given in self.attributes.items() if (c, given) == (name, value)}
            ids, vectors = self.store.all_vectors(name)
            assert set(ids.tolist()) == set(self.store.live_chunk_ids(name).tolist()) == self.live[name]
            assert np.array_equal(self.store.vectors(ids.tolist()), vectors)
            chunks = self.store.chunks(ids.tolist())
            for document in self.store.documents(name):
                texts = [c.text for c in chunks if c.document_id == document.id]
                assert texts == documents[document.source]
        assert self.store.check() == []

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestStore = StoreMachine.TestCase
