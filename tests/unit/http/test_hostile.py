"""What no client in its right mind sends, to every route that reads JSON: refused, and nothing is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from appliance.http.app import create_app
from tests.unit.http.backend import ScriptedBackend
from tests.unit.http.test_auth import reaching
from tests.unit.http.test_routes import failure

DEEP = 10_000


def json_routes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, address and schema of every route whose body is JSON."""
    described = create_app(ScriptedBackend()).openapi_schema.to_schema()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                yield method.upper(), path.replace("{", "").replace("}", ""), content["application/json"]["schema"]


ROUTES = list(json_routes())
NUMBERS = (b"NaN", b"1e999", b"-Infinity", b"1" + b"0" * 5000, b"-1e-99999", b"0x10", b"1_000", b"01")
DEPTHS = (b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"[" * DEEP)
WHOLE = (
    b"\xff\xfe",
    b'{"\xc3\x28": 1}',
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\\ud800"}',
    b"\x00",
    b'""',
    b"[]",
    b"null",
    b"{}x",
    b'{"a": 1, "a": 2}',
    *NUMBERS,
    *DEPTHS,
)


def test_there_are_routes_to_try() -> None:
    assert {"/v1/ask", "/v1/chat/completions", "/v1/keys"} <= {path for _, path, _ in ROUTES}


@pytest.mark.parametrize(("method", "path", "schema"), ROUTES, ids=[path for _, path, _ in ROUTES])
async def test_bodies_of_every_route(method: str, path: str, schema: dict[str, Any]) -> None:
    backend = ScriptedBackend()
    async with reaching(create_app(backend)) as client:
        for content in WHOLE:
            refused(await client.request(method, path, content=content), content)
        # In each field by itself: those that take anything are not checked by their types.
        for name in schema["properties"]:
            for value in (*NUMBERS, *DEPTHS, b'"\xff"'):
                content = b'{"%s": %s}' % (name.encode(), value)
                refused(await client.request(method, path, content=content), content)
    assert not (backend.asked or backend.searched or backend.deleted)


@pytest.mark.parametrize("depth", [50, 300, 900, 1500, DEEP])
@pytest.mark.parametrize("form", ["filters", "bare"])
async def test_filters_of_any_depth_never_break_a_route(depth: int, form: str) -> None:
    inner = '{"type":"eq","key":"a","value":1}'
    deep = (
        '{"type":"and","filters":[' * depth + inner + "]}" * depth if form == "filters" else "[" * depth + "]" * depth
    )
    backend = ScriptedBackend()
    async with reaching(create_app(backend)) as client:
        for path, body in (
            ("/v1/search", '{"query": "x", "filters": %s}'),
            ("/v1/ask", '{"question": "x", "stream": false, "appliance": {"filters": %s}}'),
        ):
            reply = await client.post(path, content=(body % deep).encode())
            assert reply.status_code in (200, 400), reply.text[:500]
            reply = await client.post(path, content=(body.replace("filters", "recall") % deep).encode())
            refused(reply, deep.encode())
        if len(deep) < 30_000:  # of an address, the head's limit lets no more through
            where = "/v1/collections/c/documents"
            for attributes in (deep, f'{{"a": {deep}}}'):
                refused(await client.put(where, params={"source": "x", "attributes": attributes}), deep.encode())


@pytest.mark.parametrize(
    "attributes", ["\udcff", '"\ud800"', "NaN", '{"a": NaN}', '{"a": 1e999}', '{"a": 1' + "0" * 400 + "}", "nul", "[]"]
)
async def test_attributes_that_are_none(attributes: str) -> None:
    backend = ScriptedBackend()
    query = (
        b"source=x&attributes="
        + "".join(f"%{byte:02x}" for byte in attributes.encode("utf-8", "surrogatepass")).encode()
    )
    async with reaching(create_app(backend)) as client:
        refused(await client.put(f"/v1/collections/c/documents?{query.decode()}", content=b"x"), query)
    assert backend.ingested == []


def refused(reply: httpx.Response, content: bytes) -> None:
    assert 400 <= reply.status_code < 500, (content[:80], reply.status_code, reply.text[:300])
    failure(reply)
