"""Every route's shapes, through the whole application in process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

from appliance import telemetry
from appliance.answer.types import Message, Question
from appliance.config import DocumentSettings, ServerSettings, Settings
from appliance.documents.ingest import Outcome
from appliance.errors import BadRequest, DiskFull, EngineDied, NotFound, NothingIngested, Overloaded
from appliance.http.app import Application, create_app
from appliance.http.ports import ComponentState
from appliance.retrieval.types import SearchRequest
from appliance.store.attributes import Comparison
from appliance.telemetry import Span
from appliance.telemetry.whole import Options, Telemetry
from tests.unit.http.backend import PASSAGE, ScriptedBackend
from tests.unit.http.test_sse import parse

SMALL = Settings(server=ServerSettings(max_body_bytes=2000), documents=DocumentSettings(max_file_bytes=100))
TEXT = "Tighten it to 12\r\n  牛米 [1].\n\ndata: 🙂"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}

Client = AsyncTestClient[Application]


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend(configured=SMALL)


@pytest.fixture
async def client(backend: ScriptedBackend) -> AsyncIterator[Client]:
    async with AsyncTestClient(create_app(backend), base_url="http://127.0.0.1", raise_server_exceptions=True) as made:
        yield made


def failure(reply: httpx.Response) -> dict[str, Any]:
    """The error object, which must have OpenAI's four fields and nothing else."""
    assert reply.headers["content-type"] == "application/json"
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert error["message"]
    return error


async def test_health(client: Client, backend: ScriptedBackend) -> None:
    assert (await client.get("/healthz")).json() == {"status": "alive"}
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert ready.json()["components"]["engine"] == {"state": "ready", "detail": "restarts: 0"}
    backend.components["engine"] = ComponentState("loading", "starting")
    loading = await client.get("/readyz")
    assert (loading.status_code, loading.json()["status"]) == (503, "not_ready")
    assert loading.headers["retry-after"] == "1"
    backend.components["engine"] = ComponentState("degraded")
    assert (await client.get("/readyz")).status_code == 200


async def test_while_loading_only_health_is_answered(backend: ScriptedBackend) -> None:
    app = create_app(backend, loading=True)
    async with AsyncTestClient(app, base_url="http://127.0.0.1") as client:
        assert (await client.get("/healthz")).status_code == 200
        loading = await client.get("/readyz")
        assert (loading.status_code, loading.json()["status"]) == (503, "loading")
        for refused in (
            await client.post("/v1/ask", json={"question": "x"}),
            await client.get("/v1/models"),
            await client.put("/v1/collections/c/documents?source=a", content=b"x"),
        ):
            assert (refused.status_code, failure(refused)["code"]) == (503, "unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        assert not backend.asked and not backend.ingested
        app.lifecycle.loaded()
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.post("/v1/ask", json={"question": "x", "stream": False})).status_code == 200


async def test_while_stopping_only_health_is_answered(client: Client) -> None:
    client.app.lifecycle.stopping = True
    assert (await client.get("/readyz")).json()["status"] == "stopping"
    assert (await client.get("/healthz")).status_code == 200
    refused = await client.post("/v1/ask", json={"question": "x"})
    assert (refused.status_code, failure(refused)["code"]) == (503, "unavailable")
    assert int(refused.headers["retry-after"]) >= 1


async def test_models(client: Client) -> None:
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["smol", "e5"]
    assert listed["data"][0]["appliance"] == {"role": "generator", "languages": ["en"], "context_tokens": 8192}


async def test_ask_streams_sources_deltas_done(client: Client, backend: ScriptedBackend) -> None:
    reply = await client.post("/v1/ask", json={"question": "how tight?"}, headers={"X-Request-Id": "mine.1"})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-accel-buffering"] == "no"
    events = [(name, json.loads(data)) for name, data in parse(reply.content)]
    assert [name for name, _ in events] == ["sources", "delta", "delta", "delta", "delta", "done"]
    assert events[0][1]["sources"][0]["page"] == 7
    assert "".join(data["text"] for name, data in events if name == "delta") == TEXT
    assert events[-1][1]["finish_reason"] == "stop"
    assert events[-1][1]["appliance"]["request_id"] == "mine.1"
    assert backend.asked == [
        Question(messages=(Message("user", "how tight?"),), collection="default", request_id="mine.1")
    ]


async def test_ask_as_one_json(client: Client, backend: ScriptedBackend) -> None:
    body = {"question": "x", "collection": "b", "stream": False, "top_k": 2, "max_tokens": 9}
    reply = await client.post("/v1/ask", json={**body, "appliance": {"priority": "batch", "effort": "fast"}})
    assert reply.json()["answer"] == TEXT
    assert reply.json()["appliance"]["sources"][0]["document"] == "手册.pdf"
    assert reply.headers["server-timing"] == "queue;dur=0.10, total;dur=12.35"
    made = backend.asked[0]
    assert (made.collection, made.top_k, made.max_tokens, made.priority, made.effort) == ("b", 2, 9, "batch", "fast")


async def test_curl_without_a_content_type(client: Client) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    reply = await client.post("/v1/ask", content=b'{"question": "x", "stream": false}', headers=form)
    assert reply.status_code == 200


async def test_two_different_collections_in_one_question(client: Client) -> None:
    body = {"question": "x", "collection": "a", "appliance": {"collection": "b"}}
    assert failure(await client.post("/v1/ask", json=body))["param"] == "collection"


async def test_streamed_chat_equals_unstreamed(client: Client) -> None:
    grounded = {**CHAT, "appliance": {"collection": "default"}}
    whole = (await client.post("/v1/chat/completions", json=grounded)).json()
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"content": TEXT, "role": "assistant", "refusal": None}
    assert whole["usage"]["total_tokens"] == 16
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    reply = await client.post("/v1/chat/completions", json={**grounded, **options})
    *chunks, done = [data for _, data in parse(reply.content)]
    assert done == "[DONE]"
    made = [json.loads(chunk) for chunk in chunks]
    assert made[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in made[:-1]) == TEXT
    assert made[-2]["choices"][0]["finish_reason"] == "stop"
    assert (made[-1]["choices"], made[-1]["usage"]) == ([], whole["usage"])
    assert made[-1]["appliance"]["sources"] == whole["appliance"]["sources"]
    assert all(chunk["usage"] is None for chunk in made[:-1])
    assert len({(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in made}) == 1


async def test_a_chat_stream_without_usage_has_the_report_in_its_last_chunk(client: Client) -> None:
    reply = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    *_, last, done = [data for _, data in parse(reply.content)]
    assert done == "[DONE]"
    assert json.loads(last)["choices"][0] == {"delta": {}, "finish_reason": "stop", "index": 0, "logprobs": None}
    assert json.loads(last)["appliance"]["cache"] == "miss"
    assert "usage" not in json.loads(last)


async def test_several_choices_streamed_and_not(client: Client) -> None:
    whole = (await client.post("/v1/chat/completions", json={**CHAT, "n": 3})).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in whole["choices"]] == [TEXT] * 3
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "length", "length"]
    assert whole["usage"]["completion_tokens"] == 15
    reply = await client.post("/v1/chat/completions", json={**CHAT, "n": 3, "stream": True})
    *chunks, done = [data for _, data in parse(reply.content)]
    assert done == "[DONE]"
    made = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert "appliance" in json.loads(chunks[-1])
    for index in range(3):
        of = [choice for choice in made if choice["index"] == index]
        assert of[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in of) == TEXT
        assert [choice["finish_reason"] for choice in of if choice["finish_reason"]] == ["length" if index else "stop"]
    text = [choice["index"] for choice in made if choice["delta"].get("content")]
    assert text != sorted(text), "the choices come in between one another"


