"""Jobs from their bytes to their document: with the real store, parse worker and chunker, and vectors of a hash."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from appliance.config import DocumentSettings
from appliance.documents import jobs as jobs_module
from appliance.documents.ingest import Ingester, Outcome, next_batch
from appliance.documents.jobs import ATTEMPTS_MOST, LONGEST_DELAY_S, JobRunner, delay_s
from appliance.documents.jobs_yield import Courtesy
from appliance.documents.originals import Originals
from appliance.errors import BadRequest, DiskFull, NotFound, Unavailable
from appliance.inference.protocols import Embeddings
from appliance.store.db import Store
from appliance.store.jobs import Job, JobConflict
from appliance.store.records import Change, Chunking
from tests.integration.test_documents import HashEmbedder

PATIENCE_S = 30.0


class Embedder(HashEmbedder):
    """Waits before each batch until it may, and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.may.set()
        self.began = threading.Event()
        self.faults: list[Exception] = []

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        self.began.set()
        assert self.may.wait(PATIENCE_S)
        if self.faults:
            raise self.faults.pop()
        return super().embed_passages(texts)


class Bench:
    """A runner over a folder, as the service builds it."""

    def __init__(self, folder: Path, *, keep: bool = True) -> None:
        self.store = Store.open(folder / "store.db")
        self.originals = Originals(folder / "originals")
        self.embedder = Embedder()
        self.courtesy = Courtesy(patience_s=0.05)
        self.changes: list[Change] = []
        self.index_fault: Exception | None = None
        self.ingester = Ingester(
            self.store, self.embedder, DocumentSettings(), self.on_change, catch_up=self.raise_index_fault
        )
        self.runner = JobRunner(
            self.store, self.originals, self.ingester, self.courtesy, lambda work: work(), keep_originals=keep
        )

    def on_change(self, change: Change) -> None:
        self.raise_index_fault()
        self.changes.append(change)

    def raise_index_fault(self) -> None:
        if self.index_fault is not None:
            raise self.index_fault

    def close(self) -> None:
        self.embedder.may.set()
        self.runner.stop()
        self.ingester.close()
        self.store.close()

    def ended(self, job: Job) -> Job:
        return self.until(job, lambda now: not now.live)

    def until(self, job: Job, wanted: Callable[[Job], bool]) -> Job:
        give_up = time.monotonic() + PATIENCE_S
        while not wanted(now := self.runner.job(job.id)):
            assert time.monotonic() < give_up, now
            time.sleep(0.01)
        return now

    def until_files(self, wanted: set[str]) -> None:
        """Bytes go a moment after the job has ended."""
        give_up = time.monotonic() + PATIENCE_S
        while self.files() != wanted:
            assert time.monotonic() < give_up, self.files()
            time.sleep(0.01)

    def submit(self, source: str = "a.txt", text: str = "One thing.", collection: str = "c") -> Job:
        return self.runner.submit(collection, source, source, text.encode())

    def files(self) -> set[str]:
        return {path.name for path in self.originals._folder.glob("??/*")}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def result(waiter: Future[Outcome]) -> Outcome:
    return waiter.result(PATIENCE_S)


def test_a_job_ends_with_its_document_and_its_original(bench: Bench) -> None:
    bench.runner.start()
    job = bench.ended(bench.submit())
    assert (job.state, job.ending, job.attempts) == ("indexed", "added", 1)
    assert job.document_id is not None
    document = bench.store.document(job.document_id)
    assert bench.originals.read(document.sha256) == b"One thing."
    again = bench.ended(bench.submit())
    assert (again.state, again.ending, again.document_id) == ("indexed", "unchanged", document.id)
    replaced = bench.ended(bench.submit(text="Another thing."))
    assert (replaced.ending, replaced.document_id) == ("replaced", document.id)
    bench.until_files({replaced.sha256})
    assert [change.generation for change in bench.changes] == [1, 2]


def test_where_originals_are_not_kept_the_bytes_of_a_job_go_with_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep=False)
    try:
        job = bench.submit()
        assert bench.files() == {job.sha256}
        bench.runner.start()
        assert bench.ended(job).state == "indexed"
        bench.until_files(set())
    finally:
        bench.close()


def test_who_waits_is_told_what_became_of_it(bench: Bench) -> None:
    bench.runner.start()
    added = result(bench.runner.ingest("c", "a.txt", "a.txt", b"One thing."))
    assert added.status == "added" and added.document is not None
    failed = result(bench.runner.ingest("c", "b.txt", "b.txt", bytes(range(256)) * 20))
    assert failed.status == "failed" and failed.reason
    bench.embedder.faults = [DiskFull("The disk is full.")]
    with pytest.raises(DiskFull):
        result(bench.runner.ingest("c", "c.txt", "c.txt", b"Third."))
    states = [job.state for job in bench.runner.list()]
    assert states == ["failed", "failed", "indexed"]
    assert bench.files() == {added.document.sha256}


