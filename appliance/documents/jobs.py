"""Owns the work on the queue of jobs: one thread reads and cuts, another embeds and stores; retries and their delays.

Must not know HTTP, terminals, or how the indexes use a document.

    submit ─▶ originals, then the row ─▶ [reader: take, prepare] ─▶ one waits ─▶ [embedder: embed, store] ─▶ waiters

The bytes are on disk before the row is, and the row ends in the transaction that stores the document: after a crash
every job is queued or ended, and what it needs is there.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from appliance.documents.ingest import Ingester, Outcome, Prepared
from appliance.documents.jobs_yield import Courtesy
from appliance.documents.originals import Originals
from appliance.errors import (
    ApplianceError,
    BadRequest,
    EmbedderChanged,
    NotFound,
    TooLarge,
    Unavailable,
    UnreadableDocument,
)
from appliance.store.attributes import Attributes
from appliance.store.db import Store
from appliance.store.jobs import STATES, Job, JobConflict, JobEnded, JobState
from appliance.store.records import Chunking, Document
from appliance.telemetry import Span, current, inside, span

log = logging.getLogger(__name__)

ATTEMPTS_MOST = 10  # then a job is left to people
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 300.0
_STUBBORN_S = 2.0  # between two tries to write down how a job ended, on a disk that is full
_FATAL = (UnreadableDocument, TooLarge, BadRequest, NotFound)  # the same bytes will fail again
T = TypeVar("T")


def delay_s(attempts: int) -> float:
    """How long to wait after the attempt of that number, from 1."""
    return float(min(FIRST_DELAY_S * 2 ** (attempts - 1), LONGEST_DELAY_S))


class JobRunner:
    """Works on the jobs of a store. Its calls may come from any thread."""

    def __init__(
        self,
        store: Store,
        originals: Originals,
        ingester: Ingester,
        courtesy: Courtesy,
        commit: Callable[[Callable[[], Outcome]], Outcome],
        *,
        keep_originals: bool,
    ) -> None:
        """`commit` runs what stores a document, alone among all writes, to its end.

        Args:
            keep_originals: of documents; those of jobs are kept until they end, in any case.
        """
        self._store = store
        self._jobs = store.jobs
        self._originals = originals
        self._ingester = ingester
        self._courtesy = courtesy
        self._commit = commit
        self._keep = keep_originals
        self._lock = threading.Lock()  # of the waiters and of which originals are there
        self._waiters: dict[int, Future[Outcome]] = {}
        self._asked: dict[int, Span | None] = {}  # of jobs that somebody waits for, the work within which they are
        self._embedded: dict[int, int] = {}
        self._settled = 0  # the revision up to which cancelled jobs were seen to
        self._due = threading.Event()
        self._stopping = threading.Event()
        self._read: queue.Queue[tuple[Job, Prepared, Span] | None] = queue.Queue(1)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Take up what an earlier process left, and work from now on; again: nothing."""
        with self._lock:
            if self._threads or self._stopping.is_set():
                return
            left = self._jobs.recover(ATTEMPTS_MOST)
            if left:
                log.info("%d jobs were under way when the service ended, and are done again", left)
            self._settled = self._jobs.revision()
            self._originals.keep_only(self._jobs.needed(documents=self._keep))
            self._threads = [
                threading.Thread(target=self._read_all, name="job reader"),
                threading.Thread(target=self._embed_all, name="job embedder"),
            ]
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        """End soon: what is under way is queued again. Who waits for a job gets `Unavailable`."""
        self._stopping.set()
        self._courtesy.hurry()
        self._ingester.give_up()
        self._due.set()
        for thread in self._threads:
            thread.join()
        with self._lock:
            waiters, self._waiters = self._waiters, {}
        for job_id, waiter in waiters.items():
            _refuse(waiter, Unavailable(f"The service is stopping; job {job_id} goes on when it runs again."))

    def submit(
        self,
        collection: str,
        source: str,
        name: str,
        data: bytes,
        attributes: Attributes | None = None,
        chunking: Chunking | None = None,
        *,
        waiter: Future[Outcome] | None = None,
    ) -> Job:
        """Queue a document; bytes and job are on disk when it returns.

        Args:
            collection: made when it does not exist.
            source: identity of the document in its collection.
            name: file name; its extension says how to read it.
            data: its bytes.
            attributes: replace those that the document had; None: they stay.
            chunking: None: as the settings say.
            waiter: is told what became of it, or any `ApplianceError`: at once what may pass, too, which is not
                tried again then.

        Raises:
            BadRequest: the collection's name or an attribute is not allowed.
            DiskFull, Unavailable: it was not queued.
        """
        if self._stopping.is_set():
            raise Unavailable("The service is stopping.")
        with self._lock:
            sha256 = self._originals.add(data)
            patient = waiter is None
            job = self._jobs.add(
                collection,
                source,
                name,
                sha256,
                len(data),
                patient=patient,
                attributes=attributes,
                chunking=chunking,
            )
            if waiter is not None:
                self._waiters[job.id] = waiter
                self._asked[job.id] = current()
        self._due.set()
        return job

    def ingest(
        self, collection: str, source: str, name: str, data: bytes, attributes: Attributes | None = None
    ) -> Future[Outcome]:
        """Queue a document for somebody who waits for the future. Raises what `submit` raises."""
        waiter: Future[Outcome] = Future()
        self.submit(collection, source, name, data, attributes, waiter=waiter)
        return waiter

    def job(self, job_id: int) -> Job:
        """One job, with how far it is. Raises `NotFound`."""
        return self._with_progress(self._jobs.get(job_id))

    def revision(self) -> int:
        """Of the last change of any job."""
        return self._jobs.revision()

    def list(
        self,
        states: Sequence[JobState] = STATES,
        *,
        limit: int = 100,
        before: int | None = None,
        since: int | None = None,
    ) -> list[Job]:
        """Jobs, the newest first, before that number; or those that changed `since` a revision, in that order."""
        if since is not None:
            found = self._jobs.since(since, states, limit=limit)
        else:
            found = self._jobs.list(states, limit=limit, before=before)
        return [self._with_progress(job) for job in found]

    def counts(self) -> Mapping[str, int]:
        """How many jobs are in each state."""
        return self._jobs.counts()

    def cancel(self, job_id: int) -> Job:
        """End a job; nothing of it is stored when this returns. Raises `NotFound`, `JobConflict`."""
        job = self._jobs.cancel(job_id)
        self.settle()
        return job

    def retry(self, job_id: int) -> Job:
        """Queue a failed job again. Raises `NotFound`, `JobConflict`."""
        with self._lock:
            known = self._jobs.get(job_id)
            if known.state == "failed" and known.retryable:
                self._originals.read(known.sha256)  # it would fail without
            job = self._jobs.retry(job_id)
        self._due.set()
        return job

    def settle(self, removed: Iterable[str] = ()) -> None:
        """Jobs were cancelled: tell who waits, delete their bytes.

        Args:
            removed: SHA-256 of documents that were deleted; their bytes are deleted too.
        """
        with self._lock:
            cancelled = self._jobs.since(self._settled, ["cancelled"])
            self._settled = cancelled[-1].revision if cancelled else self._settled
        for job in cancelled:
            self._cancelled(job)
        for sha256 in {*removed, *(job.sha256 for job in cancelled)}:
            self._drop(sha256)
        self._due.set()

    def _with_progress(self, job: Job) -> Job:
        return msgspec.structs.replace(job, embedded=self._embedded.get(job.id, 0))

    # -- the two threads ----------------------------------------------------------------------------------

    def _read_all(self) -> None:
        while not self._stopping.is_set():
            self._due.clear()
            try:
                job = self._jobs.take()
                wait_s = self._jobs.due_in() if job is None else None
            except ApplianceError as error:
                log.warning("the queue cannot be read: %s", error)
                self._stopping.wait(_STUBBORN_S)
                continue
            if job is None:
                self._due.wait(wait_s)
                continue
            self._courtesy.wait()
            whole = self._begin(job)
            with inside(whole):
                work = self._attempt(job, lambda job=job: self._prepare(job))  # type: ignore[misc]
            if work is not None:
                self._read.put((job, work, whole))
            else:
                whole.end()
        self._read.put(None)

    def _begin(self, job: Job) -> Span:
        """The span of an attempt; within the request of who waits for it, else a trace of its own."""
        with self._lock:
            asked = self._asked.pop(job.id, None)
        return span("ingest", job=job.id, attempt=job.attempts, status="put off").begin(asked)

    def _embed_all(self) -> None:
        while (item := self._read.get()) is not None:
            job, work, whole = item
            with inside(whole):
                self._attempt(job, lambda job=job, work=work: self._embed(job, work))  # type: ignore[misc]
            whole.end()
            self._embedded.pop(job.id, None)
            self._due.set()

    def _prepare(self, job: Job) -> Prepared | None:
        data = self._originals.read(job.sha256)
        work = self._ingester.prepare(job.collection, job.source, job.name, data, job.chunking)
        if isinstance(work, Document):
            known = work
            self._ended(job, self._commit(lambda: self._ingester.keep(known, job.attributes, job.id)))
            return None
        return work

    def _embed(self, job: Job, work: Prepared) -> None:
        self._jobs.embedding(job.id, len(work.chunks))

        def between(done: int) -> None:
            self._embedded[job.id] = done
            self._courtesy.wait()
            if not self._jobs.get(job.id).live:
                raise JobEnded

        vectors = self._ingester.embed(work, between)
        self._courtesy.wait()
        before = self._store.find(job.collection, job.source)
        outcome = self._commit(lambda: self._ingester.store(work, vectors, job.attributes, job.id))
        if before is not None:
            self._drop(before.sha256)
        self._ended(job, outcome)

    def _attempt(self, job: Job, step: Callable[[], T]) -> T | None:
        """Do a step of a job; a fault is written down, and nothing is returned."""
        try:
            return step()
        except JobEnded:
            self._drop(job.sha256)
            self._cancelled(self._jobs.get(job.id))
        except _FATAL as error:
            reason = error.text
            self._write_down(lambda: self._jobs.fail(job.id, reason, retryable=False))
            self._ended(job, Outcome(job.source, "failed", reason))
        except Exception as error:
            if not isinstance(error, ApplianceError | OSError):
                log.exception("job %d met a fault of the program", job.id)
            self._put_off(job, error)
        return None

    def _put_off(self, job: Job, error: Exception) -> None:
        """What may pass: to be tried again, unless somebody waits who is told, or it was tried too often."""
        reason = error.text if isinstance(error, ApplianceError) else f"{type(error).__name__}: {error}"
        if self._stopping.is_set():
            self._write_down(lambda: self._jobs.put_back(job.id))
            return
        if not job.patient:
            self._write_down(lambda: self._jobs.fail(job.id, reason, retryable=False))
        elif job.attempts >= ATTEMPTS_MOST or isinstance(error, EmbedderChanged):
            self._write_down(lambda: self._jobs.fail(job.id, reason, retryable=True))
        elif self._write_down(lambda: self._jobs.later(job.id, reason, delay_s(job.attempts))):
            log.info("job %d is tried again in %g s: %s", job.id, delay_s(job.attempts), reason)
            return
        self._drop(job.sha256)
        self._fault(job, error)

    def _write_down(self, change: Callable[[], None]) -> bool:
        """Write how an attempt ended, however long that takes; a stop leaves it to the next start.

        Not written where the job has ended already: its document was stored before the fault, or it was cancelled.
        """
        while True:
            try:
                change()
                return True
            except JobEnded:
                return False
            except ApplianceError as error:
                log.warning("how a job ended cannot be written: %s", error)
                if self._stopping.wait(_STUBBORN_S):
                    return True

    def _ended(self, job: Job, outcome: Outcome) -> None:
        if (whole := current()) is not None:
            size = outcome.document.size_bytes if outcome.document else 0
            whole.attributes |= {"status": outcome.status, "chunks": outcome.chunks, "size_bytes": size}
        self._drop(job.sha256)
        with self._lock:
            waiter = self._waiters.pop(job.id, None)
        if waiter is not None and waiter.set_running_or_notify_cancel():
            waiter.set_result(outcome)

    def _cancelled(self, job: Job) -> None:
        self._fault(job, JobConflict(f"Job {job.id} was cancelled.", remedy=job.reason))

    def _fault(self, job: Job, error: Exception) -> None:
        with self._lock:
            waiter = self._waiters.pop(job.id, None)
            self._asked.pop(job.id, None)
        if waiter is not None:
            _refuse(waiter, error)

    def _drop(self, sha256: str) -> None:
        """Delete bytes that nothing needs any more."""
        with self._lock:
            if not self._jobs.needs(sha256, documents=self._keep):
                self._originals.drop(sha256)


def _refuse(waiter: Future[Outcome], error: Exception) -> None:
    if waiter.set_running_or_notify_cancel():  # else it no longer waits
        waiter.set_exception(error)