async def test_logprobs_have_openais_shape_streamed_and_not(client: Client, backend: ScriptedBackend) -> None:
    fields = {**CHAT, "logprobs": True, "top_logprobs": 2}
    whole = (await client.post("/v1/chat/completions", json=fields)).json()["choices"][0]["logprobs"]
    part = {"token": "\ufffd", "bytes": [0xE7, 0x89], "logprob": -0.5}
    never = {"token": "a", "bytes": [97], "logprob": -9999.0}
    entry = {**part, "top_logprobs": [part, never]}
    assert whole == {"content": [entry] * len(backend.script), "refusal": None}
    reply = await client.post("/v1/chat/completions", json={**fields, "stream": True})
    made = [json.loads(data)["choices"][0]["logprobs"] for _, data in parse(reply.content)[:-1]]
    assert [entry for found in made if found for entry in found["content"]] == whole["content"]
    backend.script = (0.0,)
    empty = (await client.post("/v1/chat/completions", json=fields)).json()["choices"][0]["logprobs"]
    assert empty == {"content": [], "refusal": None}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "patternProperties is not supported", "response_format"),
        ({"appliance": {"constraint": {"kind": "regex", "pattern": "("}}}, "No regex.", "appliance.constraint"),
        ({"response_format": {"type": "json_object"}}, "logit_bias names token 9", "logit_bias"),
        ({}, "Something else.", None),
    ],
)
async def test_what_the_engine_refuses_names_the_field(
    stream: bool, fields: dict[str, Any], message: str, param: str | None
) -> None:
    app = create_app(ScriptedBackend(BadRequest(message)))
    async with AsyncTestClient(app, base_url="http://127.0.0.1") as client:
        reply = await client.post("/v1/chat/completions", json={**CHAT, **fields, "stream": stream})
    assert (reply.status_code, failure(reply)["param"]) == (400, param)
    assert message in failure(reply)["message"]


async def test_a_question_to_documents_takes_no_constraint(client: Client) -> None:
    own = {"constraint": {"kind": "choice", "choices": ["yes", "no"]}}
    reply = await client.post("/v1/ask", json={"question": "x", "appliance": own})
    assert (reply.status_code, failure(reply)["param"]) == (400, "appliance.constraint")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/ask", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NothingIngested("nothing"), 409, "no_documents"),
        (NotFound("gone"), 404, "not_found"),
        (Overloaded("full", retry_after_s=2.5), 429, "overloaded"),
        (ZeroDivisionError("secret detail"), 500, "internal_error"),
    ],
)
async def test_a_failure_before_the_first_byte_has_its_status(
    path: str, stream: bool, error: Exception, status: int, code: str
) -> None:
    async with AsyncTestClient(create_app(ScriptedBackend(error)), base_url="http://127.0.0.1") as client:
        reply = await client.post(
            path, json={"question": "x", "stream": stream} if "ask" in path else {**CHAT, "stream": stream}
        )
    assert (reply.status_code, failure(reply)["code"]) == (status, code)
    assert "secret" not in reply.text
    assert reply.headers.get("retry-after") == ("3" if status == 429 else None)


async def test_a_failure_after_the_first_byte_is_an_event() -> None:
    backend = ScriptedBackend("some ", EngineDied("The engine died."))
    async with AsyncTestClient(create_app(backend), base_url="http://127.0.0.1") as client:
        asked = parse((await client.post("/v1/ask", json={"question": "x"})).content)
        chatted = parse((await client.post("/v1/chat/completions", json={**CHAT, "stream": True})).content)
    assert [name for name, _ in asked] == ["sources", "delta", "error"]
    assert json.loads(asked[-1][1])["error"]["code"] == "engine_died"
    assert "Retry" in json.loads(asked[-1][1])["error"]["message"]
    assert json.loads(chatted[-1][1])["error"]["code"] == "engine_died"
    assert all(data != "[DONE]" for _, data in chatted)


async def test_search(client: Client, backend: ScriptedBackend) -> None:
    reply = await client.post("/v1/search", json={"query": "locks", "mode": "lexical", "rerank": False, "top_k": 3})
    assert backend.searched == [SearchRequest("locks", "default", "lexical", False, 3)]
    (result,) = reply.json()["results"]
    assert (result["n"], result["page"], result["document"], result["text"]) == (1, 7, "手册.pdf", PASSAGE.text)
    assert result["scores"] == {"lexical": 3.5, "dense": 0.8, "fused": None, "rerank": None}
    assert reply.json()["degraded"] == ["no reranker"]
    assert reply.headers["server-timing"].startswith("recall_lexical;dur=0.50")


