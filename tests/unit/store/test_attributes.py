"""Attributes of documents: what is allowed, what filters let through (against plain Python), and older files."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import BadRequest, NotFound
from appliance.store import schema
from appliance.store.attributes import MOST_DEPTH, Attributes, Comparison, Value, check_attributes, parse_filter
from appliance.store.db import Store
from tests.unit.store.test_store import new_chunks, new_document, new_vectors

SCALARS = st.sampled_from(["", "a", "b", "Ä", "10", 0, 1, -2, 1.5, 2**53, 1e300, True, False])
KEYS = st.sampled_from(["k", "l", "filename", 'with "quotes"', "$.k"])
ATTRIBUTES = st.dictionaries(KEYS, SCALARS, max_size=3)
LEAVES = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["eq", "ne"]), "key": KEYS, "value": SCALARS}),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["gt", "gte", "lt", "lte"]),
            "key": KEYS,
            "value": SCALARS.filter(lambda value: not isinstance(value, bool)),
        }
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["in", "nin"]), "key": KEYS, "value": st.lists(SCALARS, min_size=1, max_size=3)}
    ),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(["and", "or"]), "filters": st.lists(inner, min_size=1, max_size=3)}
    ),
    max_leaves=6,
)


def put(store: Store, source: str, attributes: Attributes | None = None, collection: str = "c") -> int:
    vectors = new_vectors(2)
    document, _ = store.put(collection, new_document(source), new_chunks("one", "two"), vectors, "e1", attributes)
    return document.id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store.db")
    yield opened
    opened.close()


def kind(value: Value) -> str:
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def same(left: Value, right: Value) -> bool:
    return kind(left) == kind(right) and left == right


def holds(wanted: dict[str, Any], found: Attributes) -> bool:
    """The meaning of a filter, in plain Python."""
    match wanted:
        case {"type": "and", "filters": parts}:
            return all(holds(part, found) for part in parts)
        case {"type": "or", "filters": parts}:
            return any(holds(part, found) for part in parts)
        case {"type": "ne", **rest}:
            return not holds({"type": "eq", **rest}, found)
        case {"type": "nin", **rest}:
            return not holds({"type": "in", **rest}, found)
    value, wished = found.get(wanted["key"]), wanted["value"]
    if value is None:
        return False
    if wanted["type"] == "eq":
        return same(value, wished)
    if wanted["type"] == "in":
        return any(same(value, one) for one in wished)
    if kind(value) != kind(wished):
        return False
    left, right = (value.encode(), wished.encode()) if isinstance(value, str) else (value, wished)
    return bool({"gt": left > right, "gte": left >= right, "lt": left < right, "lte": left <= right}[wanted["type"]])


@settings(max_examples=60, deadline=None)
@given(documents=st.lists(ATTRIBUTES, max_size=5), later=ATTRIBUTES, wanted=st.lists(FILTERS, min_size=1, max_size=8))
def test_filters_let_through_what_they_say(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[Attributes],
    later: Attributes,
    wanted: list[dict[str, Any]],
) -> None:
    store = Store.open(tmp_path_factory.mktemp("filters") / "store.db")
    put(store, "elsewhere.txt", {"k": "a", "l": 1}, collection="other")
    known = {put(store, f"{n}.txt", given): given for n, given in enumerate(documents)}
    if known:
        changed = min(known)
        store.set_attributes(changed, later)
        known[changed] = later
    else:
        store.delete([put(store, "gone.txt")])
    for one in wanted:
        names = {i: {"filename": store.document(i).name, **given} for i, given in known.items()}
        expected = sorted(i for i, given in names.items() if holds(one, given))
        assert store.matching("c", parse_filter(one)).tolist() == expected, one
    assert store.check() == []
    store.close()


def test_attributes_are_kept_replaced_and_stay_with_a_replaced_file(store: Store) -> None:
    document_id = put(store, "a.txt", {"rev": 2, "draft": False, "unit": "泵"})
    assert store.document(document_id).attributes == {"rev": 2, "draft": False, "unit": "泵"}
    assert put(store, "a.txt") == document_id
    assert store.document(document_id).attributes["rev"] == 2
    put(store, "a.txt", {"rev": 3})
    assert store.document(document_id).attributes == {"rev": 3}
    assert [chunk.attributes for chunk in store.chunks(store.chunk_ids(document_id))] == [{"rev": 3}] * 2
    put(store, "a.txt", {})
    assert store.document(document_id).attributes == {}


def test_a_change_of_attributes_leaves_the_chunks_and_is_logged(store: Store) -> None:
    document_id = put(store, "a.txt")
    before, chunks = store.collection("c").generation, store.chunk_ids(document_id)
    document, change = store.set_attributes(document_id, {"rev": 3})
    assert document.attributes == {"rev": 3}
    assert (change.removed, change.added) == ((), ())
    assert store.chunk_ids(document_id) == chunks
    assert store.collection("c").generation == change.generation == store.generation() == before + 1
    assert store.changes_since(before) == [change]
    with pytest.raises(NotFound):
        store.set_attributes(999, {})


def test_a_file_name_is_an_attribute_that_can_be_overridden(store: Store) -> None:
    first, second = put(store, "/m/a.txt"), put(store, "/m/b.txt", {"filename": "a.txt"})
    assert store.matching("c", Comparison("eq", "filename", "a.txt")).tolist() == [first, second]
    assert store.matching("c", Comparison("eq", "filename", "b.txt")).tolist() == []
    with pytest.raises(NotFound):
        store.matching("none", Comparison("eq", "filename", "a.txt"))


def test_chunks_of_documents(store: Store) -> None:
    first, second = put(store, "a.txt"), put(store, "b.txt")
    assert store.chunk_ids_in(np.array([second, 77])).tolist() == store.chunk_ids(second)
    assert store.chunk_ids_in(np.array([second, first])).tolist() == [*store.chunk_ids(first), *store.chunk_ids(second)]
    assert store.chunk_ids_in(np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "attributes"),
        ({str(n): n for n in range(17)}, "attributes"),
        ({"": 1}, "attributes"),
        ({"k" * 65: 1}, "attributes"),
        ({"k\0": 1}, "attributes"),
        ({"k": "v" * 513}, "attributes.k"),
        ({"k": "\ud800"}, "attributes.k"),
        ({"k": None}, "attributes.k"),
        ({"k": [1]}, "attributes.k"),
        ({"k": float("nan")}, "attributes.k"),
        ({"k": 10**400}, "attributes.k"),
    ],
)
def test_what_is_no_attribute_is_named(given: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_attributes(given)
    assert caught.value.param == param


def test_the_limits_themselves_are_allowed() -> None:
    assert len(check_attributes({"k" * 60 + f"{n:04}": "v" * 512 for n in range(16)})) == 16
    assert check_attributes({"n": 2**60 + 1}) == {"n": float(2**60)}


def nested(levels: int) -> dict[str, Any]:
    leaf = {"type": "eq", "key": "k", "value": 1}
    return leaf if levels == 1 else {"type": "and", "filters": [nested(levels - 1)]}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("k=1", "filters"),
        ({}, "filters.type"),
        ({"type": "like", "key": "k", "value": 1}, "filters.type"),
        ({"type": ["eq"], "key": "k", "value": 1}, "filters.type"),
        ({"type": "eq", "value": 1}, "filters.key"),
        ({"type": "eq", "key": 5, "value": 1}, "filters.key"),
        ({"type": "eq", "key": "k"}, "filters.value"),
        ({"type": "eq", "key": "k", "value": None}, "filters.value"),
        ({"type": "eq", "key": "k", "value": [1]}, "filters.value"),
        ({"type": "in", "key": "k", "value": 1}, "filters.value"),
        ({"type": "in", "key": "k", "value": []}, "filters.value"),
        ({"type": "in", "key": "k", "value": [1, {}]}, "filters.value[1]"),
        ({"type": "gt", "key": "k", "value": True}, "filters.value"),
        ({"type": "eq", "key": "k", "value": 1, "values": [1]}, "filters.values"),
        ({"type": "and", "filters": []}, "filters.filters"),
        ({"type": "and", "filters": {}}, "filters.filters"),
        ({"type": "or", "filters": [nested(1), {"type": "eq", "key": "k"}]}, "filters.filters[1].value"),
        (nested(MOST_DEPTH + 1), "filters" + ".filters[0]" * (MOST_DEPTH - 1)),
        ({"type": "in", "key": "k", "value": list(range(1001))}, "filters"),
    ],
)
def test_what_is_wrong_with_a_filter_is_named(given: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_filter(given)
    assert caught.value.param == param


def test_the_widest_and_deepest_filter_is_answered(store: Store) -> None:
    document_id = put(store, "a.txt", {"k": 1})
    many = [{"type": "in", "key": "k", "value": list(range(10))} for _ in range(100)]
    assert store.matching("c", parse_filter({"type": "and", "filters": many})).tolist() == [document_id]
    assert store.matching("c", parse_filter(nested(MOST_DEPTH))).tolist() == [document_id]


def test_recall_targets_of_collections(store: Store) -> None:
    put(store, "a.txt")
    assert store.collection("c").recall is None
    for target in (0.9, 0.95, 0.99, "exact"):
        change = store.set_recall("c", target)
        assert store.collection("c").recall == target
        assert (change.added, change.generation) == ((), store.generation())
    store.set_recall("c", None)
    assert store.collections()[0].recall is None
    for wrong in (0.5, 1, True, "most"):
        with pytest.raises(BadRequest, match=r"0\.9, 0\.95, 0\.99, exact"):
            store.set_recall("c", wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        store.set_recall("none", 0.9)


def test_a_file_of_the_first_format_opens_with_all_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    old = sqlite3.connect(path)
    for statement in schema.MIGRATIONS[0]:
        old.execute(statement)
    vector = np.array([1, 0, 0, 0], "<f2").tobytes()
    old.executescript(
        f"""INSERT INTO meta VALUES ('identity', '{secrets.token_hex(16)}'), ('embedder', 'e1'), ('dim', '4');
        UPDATE meta SET value = '1' WHERE name = 'generation';
        INSERT INTO collections VALUES (1, 'c', 1);
        INSERT INTO documents VALUES (7, 1, '/m/a.txt', 'a.txt', 'T', 'ab', 'text/plain', 3, NULL, NULL, 1,
            'then', '[]');
        INSERT INTO chunks VALUES (5, 7, 0, 'text', 'H', 1, 1, 0, 4, 1);
        INSERT INTO vectors VALUES (5, x'{vector.hex()}');
        INSERT INTO changes VALUES (1, 'c', x'', x'{np.array([5], "<i8").tobytes().hex()}');
        PRAGMA user_version = 1;"""  # noqa: S608 - constants alone
    )
    old.close()
    for _ in range(2):  # the second time it is of the new format already
        store = Store.open(path)
        assert store.check() == []
        [document] = store.documents()
        assert (document.name, document.attributes) == ("a.txt", {})
        assert store.chunks([5])[0].text == "text"
        assert store.collection("c").recall is None
        assert store.matching("c", Comparison("eq", "filename", "a.txt")).tolist() == [7]
        store.close()
    store = Store.open(path)
    store.set_attributes(7, {"k": True})
    assert put(store, "/m/a.txt") == 7
    assert store.matching("c", Comparison("eq", "k", True)).tolist() == [7]
    assert store.check() == []
    store.close()