def test_what_may_pass_is_tried_again_and_at_last_left_to_people(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(jobs_module, "LONGEST_DELAY_S", 0.01)
    bench.embedder.faults = [DiskFull("The disk is full."), ValueError("a fault of the program")]
    bench.runner.start()
    job = bench.ended(bench.submit())
    assert (job.state, job.attempts) == ("indexed", 3)
    bench.embedder.faults = [Unavailable("The index cannot be written.")] * ATTEMPTS_MOST
    dead = bench.ended(bench.submit("b.txt", "Second."))
    assert (dead.state, dead.attempts, dead.retryable) == ("failed", ATTEMPTS_MOST, True)
    assert "index cannot be written" in dead.reason
    assert bench.ended(bench.runner.retry(dead.id)).state == "indexed"


def test_delays_grow_to_a_limit() -> None:
    delays = [delay_s(attempt) for attempt in range(1, 50)]
    assert delays[0] == 1.0 and delays == sorted(delays) and delays[-1] == LONGEST_DELAY_S


def test_a_job_that_would_fail_again_ends_at_once(bench: Bench) -> None:
    bench.runner.start()
    job = bench.ended(bench.submit("broken.pdf", "%PDF-1.7 nothing"))
    assert (job.state, job.attempts, job.retryable) == ("failed", 1, False)
    assert bench.store.documents() == []
    with pytest.raises(JobConflict):
        bench.runner.retry(job.id)


def test_a_cancelled_job_leaves_nothing(bench: Bench) -> None:
    bench.embedder.may.clear()
    bench.runner.start()
    waiter = bench.runner.ingest("c", "a.txt", "a.txt", b"One thing.")
    assert bench.embedder.began.wait(PATIENCE_S)
    (job,) = bench.runner.list()
    assert bench.runner.cancel(job.id).state == "cancelled"
    bench.embedder.may.set()
    with pytest.raises(JobConflict):
        result(waiter)
    assert bench.store.collections() == []
    assert bench.files() == set()
    assert bench.ended(bench.submit()).state == "indexed"


def test_a_delete_beats_the_replacement_that_was_queued_before_it(bench: Bench) -> None:
    bench.runner.start()
    first = bench.ended(bench.submit())
    assert first.document_id is not None
    bench.embedder.may.clear()
    bench.embedder.began.clear()
    job = bench.submit(text="Another thing.")
    assert bench.embedder.began.wait(PATIENCE_S)
    bench.store.delete([first.document_id])
    bench.embedder.may.set()
    assert bench.ended(job).state == "cancelled"
    later = bench.ended(bench.submit("b.txt"))
    assert later.state == "indexed"
    assert [document.source for document in bench.store.documents()] == ["b.txt"]


def test_reading_goes_on_while_another_is_embedded(bench: Bench) -> None:
    bench.embedder.may.clear()
    bench.runner.start()
    first, second = bench.submit(), bench.submit("b.txt")
    bench.until(first, lambda job: job.state == "embedding")
    bench.until(second, lambda job: job.state == "parsing")
    bench.embedder.may.set()
    assert bench.ended(second).state == "indexed"


def test_a_queued_job_that_a_delete_cancels_is_told_to_who_waits(bench: Bench) -> None:
    waiter = bench.runner.ingest("c", "a.txt", "a.txt", b"One thing.")
    bench.ingester.ingest_bytes("c", "a.txt", "a.txt", b"Another.")
    bench.store.delete_collection("c")
    bench.runner.settle()
    with pytest.raises(JobConflict):
        result(waiter)
    assert bench.files() == set()


def test_who_left_is_not_told(bench: Bench) -> None:
    waiter = bench.runner.ingest("c", "a.txt", "a.txt", b"One thing.")
    assert waiter.cancel()
    bench.runner.start()
    (job,) = bench.runner.list()
    assert bench.ended(job).state == "indexed"
    assert bench.ended(bench.submit("b.txt")).state == "indexed"


def test_a_stop_puts_back_what_is_under_way_and_a_start_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.embedder.may.clear()
    bench.runner.start()
    long = "A sentence that fills a chunk or two of it. " * 500
    waiter = bench.runner.ingest("c", "a.txt", "a.txt", long.encode())
    jobs = [*bench.runner.list(), *(bench.submit(f"{i}.txt", f"Thing {i}.") for i in range(5))]
    assert bench.embedder.began.wait(PATIENCE_S)
    stopping = threading.Thread(target=bench.runner.stop)
    stopping.start()
    time.sleep(0.05)
    bench.embedder.may.set()
    stopping.join()
    with pytest.raises(Unavailable):
        result(waiter)
    assert bench.store.documents() == []
    assert all(job.state == "queued" and job.attempts == 0 for job in bench.store.jobs.list())
    bench.close()
    with pytest.raises(Unavailable):
        bench.submit()

    bench = Bench(tmp_path)
    try:
        bench.runner.start()
        assert {bench.ended(job).ending for job in jobs} == {"added"}
        assert len(bench.store.documents()) == 6
    finally:
        bench.close()


def test_a_start_removes_what_no_job_and_no_document_needs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    kept = bench.submit()
    stray = bench.originals.add(b"of a job that was never written")
    (tmp_path / "originals" / stray[:2] / "new-abc").write_bytes(b"half")
    bench.runner.start()
    assert bench.ended(kept).state == "indexed"
    bench.until_files({kept.sha256})
    assert bench.originals.check({kept.sha256}) == []
    (tmp_path / "originals" / kept.sha256[:2] / kept.sha256).write_bytes(b"damaged")
    assert len(bench.originals.check({kept.sha256})) == 1
    with pytest.raises(NotFound):
        bench.originals.read(kept.sha256)
    bench.close()


def test_ingestion_waits_for_questions_but_not_for_ever() -> None:
    courtesy = Courtesy(patience_s=30.0)
    passed = threading.Event()

    def step() -> None:
        courtesy.wait()
        passed.set()

    with courtesy.question(), courtesy.question():
        worker = threading.Thread(target=step)
        worker.start()
        assert not passed.wait(0.1)
    assert passed.wait(PATIENCE_S)
    worker.join()
    with courtesy.question():
        Courtesy(patience_s=0.01).wait()  # nobody asks this one
        impatient = Courtesy(patience_s=0.01)
        with impatient.question():
            impatient.wait()
        courtesy.hurry()
        courtesy.wait()


def test_batches_follow_the_speed_of_the_machine() -> None:
    assert next_batch(4, 4.0, 4) == 1
    assert next_batch(4, 0.25, 4) == 4
    assert next_batch(4, 0.001, 4) == 8  # not at once: a short batch says little
    assert next_batch(64, 0.0, 64) == 64


def test_attributes_and_cuts_come_with_the_document_in_one_change(bench: Bench) -> None:
    text = " ".join(f"Sentence number {number} of a text that is cut." for number in range(60))
    bench.runner.start()
    job = bench.ended(bench.runner.submit("c", "a.txt", "a.txt", text.encode(), {"lang": "en"}, Chunking(64, 0)))
    assert job.document_id is not None and job.started_at is not None
    document = bench.store.document(job.document_id)
    assert (document.attributes, document.chunking) == ({"lang": "en"}, Chunking(64, 0))
    assert [change.generation for change in bench.changes] == [1]
    again = bench.ended(bench.runner.submit("c", "a.txt", "a.txt", text.encode(), {"lang": "de"}, Chunking(64, 0)))
    assert (again.ending, bench.store.document(document.id).attributes) == ("unchanged", {"lang": "de"})
    assert (bench.changes[-1].added, bench.changes[-1].removed) == ((), ())
    same = bench.ended(bench.runner.submit("c", "a.txt", "a.txt", text.encode(), None, Chunking(64, 0)))
    assert (same.ending, bench.store.document(document.id).attributes) == ("unchanged", {"lang": "de"})
    assert len(bench.changes) == 2
    coarser = bench.ended(bench.submit(text=text))
    assert coarser.ending == "replaced" and coarser.chunks < document.chunks
    assert bench.store.document(document.id).attributes == {"lang": "de"}
    with pytest.raises(BadRequest):
        bench.runner.submit("c", "b.txt", "b.txt", b"B", {"": 1})


@pytest.mark.parametrize("waits", [True, False])
def test_a_document_whose_indexing_failed_is_said_to_be_unchanged_only_when_it_is_indexed(
    bench: Bench, waits: bool
) -> None:
    bench.runner.start()
    bench.index_fault = DiskFull("The disk is full: the search index cannot be written.")
    if waits:
        with pytest.raises(DiskFull):
            result(bench.runner.ingest("c", "a.txt", "a.txt", b"One thing."))
    else:
        assert bench.ended(bench.submit()).state == "indexed"  # the store has it; the index follows on its own
    assert len(bench.store.documents()) == 1
    with pytest.raises(DiskFull):
        result(bench.runner.ingest("c", "a.txt", "a.txt", b"One thing."))
    bench.index_fault = None
    assert result(bench.runner.ingest("c", "a.txt", "a.txt", b"One thing.")).status == "unchanged"
    bench.until_files({bench.store.documents()[0].sha256})


def test_a_delete_looks_at_its_own_originals_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.runner.start()
    first, twin = bench.ended(bench.submit()), bench.ended(bench.submit("twin.txt"))
    bench.embedder.may.clear()
    queued = bench.submit(text="Another thing.")
    monkeypatch.setattr(Originals, "keep_only", lambda *_: pytest.fail("all originals were listed"))
    for job, left in ((first, {twin.sha256}), (twin, set())):
        assert job.document_id is not None
        bench.store.delete([job.document_id])
        bench.runner.settle([job.sha256])
        assert bench.files() - {queued.sha256} == left
    bench.embedder.may.set()
    bench.until_files(set())