@pytest.mark.parametrize(
    ("body", "param"), [({"query": " "}, "query"), ({"query": "x", "filters": {}}, "filters.type"), ({}, "query")]
)
async def test_a_search_that_cannot_be_made(client: Client, body: dict[str, Any], param: str) -> None:
    reply = await client.post("/v1/search", json=body)
    assert (reply.status_code, failure(reply)["param"]) == (400, param)


async def test_upload(client: Client, backend: ScriptedBackend) -> None:
    where = {"source": "/mnt/stick/手册 1.pdf"}
    reply = await client.put("/v1/collections/c1/documents", params=where, content=b"\x00bytes")
    assert (reply.status_code, reply.json()["status"]) == (200, "added")
    assert backend.ingested == [("c1", "/mnt/stick/手册 1.pdf", "手册 1.pdf", b"\x00bytes")]
    assert msgspec.convert(reply.json(), Outcome).document is not None


async def test_an_upload_that_cannot_be_read_is_both_an_outcome_and_an_error(
    client: Client, backend: ScriptedBackend
) -> None:
    backend.outcome = Outcome("x.pdf", "failed", reason="It is encrypted.")
    reply = await client.put("/v1/collections/c1/documents", params={"source": "x.pdf"}, content=b"x")
    assert reply.status_code == 422
    assert msgspec.convert(reply.json(), Outcome) == backend.outcome
    assert failure(reply)["message"] == "It is encrypted."


async def test_uploads_have_a_limit_of_their_own(client: Client, backend: ScriptedBackend) -> None:
    where = {"source": "x"}
    over = await client.put("/v1/collections/c1/documents", params=where, content=b"x" * 101)
    exact = await client.put("/v1/collections/c1/documents", params=where, content=b"x" * 100)
    assert [over.status_code, exact.status_code] == [413, 200]
    assert failure(over)["code"] == "too_large"
    assert len(backend.ingested) == 1


async def test_json_has_its_limit(client: Client) -> None:
    reply = await client.post("/v1/ask", json={"question": "x" * 2000})
    assert (reply.status_code, failure(reply)["code"]) == (413, "too_large")


async def test_a_compressed_body_is_refused(client: Client) -> None:
    reply = await client.post("/v1/ask", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert (reply.status_code, failure(reply)["code"]) == (415, "unsupported_encoding")


async def test_lists_and_deletes(client: Client, backend: ScriptedBackend) -> None:
    assert (await client.get("/v1/collections")).json()["collections"][0]["name"] == "default"
    assert (await client.get("/v1/documents")).json()["documents"][0]["id"] == 3
    assert (await client.get("/v1/documents", params={"collection": "b"})).json() == {"documents": []}
    assert (await client.delete("/v1/documents/3")).status_code == 204
    assert (await client.delete("/v1/collections/默认")).status_code == 204
    assert backend.deleted == [3, "默认"]


async def test_caches_are_shown_and_cleared(client: Client, backend: ScriptedBackend) -> None:
    shown = (await client.get("/v1/cache")).json()["caches"]["answers"]
    assert (shown["memory_hits"], shown["misses"], shown["faults"]) == (7, 4, 0)
    assert (await client.delete("/v1/cache")).status_code == 204
    assert backend.deleted == ["caches"]


async def test_how_the_cache_is_used_reaches_the_backend(client: Client, backend: ScriptedBackend) -> None:
    for use in ("bypass", "refresh"):
        body = {"question": "x?", "stream": False, "appliance": {"cache": use}}
        assert (await client.post("/v1/ask", json=body)).status_code == 200
    chat = {"messages": [{"role": "user", "content": "x?"}], "appliance": {"cache": "bypass"}}
    assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
    assert [question.cache for question in backend.asked] == ["bypass", "refresh", "bypass"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/collections"),
        ("GET", "/v1/documents"),
        ("DELETE", "/v1/documents/9"),
        ("DELETE", "/v1/collections/x"),
        ("PUT", "/v1/collections/x/documents?source=y"),
    ],
)
async def test_what_the_store_refuses(client: Client, backend: ScriptedBackend, method: str, path: str) -> None:
    backend.failure = DiskFull("The disk is full.")
    reply = await client.request(method, path)
    assert (reply.status_code, failure(reply)["code"]) == (507, "disk_full")


@pytest.mark.parametrize(
    ("method", "path", "status", "param"),
    [
        ("GET", "/nope", 404, None),
        ("GET", "/v1/ask", 405, None),
        ("DELETE", "/v1/documents/abc", 404, None),
        ("PUT", "/v1/collections/c/documents", 400, "source"),
        ("PUT", "/v1/collections/c/documents?source=%20", 400, "source"),
        ("POST", "/v1/ask", 400, None),
    ],
)
async def test_wrong_requests(client: Client, method: str, path: str, status: int, param: str | None) -> None:
    reply = await client.request(method, path)
    assert (reply.status_code, failure(reply)["param"]) == (status, param)


@pytest.mark.parametrize("given", ["a" * 129, "a b", 'a"b', "é", ""])
async def test_an_id_that_could_do_harm_is_replaced(client: Client, given: str) -> None:
    reply = await client.get("/healthz", headers=[(b"X-Request-Id", given.encode())])
    assert reply.headers["x-request-id"] != given
    assert len(reply.headers["x-request-id"]) == 32


async def test_every_reply_has_an_id_and_errors_too(client: Client) -> None:
    for path in ("/healthz", "/nope"):
        assert (await client.get(path, headers={"X-Request-Id": "a.B-9_"})).headers["x-request-id"] == "a.B-9_"
    evil = await client.get("/healthz", headers={"host": "evil.example", "X-Request-Id": "mine"})
    assert (evil.status_code, failure(evil)["code"], evil.headers["x-request-id"]) == (403, "forbidden", "mine")


async def test_a_page_of_another_origin_cannot_ask(client: Client, backend: ScriptedBackend) -> None:
    for origin in ("http://evil.example", "null"):
        reply = await client.post("/v1/ask", json={"question": "x"}, headers={"Origin": origin})
        assert (reply.status_code, failure(reply)["code"]) == (403, "forbidden")
    assert backend.asked == []
    preflight = await client.request("OPTIONS", "/v1/ask", headers={"Origin": "http://evil.example"})
    assert not [name for name in preflight.headers if name.startswith("access-control")]


