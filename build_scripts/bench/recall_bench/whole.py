"""Owns what is done with whole recall: a store filled with passages, searches in it, searches while it changes.

Must not know how figures are made of it.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from appliance.config import RecallSettings
from appliance.retrieval.search import Recall
from appliance.retrieval.types import Mode, SearchRequest
from appliance.store.db import Store
from appliance.store.records import NewChunk, NewDocument
from build_scripts.bench._lib.conditions import say

from .building import Built, Meter
from .data import Floats, VectorData, data_of
from .memory import memory_now
from .tasks import BuildWhole, Live, Lived, SearchedWhole, SearchWhole
from .texts import ZipfTexts

_COLLECTION = "bench"
_FOUND = 50
_PASSAGES_A_DOCUMENT = 1000  # of those that are there from the start
_PASSAGES_A_WRITE = 20  # of those that come and go while questions are asked
_WARM_UP = 50
_MODES: tuple[Mode, ...] = ("hybrid", "lexical", "dense")


class MadeEmbedder:
    """Stands in for a model: questions have the vectors that were made for them, and take no time."""

    fingerprint = "made"
    max_tokens = 512

    def __init__(self, questions: Sequence[str], vectors: Floats) -> None:
        self.dim = vectors.shape[1]
        self._vectors = dict(zip(questions, vectors, strict=True))

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def embed_queries(self, texts: Sequence[str]) -> Floats:
        return np.stack([self._vectors[text] for text in texts])

    def embed_passages(self, texts: Sequence[str]) -> Floats:
        raise NotImplementedError


def build(task: BuildWhole) -> Built:
    """Fill the store, then build its indexes; goes on where it was stopped."""
    data, folder = data_of(task.data), Path(task.folder)
    passages, texts = data.passages(), ZipfTexts()
    meter = Meter(Built())
    store = Store.open(folder / "store.db")
    have = sum(one.chunks for one in store.collections())
    for begin in range(have, len(passages), _PASSAGES_A_DOCUMENT):
        rows = passages[begin : begin + _PASSAGES_A_DOCUMENT]
        _put(store, begin, texts.passages(begin, len(rows)), rows)
        if begin % 20_000 == 0:
            say(f"{begin} of {len(passages)} passages stored")
    store.close()
    with _recall(folder, data) as (_, recall, _):
        say("Indexed")
        faults = recall.check()
    if faults:
        raise RuntimeError(faults[0])
    return meter.now()


def search(task: SearchWhole) -> SearchedWhole:
    """Ask in every mode, in turns, so that what disturbs one disturbs all."""
    data = data_of(task.data)
    before = memory_now()
    begin = time.perf_counter()
    times: dict[str, list[float]] = {mode: [] for mode in _MODES}
    stages: dict[str, list[float]] = {}
    with _recall(Path(task.folder), data) as (_, recall, questions):
        opened = time.perf_counter() - begin
        warm = questions[-_WARM_UP:]
        for number, question in enumerate([*warm, *questions[: task.questions]]):
            for mode in _MODES:
                request = SearchRequest(question, _COLLECTION, mode, rerank=False, top_k=_FOUND)
                asked = time.perf_counter()
                result = recall.search(request)
                took = (time.perf_counter() - asked) * 1000
                if number >= len(warm):
                    times[mode].append(took)
                    for stage, ms in result.timings_ms.items() if mode == "hybrid" else ():
                        stages.setdefault(stage, []).append(ms)
        after = memory_now()
    return SearchedWhole(opened * 1000, times, stages, after - before)


def live(task: Live) -> Lived:
    """Ask one question after another, in turns with and without writes beside it."""
    data, folder = data_of(task.data), Path(task.folder)
    beside = folder.with_name(f"{folder.name}.live")
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(folder, beside)
    try:
        with _recall(beside, data) as (store, recall, questions):
            _asked(recall, questions, seconds=1.0)
            writer = Writer(store, recall, data, task)
            quiet, writing = [], []
            for _ in range(task.turns):
                quiet.append(_asked(recall, questions, task.seconds))
                with writer.writing():
                    writing.append(_asked(recall, questions, task.seconds))
            return Lived(quiet, writing, *writer.rates(), writer.took_ms)
    finally:
        shutil.rmtree(beside)


class Writer:
    """Adds documents and deletes some of them, at a steady pace, in a thread of its own."""

    def __init__(self, store: Store, recall: Recall, data: VectorData, pace: Live) -> None:
        self._store = store
        self._recall = recall
        self._passages = data.passages()
        self._texts = ZipfTexts()
        self._pace = pace
        self._next = len(self._passages)  # number of the next passage: others than those that are there
        self._documents: list[int] = []
        self._stop = threading.Event()
        self._spent_s = 0.0
        self._added = self._deleted = 0
        self.took_ms: list[float] = []  # of each write, from the store to searchable

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write as long as this is open.

        Raises:
            Exception: what a write raised.
        """
        faults: list[BaseException] = []
        self._stop.clear()
        thread = threading.Thread(target=self._run, args=(faults,))
        begin = time.perf_counter()
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self._spent_s += time.perf_counter() - begin
        if faults:
            raise faults[0]

    def rates(self) -> tuple[float, float]:
        """Passages added and deleted a second."""
        return self._added / self._spent_s, self._deleted / self._spent_s

    def _run(self, faults: list[BaseException]) -> None:
        try:
            begin = time.perf_counter() - self._spent_s
            while True:
                next_add = self._added / self._pace.adds_per_s
                next_delete = (self._deleted + _PASSAGES_A_WRITE) / self._pace.deletes_per_s
                if self._stop.wait(max(0.0, begin + min(next_add, next_delete) - time.perf_counter())):
                    return
                if next_add <= next_delete:
                    self._add()
                else:
                    self._delete()
        except BaseException as error:  # told by the thread that waits
            faults.append(error)

    def _add(self) -> None:
        texts = self._texts.passages(self._next, _PASSAGES_A_WRITE)
        first = self._next % (len(self._passages) - _PASSAGES_A_WRITE)
        vectors = self._passages[first : first + _PASSAGES_A_WRITE]
        begin = time.perf_counter()
        self._documents.append(_put(self._store, self._next, texts, vectors, self._recall))
        self.took_ms.append((time.perf_counter() - begin) * 1000)
        self._next += _PASSAGES_A_WRITE
        self._added += _PASSAGES_A_WRITE

    def _delete(self) -> None:
        begin = time.perf_counter()
        self._recall.apply(self._store.delete([self._documents.pop(0)]))
        self.took_ms.append((time.perf_counter() - begin) * 1000)
        self._deleted += _PASSAGES_A_WRITE


def _asked(recall: Recall, questions: Sequence[str], seconds: float) -> list[float]:
    """Times of hybrid searches, one after another."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        question = questions[len(times) % len(questions)]
        recall.search(SearchRequest(question, _COLLECTION, rerank=False, top_k=_FOUND))
        times.append((time.perf_counter() - begin) * 1000)
    return times


@contextmanager
def _recall(folder: Path, data: VectorData) -> Iterator[tuple[Store, Recall, list[str]]]:
    """The store and its recall, open, with the indexes complete; and the questions."""
    vectors, _ = data.questions()
    questions = ZipfTexts().questions(len(vectors))
    store = Store.open(folder / "store.db")
    try:
        embedder = MadeEmbedder(questions, vectors)
        recall = Recall(store, folder / "index", embedder, None, RecallSettings(), None)
        try:
            recall.open()
            yield store, recall, questions
        finally:
            recall.close()
    finally:
        store.close()


def _put(store: Store, number: int, texts: Sequence[str], vectors: Floats, recall: Recall | None = None) -> int:
    """Store a document and have it indexed where there is a `recall`; its id."""
    ends = np.cumsum([len(text) + 1 for text in texts]).tolist()
    chunks = [
        NewChunk(text, "", None, None, end - len(text) - 1, end, len(text.split()))
        for text, end in zip(texts, ends, strict=True)
    ]
    name = f"{number}.txt"
    about = NewDocument(name, name, "", f"{number:064d}", "text/plain", ends[-1], None, "utf-8")
    stored, change = store.put(_COLLECTION, about, chunks, vectors.astype(np.float16), MadeEmbedder.fingerprint)
    if recall is not None:
        recall.apply(change)
    return stored.id


DOES: dict[type[Any], Callable[[Any], Any]] = {BuildWhole: build, SearchWhole: search, Live: live}
