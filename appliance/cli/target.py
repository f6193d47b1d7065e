"""Owns the choice a command makes: talk to the running service, or open the data directory itself.

Must not know what the command does then: both offer the same calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from appliance.answer.types import Event, Question
from appliance.config import Settings
from appliance.documents.ingest import Outcome
from appliance.http.address import answers, socket_path
from appliance.retrieval.types import SearchRequest, SearchResult
from appliance.store.records import Collection, Document


class Target(Protocol):
    """What commands ask for, of the service or of the data directory."""

    def ask(self, question: Question) -> AsyncGenerator[Event]:
        """The events of one answer."""

    async def search(self, request: SearchRequest) -> SearchResult:
        """Passages, best first."""

    async def ingest(self, collection: str, source: str, name: str, data: bytes) -> Outcome:
        """Add or replace one document."""

    async def collections(self) -> Sequence[Collection]:
        """All collections."""

    async def documents(self, collection: str | None) -> Sequence[Document]:
        """The documents of one collection or of all."""

    async def delete_document(self, document_id: int) -> None:
        """Delete a document."""

    async def delete_collection(self, name: str) -> None:
        """Delete a collection."""


@contextlib.asynccontextmanager
async def reach(settings: Settings, *, generates: bool) -> AsyncIterator[Target]:
    """The service that has the data directory open, else the data directory itself, for the block.

    Args:
        settings: names the data directory and the socket.
        generates: the command needs the generation engine.
    """
    path = socket_path(settings)
    if await asyncio.to_thread(answers, path):
        from appliance.cli.remote import RemoteTarget

        async with RemoteTarget(path) as remote:
            yield remote
        return
    # Heavy imports only here: a command that talks to a service starts quickly.
    from appliance.service import Appliance

    appliance = Appliance(settings)
    await asyncio.to_thread(appliance.open)
    try:
        if generates:
            await appliance.start_engine()
        yield appliance
    finally:
        await appliance.close()
