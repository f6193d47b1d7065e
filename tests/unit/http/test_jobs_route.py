"""The routes of jobs, over a scripted backend."""

from __future__ import annotations

import msgspec
import pytest
from litestar.testing import AsyncTestClient

from appliance.http.app import create_app
from appliance.store.records import Chunking
from tests.unit.http.backend import JOB, ScriptedBackend

SHOWN = msgspec.to_builtins(JOB)
DOCUMENTS = "/v1/collections/c/documents"


async def test_a_document_is_queued_and_its_job_is_named() -> None:
    backend = ScriptedBackend()
    async with AsyncTestClient(create_app(backend), base_url="http://127.0.0.1") as client:
        params: dict[str, str | int] = {
            "source": "a/手册.pdf",
            "attributes": '{"lang": "zh"}',
            "chunk_tokens": 100,
            "overlap_tokens": 10,
        }
        reply = await client.post(DOCUMENTS, params=params, content=b"bytes")
        assert (reply.status_code, reply.headers["Location"]) == (202, "/v1/jobs/5")
        assert backend.ingested == [("c", "a/手册.pdf", "手册.pdf", b"bytes")]
        chunking = msgspec.to_builtins(Chunking(100, 10))
        assert reply.json() == {**SHOWN, "attributes": {"lang": "zh"}, "chunking": chunking}
        assert (await client.get(reply.headers["Location"])).json() == SHOWN
        plain = await client.post(DOCUMENTS, params={"source": "b.txt"}, content=b"x")
        assert (plain.json()["attributes"], plain.json()["chunking"]) == (None, None)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({}, "source"),
        ({"source": " "}, "source"),
        ({"source": "a", "attributes": "[]"}, "attributes"),
        ({"source": "a", "chunk_tokens": 100}, "overlap_tokens"),
        ({"source": "a", "overlap_tokens": 10}, "chunk_tokens"),
        ({"source": "a", "chunk_tokens": 100, "overlap_tokens": 51}, "overlap_tokens"),
        ({"source": "a", "chunk_tokens": 5, "overlap_tokens": 1}, "chunk_tokens"),
    ],
)
async def test_what_is_wrong_with_an_upload_is_named(params: dict[str, str | int], param: str) -> None:
    backend = ScriptedBackend()
    async with AsyncTestClient(create_app(backend), base_url="http://127.0.0.1") as client:
        reply = await client.post(DOCUMENTS, params=params, content=b"x")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert backend.ingested == []


async def test_jobs_are_listed_by_state_page_and_revision() -> None:
    async with AsyncTestClient(create_app(ScriptedBackend()), base_url="http://127.0.0.1") as client:
        whole = {"jobs": [SHOWN], "counts": {"queued": 1}, "revision": 7}
        for query in ("", "?states=queued&states=failed", "?before=6", "?since=6", "?limit=1"):
            assert (await client.get(f"/v1/jobs{query}")).json() == whole
        for query in ("?states=failed", "?before=5", "?since=7"):
            assert (await client.get(f"/v1/jobs{query}")).json() == {**whole, "jobs": []}
        for query in ("?states=lost", "?before=1&since=1", "?limit=0", "?limit=1001", "?since=-1"):
            assert (await client.get(f"/v1/jobs{query}")).status_code == 400


async def test_a_job_is_cancelled_or_retried_or_the_reason_is_told() -> None:
    async with AsyncTestClient(create_app(ScriptedBackend()), base_url="http://127.0.0.1") as client:
        cancelled = await client.post("/v1/jobs/5/cancel")
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        retried = await client.post("/v1/jobs/5/retry")
        assert (retried.status_code, retried.json()["error"]["code"]) == (409, "job_state")
        assert (await client.get("/v1/jobs/6")).status_code == 404
        assert (await client.get("/v1/jobs/x")).status_code == 404
