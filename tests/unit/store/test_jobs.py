"""The table of jobs: its states, its order, and that a job's end and its document are one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.errors import BadRequest, NotFound
from appliance.store.db import Store
from appliance.store.jobs import ENDED_KEPT, Job, JobConflict, JobEnded
from appliance.store.records import NewChunk, NewDocument

SHA = "ab" * 32


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store.open(tmp_path / "store.db")) as opened:
        yield opened


def add(store: Store, source: str = "a", collection: str = "c", sha256: str = SHA) -> Job:
    return store.jobs.add(collection, source, source, sha256, 5, patient=True)


def put(store: Store, source: str, job: int | None = None, collection: str = "c") -> int:
    document = NewDocument(source, source, "", SHA, "text/plain", 5, None, None)
    chunks = [NewChunk(source, "", None, None, 0, 1, 1)]
    return store.put(collection, document, chunks, np.ones((1, 4), np.float16), "e", job=job)[0].id


def test_a_document_and_the_end_of_its_job_are_one_change(store: Store) -> None:
    job = add(store)
    assert (job.state, job.attempts, job.live) == ("queued", 0, True)
    taken = store.jobs.take()
    assert taken is not None and (taken.id, taken.state, taken.attempts) == (job.id, "parsing", 1)
    store.jobs.embedding(job.id, 1)
    document = put(store, "a", job.id)
    ended = store.jobs.get(job.id)
    assert (ended.state, ended.ending, ended.document_id, ended.chunks) == ("indexed", "added", document, 1)
    with pytest.raises(JobEnded):
        put(store, "a", job.id)
    assert store.documents() == [store.document(document)]
    assert store.generation() == 1


def test_a_cancelled_job_stores_nothing(store: Store) -> None:
    document = put(store, "b", collection="other")
    before = store.generation()
    job = add(store)
    store.jobs.take()
    assert store.jobs.cancel(job.id).state == "cancelled"
    for late in (
        lambda: put(store, "a", job.id),
        lambda: store.jobs.embedding(job.id, 1),
        lambda: store.jobs.later(job.id, "x", 1),
        lambda: store.jobs.fail(job.id, "x", retryable=True),
        lambda: store.keep(document, {"a": 1}, job.id),
    ):
        with pytest.raises(JobEnded):
            late()
    assert store.generation() == before
    with pytest.raises(JobConflict):
        store.jobs.cancel(job.id)


def test_deleting_a_document_or_a_collection_cancels_what_would_bring_it_back(store: Store) -> None:
    document = put(store, "a")
    put(store, "b")
    mine, other, elsewhere = add(store), add(store, "b"), add(store, "a", "other")
    store.delete([document])
    assert store.jobs.get(mine.id).state == "cancelled"
    assert store.jobs.get(other.id).live
    store.delete_collection("c")
    assert not store.jobs.get(other.id).live
    assert store.jobs.get(elsewhere.id).live


def test_jobs_of_one_source_keep_their_order_and_others_pass(store: Store) -> None:
    first, second, other = add(store), add(store), add(store, "b")
    assert store.jobs.take() == store.jobs.get(first.id)
    store.jobs.later(first.id, "The disk is full.", 60.0)
    taken = store.jobs.take()
    assert taken is not None and taken.id == other.id
    assert store.jobs.take() is None  # the second waits for the first
    waits = store.jobs.due_in()
    assert waits is not None and 50 < waits < 61  # the second is no reason to look: it cannot be taken
    store.jobs.cancel(first.id)
    taken = store.jobs.take()
    assert taken is not None and taken.id == second.id


def test_a_job_that_came_due_after_the_last_look_is_looked_for_at_once(store: Store) -> None:
    assert store.jobs.due_in() is None
    job = add(store)
    assert store.jobs.due_in() == 0.0
    store.jobs.take()
    assert store.jobs.due_in() is None
    store.jobs.later(job.id, "The disk is full.", -0.001)  # between a look that found nothing and the question
    assert store.jobs.due_in() == 0.0


def test_a_clock_that_was_set_back_delays_no_job_for_long(store: Store) -> None:
    job = add(store)
    store.jobs.take()
    store.jobs.later(job.id, "x", 1e6)
    assert store.jobs.take() is not None


def test_what_a_dead_process_worked_on_is_queued_again_but_not_for_ever(store: Store) -> None:
    job, other = add(store), add(store, "b")
    for attempt in range(3):
        assert store.jobs.take() is not None
        store.jobs.embedding(job.id, 7)
        assert store.jobs.recover(3) == (attempt < 2)
    failed = store.jobs.get(job.id)
    assert (failed.state, failed.retryable, failed.attempts) == ("failed", True, 3)
    assert store.jobs.get(other.id).state == "queued"
    assert store.jobs.retry(job.id).attempts == 0
    with pytest.raises(JobConflict):
        store.jobs.retry(job.id)


def test_a_failure_that_would_come_again_is_not_retried(store: Store) -> None:
    job = add(store)
    store.jobs.take()
    store.jobs.fail(job.id, "It is empty.", retryable=False)
    with pytest.raises(JobConflict, match="It is empty"):
        store.jobs.retry(job.id)
    assert store.jobs.get(job.id).reason == "It is empty."


def test_what_is_needed_of_bytes(store: Store) -> None:
    live, failed, stored = add(store, sha256="1"), add(store, "b", sha256="2"), add(store, "c", sha256=SHA)
    put(store, "c", stored.id)
    store.jobs.fail(failed.id, "x", retryable=True)
    assert store.jobs.needed(documents=True) == {"1", "2", SHA}
    assert store.jobs.needed(documents=False) == {"1", "2"}
    store.jobs.cancel(live.id)
    assert not store.jobs.needs("1", documents=True)
    assert store.jobs.needs(SHA, documents=True) and not store.jobs.needs(SHA, documents=False)


def test_lists_and_counts(store: Store) -> None:
    jobs = [add(store, str(i)) for i in range(5)]
    store.jobs.cancel(jobs[1].id)
    assert [job.id for job in store.jobs.list(limit=2)] == [jobs[4].id, jobs[3].id]
    assert [job.id for job in store.jobs.list(["cancelled"])] == [jobs[1].id]
    assert [job.id for job in store.jobs.list(before=jobs[1].id)] == [jobs[0].id]
    assert store.jobs.counts()["queued"] == 4
    assert store.jobs.counts()["cancelled"] == 1
    for number in (0, -1, 99, 2**70):
        with pytest.raises(NotFound):
            store.jobs.get(number)
    with pytest.raises(BadRequest):
        add(store, collection="a/b")


def test_only_the_newest_that_ended_are_kept(store: Store) -> None:
    waiting = add(store, "w")
    with store._connections.writing() as writer:
        writer.executemany(
            """INSERT INTO jobs (collection, source, name, sha256, size_bytes, patient, state, created_at, updated_at)
            VALUES ('c', ?, 'n', '', 0, 1, 'indexed', '', '')""",
            [(str(i),) for i in range(ENDED_KEPT + 50)],
        )
    store.jobs.cancel(add(store).id)
    store.jobs.fail(waiting.id, "x", retryable=False)
    assert sum(store.jobs.counts().values()) <= ENDED_KEPT + 1


class Queue(RuleBasedStateMachine):
    """Against a list: what was acknowledged is done once, in the order of its source."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store.open(Path(self.folder.name) / "s.db")
        self.live: dict[int, str] = {}
        self.taken: set[int] = set()
        self.applied: list[int] = []

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(source=st.sampled_from("ab"))
    def add(self, source: str) -> None:
        self.live[add(self.store, source).id] = source

    @rule()
    def take(self) -> None:
        sources = {self.live[i] for i in self.taken}
        heads = [min(i for i, s in self.live.items() if s == source) for source in {*self.live.values()} - sources]
        job = self.store.jobs.take()
        assert (job.id if job else None) == min(heads, default=None)
        if job:
            self.taken.add(job.id)

    @rule()
    def crash(self) -> None:
        assert self.store.jobs.recover(10**6) == len(self.taken)
        self.taken.clear()

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.taken:
            job = data.draw(st.sampled_from(sorted(self.taken)))
            put(self.store, self.live.pop(job), job)
            self.taken.discard(job)
            self.applied.append(job)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.live:
            job = data.draw(st.sampled_from(sorted(self.live)))
            self.store.jobs.cancel(job)
            del self.live[job]
            self.taken.discard(job)

    @invariant()
    def agrees(self) -> None:
        assert {job.id for job in self.store.jobs.list(("queued", "parsing", "embedding"))} == set(self.live)
        assert self.store.generation() == len(self.applied)


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