async def test_a_trace_goes_on_in_our_spans(client: Client, spans: list[Span]) -> None:
    await client.post("/v1/ask", json={"question": "x"}, headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    (whole,) = [span for span in spans if span.name == "http.request"]
    assert whole.trace is not None
    assert (whole.trace.id, whole.trace.remote_parent) == (int("ab" * 16, 16), int("cd" * 8, 16))
    assert (whole.attributes["http.route"], whole.attributes["http.response.status_code"]) == ("/v1/ask", 200)
    assert telemetry.current() is None


async def test_the_description_covers_every_route_and_needs_no_network(client: Client) -> None:
    reply = await client.get("/openapi.json")
    described = reply.json()
    assert set(described["paths"]) == {
        "/v1/documents/{document_id}/content",
        "/healthz",
        "/readyz",
        "/v1/models",
        "/v1/ask",
        "/v1/search",
        "/v1/rerank",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/{response_id}",
        "/v1/collections",
        "/v1/collections/{collection_name}",
        "/v1/collections/{collection_name}/documents",
        "/v1/documents",
        "/v1/documents/{document_id}",
        "/v1/jobs",
        "/v1/jobs/{job_id}",
        "/v1/jobs/{job_id}/cancel",
        "/v1/jobs/{job_id}/retry",
        "/v1/cache",
        "/metrics",
        "/v1/metrics/history",
        "/v1/traces",
        "/v1/traces/{trace_id}",
        "/v1/keys",
        "/v1/keys/{key_id}",
        "/v1/embeddings",
    }
    ask = described["paths"]["/v1/ask"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert ask["required"] == ["question"]
    assert "$ref" not in json.dumps(ask)
    assert "$defs" not in reply.text
    assert "://" not in reply.text
    for viewer in ("/schema", "/schema/swagger", "/redoc", "/openapi.json/swagger"):
        assert (await client.get(viewer)).status_code == 404


YEAR = {"type": "gte", "key": "year", "value": 2020}


async def test_filters_recall_and_explain_reach_the_search(client: Client, backend: ScriptedBackend) -> None:
    body = {"query": "x", "filters": YEAR, "recall": 0.99, "explain": True, "mode": "funnel"}
    assert (await client.post("/v1/search", json=body)).status_code == 200
    (request,) = backend.searched
    assert (request.filters, request.recall, request.explain) == (Comparison("gte", "year", 2020), 0.99, True)
    own = {"filters": YEAR, "recall": "exact", "collection": "default"}
    chat = {"messages": [{"role": "user", "content": "x"}], "appliance": own}
    assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
    assert (await client.post("/v1/ask", json={"question": "x?", "appliance": own})).status_code == 200
    assert [(asked.filters, asked.recall) for asked in backend.asked] == [(request.filters, "exact")] * 2


@pytest.mark.parametrize(
    ("own", "param"),
    [
        ({"filters": {**YEAR, "type": "like"}}, "filters.type"),
        ({"filters": {"type": "or", "filters": [YEAR, {"type": "eq", "key": "a"}]}}, "filters.filters[1].value"),
        ({"filters": [YEAR]}, "filters"),
        ({"recall": 0.5}, "recall"),
        ({"recall": True}, "recall"),
    ],
)
async def test_what_is_wrong_with_a_filter_or_target_is_named(client: Client, own: dict[str, Any], param: str) -> None:
    search = await client.post("/v1/search", json={"query": "x", **own})
    assert (search.status_code, failure(search)["param"]) == (400, param)
    ask = await client.post("/v1/ask", json={"question": "x?", "stream": False, "appliance": own})
    assert (ask.status_code, failure(ask)["param"]) == (400, f"appliance.{param}")


@pytest.mark.parametrize("own", [{"filters": YEAR}, {"recall": 0.99}])
async def test_filters_need_documents(client: Client, own: dict[str, Any]) -> None:
    chat = {"messages": [{"role": "user", "content": "x?"}], "appliance": own}
    reply = await client.post("/v1/chat/completions", json=chat)
    assert (reply.status_code, failure(reply)["param"]) == (400, f"appliance.{next(iter(own))}")


async def test_attributes_come_with_an_upload_and_the_recall_target_is_set(
    client: Client, backend: ScriptedBackend
) -> None:
    url = "/v1/collections/c/documents"
    given = {"source": "a.txt", "attributes": '{"site": "n", "year": 2024}'}
    assert (await client.put(url, params=given, content=b"x")).status_code == 200
    assert backend.attributes == {"site": "n", "year": 2024}
    for wrong in ("{", "[]", '{"a": []}'):
        reply = await client.put(url, params={"source": "a.txt", "attributes": wrong}, content=b"x")
        assert (reply.status_code, failure(reply)["param"].partition(".")[0]) == (400, "attributes")
    for target in ("exact", 0.9, None):
        changed = await client.patch("/v1/collections/default", json={"recall": target})
        assert (changed.status_code, changed.json()["recall"]) == (200, target)
    assert (await client.patch("/v1/collections/default", json={"recall": 0.5})).status_code == 400


async def test_numbers_in_the_address_keep_the_bounds_that_the_document_tells(
    backend: ScriptedBackend, tmp_path: Path
) -> None:
    measured = Telemetry(Options(tmp_path, "1"))
    tried = 0
    async with AsyncTestClient(create_app(backend, telemetry=measured), base_url="http://127.0.0.1") as client:
        described = (await client.get("/openapi.json")).json()["paths"]
        for path, item in described.items():
            for parameter in item.get("get", {}).get("parameters", []):
                schema = parameter["schema"]
                for kind in [schema, *schema.get("oneOf", []), *schema.get("anyOf", [])]:
                    outside = [kind[bound] + step for bound, step in (("minimum", -1), ("maximum", 1)) if bound in kind]
                    for number in outside:
                        reply = await client.get(path, params={"name": "x", parameter["name"]: int(number)})
                        assert (reply.status_code, failure(reply)["param"]) == (400, parameter["name"]), path
                        tried += 1
    assert tried >= 7
