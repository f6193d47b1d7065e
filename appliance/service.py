"""Owns the composition root: builds every part once, starts and stops them, and offers what clients may do.

Must not be imported by any part; `cli/` alone starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Literal, ParamSpec, TypeVar

from msgspec.structs import replace

from appliance import __version__
from appliance.answer.hot import HotAnswers
from appliance.answer.layout import Layout
from appliance.answer.pilot import Pilot
from appliance.answer.pipeline import Answerer
from appliance.answer.types import Event, Question
from appliance.answer.versions import Versions
from appliance.cache.tiers import Cache, Figures
from appliance.config import Settings
from appliance.documents.ingest import Ingester, Outcome
from appliance.documents.jobs import JobRunner
from appliance.documents.jobs_yield import Courtesy
from appliance.documents.originals import Originals
from appliance.engine.client import EngineClient, EngineConfig
from appliance.errors import NotFound, NothingIngested, Unavailable
from appliance.http.ports import DEFAULT_COLLECTION, ComponentState, ModelInfo
from appliance.inference.embedder import OnnxEmbedder
from appliance.inference.protocols import Embeddings, RerankScores
from appliance.inference.remembered import RememberedQueries
from appliance.inference.reranker import OnnxReranker
from appliance.packs import PackStore, ResolvedPack, load_manifest
from appliance.packs.files import require_intact
from appliance.retrieval.dense.types import Sizes
from appliance.retrieval.remembered import RememberedRecall
from appliance.retrieval.search import Recall
from appliance.retrieval.types import SearchRequest, SearchResult
from appliance.store.attributes import Attributes
from appliance.store.db import STORE_FILE, Store
from appliance.store.jobs import LIVE, Job, JobState
from appliance.store.keys import ApiKey, CreatedKey, KeyTable, NewKey
from appliance.store.lock import DataDirLock
from appliance.store.records import Change, Chunking, Collection, Document, RecallTarget
from appliance.store.responses import RESPONSES_FILE, ResponseStore
from appliance.store.rows import same_name

P = ParamSpec("P")
T = TypeVar("T")


class Appliance:
    """All parts over one data directory, which it alone may write while it is open."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._closing = contextlib.ExitStack()
        # One document at a time: SQLite has one writer, the CPU few cores. Held by threads, not by tasks: a write
        # whose client was cut off goes on in its thread, and the store must not be closed under it.
        self._writing = threading.Lock()
        self._changes: set[asyncio.Task[object]] = set()
        self._courtesy = Courtesy()
        self._opened = self._loaded = False
        self._engine: EngineClient | None = None
        self._engine_started = False

    def claim(self) -> None:
        """Take the data directory and look the models up; the engine may be started then. Blocking.

        Raises:
            DataDirBusy: another process has the data directory.
            ModelMissing, ModelCorrupt: a file of the pack is not there, or of a wrong size.
        """
        with contextlib.ExitStack() as closing:
            closing.enter_context(DataDirLock(self.settings.data_path))
            self._pack = self._resolve_pack()
            spec = self._pack.generator
            self._engine = EngineClient(
                EngineConfig(
                    model_path=str(spec.path),
                    model_name=spec.name,
                    model_context_tokens=spec.context_tokens,
                    chat_template=spec.chat_template,
                    model_sha256=spec.sha256,
                    cache_dir=str(self.settings.data_path / "prefixes"),
                    device=self.settings.models.device,
                    settings=self.settings.engine,
                )
            )
            self._closing = closing.pop_all()

    def open(self) -> None:
        """Open the store and its indexes; `claim` comes first. Blocking.

        Models are verified and loaded at first need, or by `load_models`: listing and deleting need none.

        Raises:
            StoreDamaged: the store cannot be used.
        """
        assert self._engine is not None, "claim() comes first"  # noqa: S101
        data = self.settings.data_path
        with contextlib.ExitStack() as closing:
            self._store = closing.enter_context(contextlib.closing(Store.open(data / STORE_FILE)))
            self._responses = closing.enter_context(contextlib.closing(ResponseStore(data / RESPONSES_FILE)))
            models = self.settings.models
            self._embedder = OnnxEmbedder(self._pack.embedder, models)
            self._reranker = OnnxReranker(self._pack.reranker, models) if self._pack.reranker else None
            if self._reranker is not None:
                closing.callback(self._reranker.close)
            mix = self._pack.reranker.mix if self._pack.reranker else None
            self._recall = Recall(
                self._store,
                data / "index",
                RememberedQueries(self._embedder),
                self._reranker,
                self.settings.recall,
                mix,
            )
            self._recall.open()
            closing.callback(self._recall.close)
            # Passages are found again from the index in milliseconds after a restart; answers are not.
            self._caches = {"answers": self._cache(data / "cache" / "answers"), "passages": self._cache(None)}
            for cache in self._caches.values():
                closing.callback(cache.close)
            self._versions = Versions(
                [
                    self._store.identity(),
                    __version__,
                    *self._sums(),
                    self.settings.recall,
                    self.settings.answer,
                ],
                {collection.name: collection.generation for collection in self._store.collections()},
            )
            self._remembered = RememberedRecall(self._recall, self._caches["passages"], self._versions.of)
            self._hot = HotAnswers(
                self._answer,
                self._caches["answers"],
                self._versions.of,
                self.settings.cache,
                lambda: self._answerer.busy,
            )
            self._ingester = Ingester(
                self._store,
                self._embedder,
                self.settings.documents,
                self._apply,
                self._engine.oblivion.incur,
                self._recall.catch_up,
            )
            closing.callback(self._ingester.close)
            self._originals = Originals(data / "originals")
            self._jobs = JobRunner(
                self._store,
                self._originals,
                self._ingester,
                self._courtesy,
                self._commit,
                keep_originals=self.settings.documents.originals == "keep",
            )
            spec = self._pack.generator
            # An engine that reuses nothing gains nothing by a layout that depends on what was asked before.
            layout = Layout(by_use=not self.settings.engine.deterministic)
            cores = len(os.sched_getaffinity(0))
            self._pilot = Pilot(2 * cores, self.settings.answer.max_waiting, self.settings.recall.rerank_budget_ms)
            self._answerer = Answerer(
                self._remembered,
                self._engine,
                spec.languages,
                self.settings.answer,
                quotes=spec.quotes,
                layout=layout,
                pilot=self._pilot,
            )
            self._closing.push(closing.pop_all())
            self._opened = True

    def _cache(self, folder: Path | None) -> Cache:
        settings = self.settings.cache
        return Cache(
            folder,
            memory_bytes=settings.memory_bytes,
            disk_bytes=settings.disk_bytes,
            keep_s=settings.keep_s,
            wait_s=settings.disk_wait_ms / 1000,
        )

    def load_models(self) -> None:
        """Verify and load the encoders now, side by side, and open the caches in the background. Blocking.

        Raises:
            ModelMissing, ModelCorrupt, BadSetting: one cannot be used.
        """
        for cache in self._caches.values():
            cache.warm_up()
        with ThreadPoolExecutor(2, thread_name_prefix="load") as pool:
            loads = [pool.submit(model.load) for model in (self._embedder, self._reranker) if model]
        for load in loads:
            load.result()
        self._loaded = True

    def _resolve_pack(self) -> ResolvedPack:
        packs = PackStore(self.settings.models_path, load_manifest())
        return packs.resolve(self.settings.models.pack or packs.active())

    def _sums(self) -> list[str]:
        """Checksums of all that makes an answer."""
        embedder, reranker = self._pack.embedder, self._pack.reranker
        sums = [self._pack.generator.sha256, embedder.sha256, embedder.tokenizer_sha256]
        return sums + ([reranker.sha256, reranker.tokenizer_sha256] if reranker else [])

    async def start_engine(self) -> None:
        """Start the generation engine; it becomes ready in the background, watched.

        Raises:
            ModelMissing, ModelCorrupt: its file is not the one that the manifest names.
        """
        spec = self._pack.generator
        await asyncio.to_thread(require_intact, spec.path, spec.sha256)
        assert self._engine is not None, "claim() comes first"  # noqa: S101
        self._engine_started = True
        await self._engine.start(wait=False)

    async def start_jobs(self) -> None:
        """Take up what an earlier process left in the queue, and work on it from now on; again: nothing."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._jobs.start)

    async def close(self) -> None:
        """Stop the engine, close the indexes and the store, release the data directory."""
        if self._opened:
            await self._hot.close()
            await asyncio.to_thread(self._jobs.stop)  # what is under way is queued again
        if self._engine is not None and self._engine_started:
            await self._engine.stop(grace_s=2.0)
        await asyncio.gather(*self._changes, return_exceptions=True)  # their callers are told, not this one
        await asyncio.to_thread(self._let_go)

    # What clients may do. Blocking parts run in threads; their libraries release the interpreter lock.

    def ask(self, question: Question) -> AsyncGenerator[Event]:
        """Answer a question; see `Answerer.ask`."""
        if question.collection is not None:  # what is kept of answers goes by the name that changes are told by
            question = replace(question, collection=same_name(question.collection))
        return self._hot.ask(question)

    async def _answer(self, question: Question) -> AsyncGenerator[Event]:
        if question.collection is not None:
            await asyncio.to_thread(self._require_documents, question.collection)
        with self._courtesy.question():
            async with contextlib.aclosing(self._answerer.ask(question)) as events:
                async for event in events:
                    yield event

    def _apply(self, change: Change) -> None:
        """Make a committed change known to all that was made from the documents before.

        In this order: what is kept under the new version must be of the new documents.
        """
        try:
            self._recall.apply(change)
        finally:  # where an index cannot follow now, what was made before is out of date all the same
            self._versions.changed(change.collection, change.generation)
            for cache in self._caches.values():
                cache.forget(change.collection)

    async def search(self, request: SearchRequest) -> SearchResult:
        """Passages, best first. Raises `NotFound` for a missing collection."""
        request = replace(request, collection=same_name(request.collection))
        await asyncio.to_thread(self._require_documents, request.collection)
        with self._courtesy.question():
            return await asyncio.to_thread(self._remembered.search, request)

    def dimensions(self) -> int:
        """Length of the embedder's vectors."""
        return self._embedder.dim

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """The embedder's tokens of each text."""
        return await asyncio.to_thread(self._embedder.count_tokens, texts)

    async def texts_of(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of rows of the embedder's token ids. Raises `BadRequest` for an id that it does not have."""
        return await asyncio.to_thread(self._embedder.texts_of, rows)

    async def embed(self, texts: Sequence[str], input_type: Literal["query", "passage"]) -> Embeddings:
        """Unit vectors `(n, dim)` float32."""
        embed = self._embedder.embed_queries if input_type == "query" else self._embedder.embed_passages
        return await asyncio.to_thread(embed, texts)

    async def rerank(self, query: str, texts: Sequence[str], budget_ms: float | None) -> RerankScores:
        """Score texts for a query, in the order given. Raises `NotFound` where the pack has no reranker."""
        if self._reranker is None:
            raise NotFound("The model pack in use has no reranker.")
        return await asyncio.to_thread(self._reranker.score, query, texts, budget_ms=budget_ms)

    def _require_documents(self, collection: str) -> None:
        remedy = f"Put documents in: appliance ingest PATH --collection {collection}"
        if collection == DEFAULT_COLLECTION:
            remedy = "Put documents in: appliance ingest PATH"
        try:
            found = self._recall.collection(collection)
        except NotFound:
            if collection != DEFAULT_COLLECTION or self._store.collections():
                raise
            raise NothingIngested("There are no documents yet.", remedy=remedy) from None
        if found.documents == 0:
            raise NothingIngested(f"There are no documents in collection {collection!r}.", remedy=remedy)

    async def ingest(
        self, collection: str, source: str, name: str, data: bytes, attributes: Attributes | None = None
    ) -> Outcome:
        """Add or replace one document; on disk and searchable when it returns. `attributes` None: as they were."""
        await self.start_jobs()
        queued = await asyncio.to_thread(self._jobs.ingest, collection, source, name, data, attributes)
        return await asyncio.wrap_future(queued)

    async def submit(
        self,
        collection: str,
        source: str,
        name: str,
        data: bytes,
        attributes: Attributes | None = None,
        chunking: Chunking | None = None,
    ) -> Job:
        """Queue one document; it is on disk when this returns, and done whatever happens."""
        await self.start_jobs()
        return await asyncio.to_thread(self._jobs.submit, collection, source, name, data, attributes, chunking)

    async def jobs(
        self, states: Sequence[JobState], *, limit: int, before: int | None = None, since: int | None = None
    ) -> tuple[list[Job], dict[str, int], int]:
        """Jobs, how many there are by state, and the revision of what is told; see `Library`."""

        def look() -> tuple[list[Job], dict[str, int], int]:
            revision = self._jobs.revision()
            found = self._jobs.list(states, limit=limit, before=before, since=since)
            if since is not None and len(found) == limit:
                revision = found[-1].revision  # there may be more
            return found, dict(self._jobs.counts()), revision

        return await asyncio.to_thread(look)

    async def job(self, job_id: int) -> Job:
        """One job. Raises `NotFound`."""
        return await asyncio.to_thread(self._jobs.job, job_id)

    async def cancel_job(self, job_id: int) -> Job:
        """End a job. Raises `NotFound`, `JobConflict`."""
        return await asyncio.to_thread(self._jobs.cancel, job_id)

    async def retry_job(self, job_id: int) -> Job:
        """Queue a failed job again. Raises `NotFound`, `JobConflict`."""
        return await asyncio.to_thread(self._jobs.retry, job_id)

    async def set_recall(self, name: str, target: RecallTarget | None) -> Collection:
        """Set the recall target of searches in a collection that name none."""

        def change() -> Collection:
            self._apply(self._store.set_recall(name, target))
            return self._store.collection(name)

        return await self._change(change)

    async def collections(self) -> Sequence[Collection]:
        """All collections, by name."""
        return await asyncio.to_thread(self._store.collections)

    async def documents(self, collection: str | None) -> Sequence[Document]:
        """The documents of one collection or of all."""
        return await asyncio.to_thread(self._store.documents, collection)

    async def original(self, document_id: int) -> tuple[Document, BinaryIO]:
        """A document with the file that it was read from, checked; whoever asks closes it."""

        def opened() -> tuple[Document, BinaryIO]:
            document = self._store.document(document_id)
            return document, self._originals.open(document.sha256)

        return await asyncio.to_thread(opened)

    async def delete_document(self, document_id: int) -> None:
        """Delete a document; gone from the store, every index and every kept prompt when it returns."""

        def delete() -> None:
            removed = self._store.document(document_id).sha256  # what is not there is not removed
            self._forget_soon()
            change = self._store.delete([document_id])
            try:
                self._apply(change)
            finally:
                self._jobs.settle([removed])

        await self._change(delete)

    async def delete_collection(self, name: str) -> None:
        """Delete a collection with its documents; gone as one document is."""

        def delete() -> None:
            removed = [document.sha256 for document in self._store.documents(name)]
            self._forget_soon()
            change = self._store.delete_collection(name)
            try:
                self._apply(change)
            finally:
                self._jobs.settle(removed)

        await self._change(delete)

    async def cache_figures(self) -> Mapping[str, Figures]:
        """What the caches hold and did since the start, by name."""
        return {name: await asyncio.to_thread(cache.figures) for name, cache in self._caches.items()}

    async def clear_caches(self) -> None:
        """Delete all that is cached."""
        for cache in self._caches.values():
            await asyncio.to_thread(cache.clear)

    @property
    def key_table(self) -> KeyTable:
        """The API keys. Raises `Unavailable` while the store is not open."""
        if not self._opened:
            raise Unavailable("The service is loading.")
        return self._store.keys

    @property
    def responses(self) -> ResponseStore:
        """The stored responses."""
        return self._responses

    async def create_key(self, wanted: NewKey) -> CreatedKey:
        """Make an API key. Raises `KeyExists`, `BadRequest`."""
        return await asyncio.to_thread(self._store.keys.create, wanted)

    async def keys(self) -> Sequence[ApiKey]:
        """All API keys, the newest first."""
        return self._store.keys.list()

    async def revoke_key(self, key_id: str) -> ApiKey:
        """End an API key for good. Raises `NotFound`."""
        return await asyncio.to_thread(self._store.keys.revoke, key_id)

    def _forget_soon(self) -> None:
        assert self._engine is not None, "claim() comes first"  # noqa: S101
        self._engine.oblivion.incur()

    async def _change(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Write, and have what that removed forgotten; to its end, also when nobody waits for it any more."""

        async def change() -> T:
            assert self._engine is not None, "claim() comes first"  # noqa: S101
            try:
                return await asyncio.to_thread(lambda: self._write(work, *args, **kwargs))
            finally:
                await self._engine.forget()

        task = asyncio.create_task(change())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    def _commit(self, work: Callable[[], T]) -> T:
        """`_change` for the thread of the jobs."""
        assert self._engine is not None, "claim() comes first"  # noqa: S101
        try:
            return self._write(work)
        finally:
            asyncio.run_coroutine_threadsafe(self._engine.forget(), self._loop).result()

    def _write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        assert self._engine is not None, "claim() comes first"  # noqa: S101
        with self._writing:
            try:
                with self._recall.changing():
                    return work(*args, **kwargs)
            finally:
                self._engine.oblivion.commit()

    def _let_go(self) -> None:
        with self._writing:  # not before the last write has ended
            self._closing.close()

    # What is shown of the parts; for any thread, once it is `opened`.

    @property
    def opened(self) -> bool:
        """Whether the store and its indexes are open."""
        return self._opened

    @property
    def engine(self) -> EngineClient | None:
        """The generation engine, once the data directory is claimed."""
        return self._engine

    @property
    def waiting(self) -> tuple[int, float]:
        """How many questions wait for recall, and for how many seconds the first of them has."""
        return self._pilot.waiting

    def documents_waiting(self) -> int:
        """Documents that are queued or under way. Blocking."""
        counts = self._jobs.counts()
        return sum(counts.get(state, 0) for state in LIVE)

    def stored(self) -> Sequence[Collection]:
        """All collections. Blocking."""
        return self._store.collections()

    def vectors(self) -> Sizes:
        """How many vectors lie where."""
        return self._recall.sizes()

    def caches(self) -> Mapping[str, Figures]:
        """See `cache_figures`. Blocking."""
        return {name: cache.figures() for name, cache in self._caches.items()}

    def health(self) -> dict[str, ComponentState]:
        """The state of each part; may be asked at any time."""
        store = ComponentState(state="ready" if self._opened else "loading")
        recall = ComponentState(state="ready" if self._loaded else "loading")
        if self._loaded and (behind := self._recall.behind):
            recall = ComponentState(state="degraded", detail=behind)
        return {"store": store, "recall": recall, "engine": self._engine_health()}

    def pulse(self) -> object | None:
        """The engine's last sign of life, another object each time; None while it is down or starts."""
        engine = self._engine
        return (engine.heartbeat or engine.ready) if engine is not None and engine.state == "ready" else None

    def _engine_health(self) -> ComponentState:
        if self._engine is None or not self._engine_started:
            return ComponentState(state="loading", detail="not started")
        state = self._engine.state
        if state == "ready" and self._engine.degraded:
            return ComponentState(state="degraded", detail=self._engine.degraded)
        if state == "ready":
            return ComponentState(state="ready", detail=f"restarts: {self._engine.restarts}")
        if state in ("starting", "restarting"):
            return ComponentState(state="loading", detail=state)
        return ComponentState(state="failed", detail=state)

    def models(self) -> list[ModelInfo]:
        """The models of the pack in use, the generator first."""
        pack = self._pack
        generator, embedder, reranker = pack.generator, pack.embedder, pack.reranker
        found = [
            ModelInfo(
                id=generator.name,
                role="generator",
                languages=generator.languages,
                context_tokens=generator.context_tokens,
            ),
            ModelInfo(
                id=embedder.name,
                role="embedder",
                languages=embedder.languages,
                context_tokens=embedder.max_tokens,
            ),
        ]
        if reranker is not None:
            found.append(
                ModelInfo(
                    id=reranker.name,
                    role="reranker",
                    languages=reranker.languages,
                    context_tokens=reranker.max_tokens,
                )
            )
        return found
