"""A small backend that follows a script, for tests of the HTTP service alone."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Sequence
from typing import BinaryIO

import msgspec
import numpy as np
from msgspec.structs import replace

from appliance.answer.types import (
    Delta,
    Event,
    Finished,
    PromptReport,
    Question,
    Reason,
    Report,
    Source,
    Sources,
    TokenCounts,
)
from appliance.cache.tiers import Figures
from appliance.config import ServerSettings, Settings
from appliance.documents.ingest import Outcome
from appliance.engine.protocol import TokenLogprob
from appliance.errors import NotFound
from appliance.http.ports import ComponentState, ModelInfo
from appliance.inference.protocols import Embeddings, RerankScores
from appliance.retrieval.types import Passage, Scores, SearchRequest, SearchResult
from appliance.store.attributes import Attributes
from appliance.store.jobs import Job, JobConflict, JobState
from appliance.store.keys import ApiKey, CreatedKey, KeyTable, NewKey
from appliance.store.records import Chunking, Collection, Document, RecallTarget
from appliance.store.responses import ResponseStore

Step = str | float | Exception  # a piece of text, seconds of silence, a failure
LOGPROB = TokenLogprob(5, "牛".encode()[:2], -0.5, ((5, "牛".encode()[:2], -0.5), (6, b"a", float("-inf"))))
SOURCE = Source(1, "手册.pdf", "Manual", 7, "Safety › Locks", 42, 0.9, "the quote", 5)
PASSAGE = Passage(42, 3, "手册.pdf", "Manual", "text\nof it", "Safety", 7, 8, 0.9, Scores(lexical=3.5, dense=0.8))
DOCUMENT = Document(
    3,
    "default",
    "a/手册.pdf",
    "手册.pdf",
    "Manual",
    "ab" * 32,
    "application/pdf",
    9,
    12,
    None,
    4,
    "2026-01-02T03:04:05Z",
)


JOB = Job(
    id=5,
    collection="default",
    source="a/手册.pdf",
    name="手册.pdf",
    sha256="ab" * 32,
    size_bytes=9,
    patient=True,
    state="queued",
    ending="",
    reason="",
    retryable=False,
    attempts=0,
    retry_at=0.0,
    document_id=None,
    chunks=0,
    created_at="2026-01-02T03:04:05Z",
    updated_at="2026-01-02T03:04:05Z",
    attributes=None,
    chunking=None,
    started_at=None,
    revision=7,
)


def settings(**server: object) -> Settings:
    """Settings with these server settings."""
    return Settings(server=msgspec.convert(server, ServerSettings))


class ScriptedBackend:
    """Answers every question with `script`, each choice with the same, and keeps what it was asked."""

    def __init__(self, *script: Step, configured: Settings | None = None, key_table: KeyTable | None = None) -> None:
        self.settings = configured or Settings()
        self._key_table = key_table
        self.response_store: ResponseStore | None = None
        self.script: tuple[Step, ...] = script or ("Tighten it ", "to 12\r\n", "  牛米 [1].\n\n", "data: 🙂")
        self.asked: list[Question] = []
        self.searched: list[SearchRequest] = []
        self.ingested: list[tuple[str, str, str, bytes]] = []
        self.attributes: Attributes | None = None  # of the last document
        self.deleted: list[int | str] = []
        self.originals: dict[int, tuple[Document, bytes]] = {}
        self.opened: list[BinaryIO] = []
        self.scores = RerankScores((), (), ())
        self.embedded: list[tuple[tuple[str, ...], str]] = []
        self.reranked: list[tuple[str, tuple[str, ...], float | None]] = []
        self.outcome: Outcome | None = None
        self.failure: Exception | None = None
        self.components = {"store": ComponentState("ready"), "engine": ComponentState("ready", "restarts: 0")}
        self.begun = asyncio.Event()
        self.closed = asyncio.Event()  # an answer's generator ended, for whatever reason
        self.made = 0  # pieces of text

    async def ask(self, question: Question) -> AsyncGenerator[Event]:
        self.asked.append(question)
        try:
            self.begun.set()
            sources = (SOURCE,) if question.collection is not None else ()
            told = False
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    continue
                if sources and not told:
                    told = True
                    yield Sources(sources, (), {"recall_lexical": 0.5})
                for index in range(question.n):
                    self.made += 1
                    yield Delta(step, index, () if question.sampling.logprobs is None else (LOGPROB,))
            report = Report(
                request_id=question.request_id,
                cache="miss",
                degraded=(),
                sources=sources,
                grounded=bool(sources),
                prompt=PromptReport(kept={"tokens": 11}),
                timings_ms={"queue": 0.1, "total": 12.345},
                tokens=TokenCounts(prompt=11, cached=4, generated=5 * question.n),
            )
            further: list[Reason] = ["length"] * (question.n - 1)
            yield Finished("stop", report, tuple(further))
        finally:
            # Closing takes a moment in the real one too: it must not be interrupted.
            await asyncio.sleep(0)
            self.closed.set()

    async def search(self, request: SearchRequest) -> SearchResult:
        self._fail()
        self.searched.append(request)
        return SearchResult((PASSAGE,), {"recall_lexical": 0.5, "total": 1.0}, ("no reranker",))

    def dimensions(self) -> int:
        return 2

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    async def texts_of(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]

    async def embed(self, texts: Sequence[str], input_type: str) -> Embeddings:
        self.embedded.append((tuple(texts), input_type))
        return np.array([[0.6, 0.8]] * len(texts), np.float32)

    async def rerank(self, query: str, texts: Sequence[str], budget_ms: float | None) -> RerankScores:
        self._fail()
        self.reranked.append((query, tuple(texts), budget_ms))
        return self.scores

    async def set_recall(self, name: str, target: RecallTarget | None) -> Collection:
        self._fail()
        return Collection(name, 1, 4, 3, target)

    async def ingest(
        self, collection: str, source: str, name: str, data: bytes, attributes: Attributes | None = None
    ) -> Outcome:
        self._fail()
        self.attributes = attributes
        self.ingested.append((collection, source, name, data))
        return self.outcome or Outcome(source, "added", document=DOCUMENT, chunks=4)

    async def collections(self) -> Sequence[Collection]:
        self._fail()
        return [Collection("default", 1, 4, 2)]

    async def documents(self, collection: str | None) -> Sequence[Document]:
        self._fail()
        return [DOCUMENT] if collection in (None, "default") else []

    async def submit(
        self,
        collection: str,
        source: str,
        name: str,
        data: bytes,
        attributes: Attributes | None = None,
        chunking: Chunking | None = None,
    ) -> Job:
        self._fail()
        self.ingested.append((collection, source, name, data))
        return replace(JOB, attributes=attributes, chunking=chunking)

    async def jobs(
        self, states: Sequence[JobState], *, limit: int, before: int | None = None, since: int | None = None
    ) -> tuple[list[Job], dict[str, int], int]:
        found = [JOB] if JOB.state in states and (before or 99) > JOB.id and (since or 0) < JOB.revision else []
        return found[:limit], {"queued": 1}, JOB.revision

    async def job(self, job_id: int) -> Job:
        if job_id != JOB.id:
            raise NotFound(f"There is no job {job_id}.")
        return JOB

    async def cancel_job(self, job_id: int) -> Job:
        return replace(await self.job(job_id), state="cancelled")

    async def retry_job(self, job_id: int) -> Job:
        raise JobConflict(f"Job {job_id} did not fail (queued).")

    async def original(self, document_id: int) -> tuple[Document, BinaryIO]:
        if document_id not in self.originals:
            raise NotFound(f"There is no document {document_id}.")
        document, data = self.originals[document_id]
        file = io.BytesIO(data)
        self.opened.append(file)
        return document, file

    async def delete_document(self, document_id: int) -> None:
        self._fail()
        self.deleted.append(document_id)

    async def cache_figures(self) -> dict[str, Figures]:
        return {"answers": Figures(2, 300, 5, 4096, 7, 1, 4, 0)}

    async def clear_caches(self) -> None:
        self.deleted.append("caches")

    @property
    def key_table(self) -> KeyTable:
        assert self._key_table is not None, "this test has no keys"
        return self._key_table

    @property
    def responses(self) -> ResponseStore:
        assert self.response_store is not None, "this test stores no responses"
        return self.response_store

    async def create_key(self, wanted: NewKey) -> CreatedKey:
        return self.key_table.create(wanted)

    async def keys(self) -> Sequence[ApiKey]:
        return self.key_table.list()

    async def revoke_key(self, key_id: str) -> ApiKey:
        return self.key_table.revoke(key_id)

    async def delete_collection(self, name: str) -> None:
        self._fail()
        self.deleted.append(name)

    def health(self) -> dict[str, ComponentState]:
        return self.components

    def models(self) -> list[ModelInfo]:
        return [
            ModelInfo("smol", "generator", ("en",), 8192),
            ModelInfo("e5", "embedder", (), 512),
        ]

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure
