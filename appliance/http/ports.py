"""Owns what the HTTP service needs of the rest of the program.

Must not know who implements it; `service.py` hands it in.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import BinaryIO, Literal, Protocol

import msgspec

from appliance.answer.types import Event, Question
from appliance.cache.tiers import Figures
from appliance.config import Settings
from appliance.documents.ingest import Outcome
from appliance.inference.protocols import Embeddings, RerankScores
from appliance.retrieval.types import SearchRequest, SearchResult
from appliance.store.attributes import Attributes
from appliance.store.jobs import Job, JobState
from appliance.store.keys import ApiKey, CreatedKey, KeyTable, NewKey
from appliance.store.records import Chunking, Collection, Document, RecallTarget
from appliance.store.responses import ResponseStore

State = Literal["ready", "loading", "degraded", "failed"]
DEFAULT_COLLECTION = "default"


class ComponentState(msgspec.Struct, frozen=True):
    """Whether a component can do its work; `degraded`: it can, but not fully."""

    state: State
    detail: str = ""


class ModelInfo(msgspec.Struct, frozen=True):
    """A model of the pack in use."""

    id: str
    role: Literal["generator", "embedder", "reranker"]
    languages: tuple[str, ...]  # ISO 639-1; empty: any
    context_tokens: int


class Library(Protocol):
    """What may be done with the documents. Every method may raise an `ApplianceError`."""

    def ask(self, question: Question) -> AsyncGenerator[Event]:
        """`Sources` (only with a collection), `Delta`…, `Finished`; closing it early cancels the work."""

    async def search(self, request: SearchRequest) -> SearchResult:
        """Passages, best first."""

    async def ingest(
        self, collection: str, source: str, name: str, data: bytes, attributes: Attributes | None = None
    ) -> Outcome:
        """Add or replace one document; a file that cannot be read is an outcome, not an error.

        `attributes` replace those it had; None leaves them.
        """

    async def submit(
        self,
        collection: str,
        source: str,
        name: str,
        data: bytes,
        attributes: Attributes | None = None,
        chunking: Chunking | None = None,
    ) -> Job:
        """Queue one document for who does not wait; `chunking` None: as the settings say."""

    async def jobs(
        self, states: Sequence[JobState], *, limit: int, before: int | None = None, since: int | None = None
    ) -> tuple[list[Job], dict[str, int], int]:
        """Jobs in one of these states, how many there are in each, and the revision to ask with the next time.

        The newest first, before the one numbered `before`; with `since` those that changed after that revision, in
        the order of their changes.
        """

    async def job(self, job_id: int) -> Job:
        """One job."""

    async def cancel_job(self, job_id: int) -> Job:
        """End a job that has not ended."""

    async def retry_job(self, job_id: int) -> Job:
        """Queue a failed job again."""

    async def set_recall(self, name: str, target: RecallTarget | None) -> Collection:
        """Set the recall target of a collection's searches; None: the program's default."""

    async def collections(self) -> Sequence[Collection]:
        """All collections."""

    async def documents(self, collection: str | None) -> Sequence[Document]:
        """The documents of one collection or of all."""

    async def delete_document(self, document_id: int) -> None:
        """Delete a document."""

    async def delete_collection(self, name: str) -> None:
        """Delete a collection with its documents."""

    async def cache_figures(self) -> Mapping[str, Figures]:
        """What the caches hold and did, by name."""

    async def clear_caches(self) -> None:
        """Delete all that is cached."""

    async def create_key(self, wanted: NewKey) -> CreatedKey:
        """Make an API key."""

    async def keys(self) -> Sequence[ApiKey]:
        """All API keys, the newest first."""

    async def revoke_key(self, key_id: str) -> ApiKey:
        """End an API key for good."""


class Backend(Library, Protocol):
    """What clients may ask for."""

    @property
    def settings(self) -> Settings:
        """The settings that the program was started with."""

    @property
    def key_table(self) -> KeyTable:
        """The API keys; only when it is open."""

    async def original(self, document_id: int) -> tuple[Document, BinaryIO]:
        """A document with the file that it was read from, checked; whoever asks closes it."""

    @property
    def responses(self) -> ResponseStore:
        """The stored responses; only when it is open. Its methods block."""

    def dimensions(self) -> int:
        """Length of the embedder's vectors."""

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """The embedder's tokens of each text."""

    async def texts_of(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of rows of the embedder's token ids. Raises `BadRequest` for an id that it does not have."""

    async def embed(self, texts: Sequence[str], input_type: Literal["query", "passage"]) -> Embeddings:
        """Unit vectors `(n, dim)` float32."""

    async def rerank(self, query: str, texts: Sequence[str], budget_ms: float | None) -> RerankScores:
        """Score texts for a query, in the order given; only where `models` has a reranker."""

    def health(self) -> dict[str, ComponentState]:
        """The state of each component."""

    def models(self) -> list[ModelInfo]:
        """The models in use, the generator first."""
