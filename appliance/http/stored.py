"""Owns the routes of collections and documents.

Must not know how documents are read or stored.
"""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import Any

import msgspec
from litestar import Controller, Request, Response, delete, get, patch, post, put
from litestar.params import FromPath, FromQuery

from appliance.errors import BadRequest, UnreadableDocument
from appliance.http import body
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.problems import problem_of
from appliance.http.schema import json_body, raw_body
from appliance.store.attributes import Attributes, check_attributes
from appliance.store.jobs import Job
from appliance.store.records import Chunking, Collection, Document
from appliance.store.rows import check_recall

# Each holds a whole file in memory; more uploads wait for their turn.
UPLOADS_AT_ONCE = 2
LEAST_CHUNK_TOKENS, MOST_CHUNK_TOKENS = 32, 4096


class CollectionList(msgspec.Struct, frozen=True):
    """All collections, by name."""

    collections: list[Collection]


class DocumentList(msgspec.Struct, frozen=True):
    """Documents, by collection and source."""

    documents: list[Document]


class CollectionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a collection may be changed."""

    recall: Any  # 0.9, 0.95, 0.99, "exact" or null


class StoredController(Controller):
    """Collections and documents."""

    tags = ("documents",)

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self._turns = asyncio.Semaphore(UPLOADS_AT_ONCE)

    @put("/v1/collections/{collection_name:str}/documents", status_code=200, operation_class=raw_body())
    async def upload(
        self,
        request: Request[Any, Any, Any],
        collection_name: FromPath[str],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
        source: FromQuery[str],
        name: FromQuery[str | None] = None,
        attributes: FromQuery[str | None] = None,
    ) -> Response[Any]:
        """Add or replace one document: the body is the file, `source` its identity, `name` its file name.

        `attributes`: a JSON object; those that the document had are replaced.
        """
        file_name = _file_name(source, name)
        wanted = _attributes(attributes)
        async with self._turns:
            limit = backend.settings.documents.max_file_bytes
            data = await body.read(request, limit, lifecycle, what="file")
            outcome = await backend.ingest(collection_name, source, file_name, data, wanted)
        shown = msgspec.to_builtins(outcome)
        if outcome.status != "failed":
            return Response(shown)
        problem = problem_of(UnreadableDocument(outcome.reason))
        return Response({**shown, **problem.as_object()}, status_code=problem.status)

    @post("/v1/collections/{collection_name:str}/documents", status_code=202, operation_class=raw_body())
    async def submit(
        self,
        request: Request[Any, Any, Any],
        collection_name: FromPath[str],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
        source: FromQuery[str],
        name: FromQuery[str | None] = None,
        attributes: FromQuery[str | None] = None,
        chunk_tokens: FromQuery[int | None] = None,
        overlap_tokens: FromQuery[int | None] = None,
    ) -> Response[Job]:
        """Queue one document: the body is the file, `source` its identity, `name` its file name.

        It is on disk when this returns; `Location` names the job. What may pass is tried again, also after a restart.
        """
        file_name = _file_name(source, name)
        wanted = _attributes(attributes)
        chunking = _chunking(chunk_tokens, overlap_tokens)
        async with self._turns:
            limit = backend.settings.documents.max_file_bytes
            data = await body.read(request, limit, lifecycle, what="file")
            job = await backend.submit(collection_name, source, file_name, data, wanted, chunking)
        return Response(job, headers={"Location": f"/v1/jobs/{job.id}"})

    @get("/v1/collections")
    async def collections(self, backend: GivenBackend) -> CollectionList:
        """All collections."""
        return CollectionList(list(await backend.collections()))

    @patch("/v1/collections/{collection_name:str}", operation_class=json_body(CollectionChange))
    async def change_collection(
        self,
        request: Request[Any, Any, Any],
        collection_name: FromPath[str],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Collection:
        """Set the recall target of a collection's searches; null: the program's default."""
        data = await body.read(request, backend.settings.server.max_body_bytes, lifecycle, what="request")
        asked = body.decode(data, CollectionChange)
        return await backend.set_recall(collection_name, None if asked.recall is None else check_recall(asked.recall))

    @delete("/v1/collections/{collection_name:str}")
    async def delete_collection(self, collection_name: FromPath[str], backend: GivenBackend) -> None:
        """Delete a collection with its documents."""
        await backend.delete_collection(collection_name)

    @get("/v1/documents")
    async def documents(self, backend: GivenBackend, collection: FromQuery[str | None] = None) -> DocumentList:
        """The documents of one collection, or of all."""
        return DocumentList(list(await backend.documents(collection)))

    @delete("/v1/documents/{document_id:int}")
    async def delete_document(self, document_id: FromPath[int], backend: GivenBackend) -> None:
        """Delete a document."""
        await backend.delete_document(document_id)


def _file_name(source: str, name: str | None) -> str:
    """The file name of an upload, by its parameters. Raises `BadRequest`."""
    found = PurePosixPath(name or source).name
    if not source.strip() or not found.strip():
        raise BadRequest("source is empty.", remedy="Give the file's path or name as ?source=…", param="source")
    return found


def _attributes(given: str | None) -> Attributes | None:
    """The attributes of an upload, by its parameter. Raises `BadRequest`."""
    if given is None:
        return None
    try:
        return check_attributes(msgspec.json.decode(given))
    except msgspec.DecodeError as error:
        raise BadRequest(f"attributes is no JSON: {error}.", param="attributes") from error
    except RecursionError as error:
        raise BadRequest("attributes is nested too deeply.", param="attributes") from error


def _chunking(chunk_tokens: int | None, overlap_tokens: int | None) -> Chunking | None:
    if chunk_tokens is None and overlap_tokens is None:
        return None
    if chunk_tokens is None or overlap_tokens is None:
        missing = "chunk_tokens" if chunk_tokens is None else "overlap_tokens"
        raise BadRequest("chunk_tokens and overlap_tokens are given together.", param=missing)
    if not LEAST_CHUNK_TOKENS <= chunk_tokens <= MOST_CHUNK_TOKENS:
        limits = f"{LEAST_CHUNK_TOKENS} to {MOST_CHUNK_TOKENS}"
        raise BadRequest(f"chunk_tokens is {chunk_tokens}; {limits} are allowed.", param="chunk_tokens")
    if not 0 <= 2 * overlap_tokens <= chunk_tokens:
        raise BadRequest("overlap_tokens must be 0 to half of chunk_tokens.", param="overlap_tokens")
    return Chunking(chunk_tokens, overlap_tokens)
