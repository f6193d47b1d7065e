"""What searches see of a change: the version before or the one after, at every step of it and after any fault."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ApplianceError, NotFound
from appliance.inference.protocols import Embeddings
from appliance.retrieval import indexes
from appliance.retrieval.dense.tiers import Tiers
from appliance.retrieval.lexical import LexicalIndex
from appliance.retrieval.search import Recall
from appliance.retrieval.types import Mode, SearchRequest
from appliance.store.attributes import Comparison
from appliance.store.db import Store
from appliance.store.records import Change
from tests.unit.retrieval.fakes import WordEmbedder, put, recall_over

MODES: tuple[Mode, ...] = get_args(Mode)
STEPS = (
    (Tiers, "put"),
    (Tiers, "keep_only"),
    (LexicalIndex, "remove"),
    (LexicalIndex, "add"),
    (LexicalIndex, "commit"),
)
FILTER = Comparison("ne", "filename", "none.txt")
Seen = dict[str, set[str]]  # document → texts


def seen(recall: Recall, mode: Mode, *, filtered: bool = False) -> Seen:
    """All that a search finds, by document."""
    request = SearchRequest("pump", "manuals", mode, False, 100, filters=FILTER if filtered else None)
    found: Seen = {}
    try:
        result = recall.search(request)
    except NotFound:
        return found
    for passage in result.passages:
        found.setdefault(passage.document, set()).add(passage.text)
        found[passage.document] |= {"again"} if len(passage.duplicates) else set()
    return found


def everything(recall: Recall) -> list[Seen]:
    return [seen(recall, mode, filtered=filtered) for mode in MODES for filtered in (False, True)]


def at_each_step(monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
    """Call `step` before and after all that a change does to the indexes."""
    for owner, name in STEPS:
        real = getattr(owner, name)

        def stepping(self: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
            step()
            result = real(self, *args, **kwargs)
            step()
            return result

        monkeypatch.setattr(owner, name, stepping)


actions = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "drop"]), st.sampled_from("ab"), st.integers(1, 3)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=8)
@given(actions)
def test_a_search_sees_the_version_before_or_the_one_after(actions: Sequence[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        store = Store.open(Path(folder) / "store.sqlite3")
        recall = recall_over(store, Path(folder) / "index", exact_limit=2)
        before: Seen = {}
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            assert all(found == before for found in everything(recall))

        at_each_step(monkeypatch, look)
        for turn, (what, source, parts) in enumerate(actions):
            after = dict(before)
            document = store.find("manuals", source)
            with recall.changing():
                if what == "put":
                    texts = [f"pump turn{turn} part{part}" for part in range(parts)]
                    change = put(store, source, texts)
                    after[source] = set(texts)
                elif what == "delete" and document is not None:
                    change = store.delete([document.id])
                    del after[source]
                elif what == "drop" and before:
                    change, after = store.delete_collection("manuals"), {}
                else:
                    continue
                look()
                recall.apply(change)
                before = after
                assert all(found == after for found in everything(recall)), "seen when `apply` returns"
            assert recall.check() == []
        assert looks or not any(what == "put" for what, _, _ in actions)
        recall.close()
        store.close()


class Interrupting(WordEmbedder):
    """Has something happen in the middle of a search."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def embed_queries(self, texts: Sequence[str]) -> Embeddings:
        self.meanwhile()
        return super().embed_queries(texts)


