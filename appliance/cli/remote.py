"""Owns talking to the running service over its unix socket, in the calls that `Library` names.

Must not know how the service computes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import msgspec

from appliance.answer.types import Delta, Event, Finished, Question, Sources
from appliance.cache.tiers import Figures
from appliance.documents.ingest import Outcome
from appliance.errors import ApplianceError, Unavailable
from appliance.retrieval.types import Explained, Passage, SearchRequest, SearchResult
from appliance.store.attributes import Attributes
from appliance.store.jobs import Job, JobState
from appliance.store.keys import ApiKey, CreatedKey, NewKey
from appliance.store.records import Chunking, Collection, Document, RecallTarget
from appliance.store.rows import check_name

EVENTS: dict[str, type[Sources] | type[Delta]] = {"sources": Sources, "delta": Delta}
LOADING_POLL_S = 0.2
# A reply may wait behind others' work, and a stream is silent for a ping's interval at most.
TIMEOUT = httpx.Timeout(600.0, connect=5.0)


class RemoteError(ApplianceError):
    """What the service said; already a whole sentence with its remedy."""

    code = "service_error"


class RemoteTarget:
    """The running service. An async context manager."""

    def __init__(self, socket: Path) -> None:
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        key = os.environ.get("APPLIANCE_API_KEY")  # where `server.require_keys` asks for one on the socket too
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=TIMEOUT, headers=headers
        )

    async def __aenter__(self) -> Self:
        # A service that was started a moment ago: what was typed is worth waiting for.
        with _telling():
            while await self._is_loading():  # noqa: ASYNC110 - another process
                await asyncio.sleep(LOADING_POLL_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def _is_loading(self) -> bool:
        shown = _decoded(await self._client.get("/readyz"))
        return isinstance(shown, dict) and shown.get("status") == "loading"

    async def ask(self, question: Question) -> AsyncGenerator[Event]:
        """The events of one answer."""
        body = {
            "question": question.messages[-1].content,
            "collection": question.collection,
            "top_k": question.top_k,
            "max_tokens": question.max_tokens,
            "appliance": {"filters": msgspec.to_builtins(question.filters), "recall": question.recall},
        }
        headers = {"X-Request-Id": question.request_id}
        with _telling():
            async with self._client.stream("POST", "/v1/ask", json=body, headers=headers) as reply:
                if reply.is_error:
                    await reply.aread()
                    _raise(reply)
                async for name, data in _events(reply.aiter_lines()):
                    if name == "error":
                        _raise_error(msgspec.json.decode(data), HTTPStatus.SERVICE_UNAVAILABLE)
                    if name == "done":
                        shown = msgspec.json.decode(data)
                        yield msgspec.convert(
                            {"finish_reason": shown["finish_reason"], "report": shown["appliance"], "type": "Finished"},
                            Finished,
                        )
                    elif name in EVENTS:
                        yield msgspec.convert(
                            {**msgspec.json.decode(data), "type": EVENTS[name].__name__}, EVENTS[name]
                        )

    async def search(self, request: SearchRequest) -> SearchResult:
        """Passages, best first."""
        body = msgspec.to_builtins(request)
        del body["rerank_budget_ms"], body["label"]
        shown = await self._call("POST", "/v1/search", json=body)
        passages = tuple(
            msgspec.convert({**row, "chunk_id": row["chunk"], "page_first": row["page"]}, Passage)
            for row in shown["results"]
        )
        explained = msgspec.convert(shown["explained"], Explained | None)
        return SearchResult(passages, shown["timings_ms"], tuple(shown["degraded"]), explained=explained)

    async def ingest(
        self, collection: str, source: str, name: str, data: bytes, attributes: Attributes | None = None
    ) -> Outcome:
        """Add or replace one document."""
        params = {"source": source, "name": name}
        if attributes is not None:
            params["attributes"] = msgspec.json.encode(attributes).decode()
        with _telling():
            reply = await self._client.put(
                f"{_address(collection)}/documents",
                params=params,
                content=data,
            )
        shown = _decoded(reply)
        if "status" not in shown:
            _raise(reply)
        return msgspec.convert({key: value for key, value in shown.items() if key != "error"}, Outcome)

    async def submit(
        self,
        collection: str,
        source: str,
        name: str,
        data: bytes,
        attributes: Attributes | None = None,
        chunking: Chunking | None = None,
    ) -> Job:
        """Queue one document."""
        params: dict[str, str | int] = {"source": source, "name": name}
        if attributes is not None:
            params["attributes"] = msgspec.json.encode(attributes).decode()
        if chunking is not None:
            params |= msgspec.structs.asdict(chunking)
        shown = await self._call("POST", f"{_address(collection)}/documents", params=params, content=data)
        return msgspec.convert(shown, Job)

    async def jobs(
        self, states: Sequence[JobState], *, limit: int, before: int | None = None, since: int | None = None
    ) -> tuple[list[Job], dict[str, int], int]:
        """Jobs, how many there are by state, and the revision to ask with the next time."""
        params: dict[str, int | list[str]] = {"states": list(states), "limit": limit}
        params |= {name: value for name, value in (("before", before), ("since", since)) if value is not None}
        shown = await self._call("GET", "/v1/jobs", params=params)
        return msgspec.convert(shown["jobs"], list[Job]), shown["counts"], shown["revision"]

    async def job(self, job_id: int) -> Job:
        """One job."""
        return msgspec.convert(await self._call("GET", f"/v1/jobs/{job_id}"), Job)

    async def cancel_job(self, job_id: int) -> Job:
        """End a job."""
        return msgspec.convert(await self._call("POST", f"/v1/jobs/{job_id}/cancel"), Job)

    async def retry_job(self, job_id: int) -> Job:
        """Queue a failed job again."""
        return msgspec.convert(await self._call("POST", f"/v1/jobs/{job_id}/retry"), Job)

    async def set_recall(self, name: str, target: RecallTarget | None) -> Collection:
        """Set the recall target of a collection's searches."""
        return msgspec.convert(await self._call("PATCH", _address(name), json={"recall": target}), Collection)

    async def collections(self) -> Sequence[Collection]:
        """All collections."""
        shown = await self._call("GET", "/v1/collections")
        return msgspec.convert(shown["collections"], list[Collection])

    async def documents(self, collection: str | None) -> Sequence[Document]:
        """The documents of one collection or of all."""
        params = {"collection": collection} if collection is not None else {}
        shown = await self._call("GET", "/v1/documents", params=params)
        return msgspec.convert(shown["documents"], list[Document])

    async def delete_document(self, document_id: int) -> None:
        """Delete a document."""
        await self._call("DELETE", f"/v1/documents/{document_id}")

    async def delete_collection(self, name: str) -> None:
        """Delete a collection."""
        await self._call("DELETE", _address(name))

    async def cache_figures(self) -> Mapping[str, Figures]:
        """What the caches hold and did, by name."""
        shown = await self._call("GET", "/v1/cache")
        return msgspec.convert(shown["caches"], dict[str, Figures])

    async def clear_caches(self) -> None:
        """Delete all that is cached."""
        await self._call("DELETE", "/v1/cache")

    async def create_key(self, wanted: NewKey) -> CreatedKey:
        """Make an API key."""
        return msgspec.convert(await self._call("POST", "/v1/keys", json=msgspec.to_builtins(wanted)), CreatedKey)

    async def keys(self) -> Sequence[ApiKey]:
        """All API keys, the newest first."""
        return msgspec.convert((await self._call("GET", "/v1/keys"))["keys"], list[ApiKey])

    async def revoke_key(self, key_id: str) -> ApiKey:
        """End an API key for good."""
        return msgspec.convert(await self._call("DELETE", f"/v1/keys/{quote(key_id, safe='')}"), ApiKey)

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        with _telling():
            reply = await self._client.request(method, path, **options)
        if reply.is_error:
            _raise(reply)
        return _decoded(reply) if reply.content else None


def _address(collection: str) -> str:
    check_name(collection)
    return f"/v1/collections/{quote(collection, safe='')}"


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """A broken connection becomes an error that says so."""
    try:
        yield
    except httpx.HTTPError as error:
        raise Unavailable(
            f"The running service broke the connection off: {str(error) or type(error).__name__}."
        ) from error


async def _events(lines: AsyncIterator[str]) -> AsyncGenerator[tuple[str, str]]:
    name, data = "", ""
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data += line.removeprefix("data: ")
        elif not line and data:
            yield name, data
            name, data = "", ""


def _decoded(reply: httpx.Response) -> Any:
    try:
        return msgspec.json.decode(reply.content)
    except msgspec.DecodeError as error:
        raise Unavailable("What answers on the service's socket is not the service.") from error


def _raise(reply: httpx.Response) -> None:
    _raise_error(_decoded(reply), reply.status_code)


def _raise_error(shown: Any, status: int) -> None:
    error = RemoteError(shown["error"]["message"])
    error.code, error.status = shown["error"]["code"], status
    # Bad usage has the same exit code whether the service finds it or the command does.
    error.exit_code = 2 if error.code == "invalid_request" else 1
    raise error