@pytest.mark.parametrize("mode", ["hybrid", "dense"])
@pytest.mark.parametrize("what", ["replace", "delete", "drop"])
def test_a_search_that_began_before_a_change_ends_as_if_there_were_none(
    store: Store, tmp_path: Path, mode: Mode, what: str
) -> None:
    embedder = Interrupting()
    recall = recall_over(store, tmp_path / "index", exact_limit=2, embedder=embedder)
    old = [f"pump old {part}" for part in range(9)]
    recall.apply(put(store, "a.txt", old))

    def change() -> None:
        embedder.meanwhile = lambda: None
        [document] = store.documents()
        with recall.changing():
            if what == "replace":
                recall.apply(put(store, "a.txt", ["pump new"]))
            else:
                recall.apply(store.delete([document.id]) if what == "delete" else store.delete_collection("manuals"))

    embedder.meanwhile = change
    assert seen(recall, mode) == {"a.txt": set(old)}
    assert seen(recall, mode) == ({"a.txt": {"pump new"}} if what == "replace" else {})
    recall.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(indexes, "_FIRST_RETRY_S", 0.01)
    yield


def until_mended(recall: Recall) -> None:
    give_up = time.monotonic() + 30
    while recall.behind:
        assert time.monotonic() < give_up
        time.sleep(0.005)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0].__name__}.{step[1]}")
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("what", ["add", "replace", "delete"])
@pytest.mark.usefixtures("quick")
def test_a_fault_at_any_step_hides_what_is_gone_is_told_and_mended_without_another_change(
    store: Store, tmp_path: Path, what: str, step: tuple[Any, str], late: bool
) -> None:
    if (what, step[1]) == ("delete", "add"):
        return  # nothing is added
    recall = recall_over(store, tmp_path / "index")
    recall.apply(put(store, "a.txt", ["pump old", "pump older"]))
    [document] = store.documents()
    broken = True

    def failing(real: Any) -> Any:
        def failing_now(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = real(self, *args, **kwargs) if late or not broken else None
            if broken:
                raise OSError(28, "No space left on device")
            return result

        return failing_now

    changes: dict[str, tuple[Callable[[], Change], Seen]] = {
        "add": (lambda: put(store, "b.txt", ["pump b"]), {"a.txt": {"pump old", "pump older"}, "b.txt": {"pump b"}}),
        "replace": (lambda: put(store, "a.txt", ["pump new"]), {"a.txt": {"pump new"}}),
        "delete": (lambda: store.delete([document.id]), {}),
    }
    change, after = changes[what]
    with pytest.MonkeyPatch.context() as monkeypatch:
        for owner, name in (step, (Tiers, "open")):  # which every try to catch up comes to
            monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
        with recall.changing():
            committed = change()
            with pytest.raises(ApplianceError, match="disk is full"):
                recall.apply(committed)
        assert "disk is full" in recall.behind
        allowed = {text for texts in after.values() for text in texts}
        for mode in MODES:
            result = recall.search(SearchRequest("pump", "manuals", mode, False, 100))
            assert {passage.text for passage in result.passages} <= allowed
            assert [reason.split(":")[0] for reason in result.degraded] == ["index_behind"]
        with pytest.raises(ApplianceError, match="disk is full"):
            recall.catch_up()
        broken = False
        until_mended(recall)
    assert everything(recall) == [after] * len(everything(recall))
    assert recall.check() == []
    assert recall.search(SearchRequest("pump", "manuals", "lexical", False)).degraded == ()
    recall.close()


def test_a_change_that_was_never_told_is_caught_up_with(store: Store, tmp_path: Path) -> None:
    recall = recall_over(store, tmp_path / "index")
    put(store, "a.txt", ["pump"])
    recall.catch_up()
    assert seen(recall, "lexical") == {"a.txt": {"pump"}}
    with recall.changing(), pytest.raises(ZeroDivisionError):
        put(store, "b.txt", ["pump b"])
        raise ZeroDivisionError
    recall.catch_up()
    assert recall.check() == []
    recall.close()


def test_closing_ends_the_tries_to_catch_up(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recall = recall_over(store, tmp_path / "index")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LexicalIndex, "commit", full)
    with pytest.raises(ApplianceError):
        recall.apply(put(store, "a.txt", ["pump"]))
    monkeypatch.undo()
    recall.close()
    again = recall_over(store, tmp_path / "index")
    assert again.check() == []
    again.close()
