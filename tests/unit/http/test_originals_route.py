"""The file that a document was read from, as a browser gets it: whole, named, and never as a page of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from litestar.testing import AsyncTestClient
from msgspec.structs import replace

from appliance.http.app import Application, create_app
from tests.unit.http.backend import DOCUMENT, ScriptedBackend

Client = AsyncTestClient[Application]


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
async def client(backend: ScriptedBackend) -> AsyncIterator[Client]:
    async with AsyncTestClient(create_app(backend), base_url="http://127.0.0.1") as made:
        yield made


def put(backend: ScriptedBackend, media_type: str, data: bytes, name: str = "a", encoding: str | None = None) -> None:
    document = replace(
        DOCUMENT, media_type=media_type, name=name, size_bytes=len(data), encoding=encoding, sha256="cd" * 32
    )
    backend.originals[3] = document, data


async def test_the_bytes_are_those_that_were_given_and_asked_for_again_only_when_changed(
    client: Client, backend: ScriptedBackend
) -> None:
    data = bytes(range(256)) * 3000
    put(backend, "application/pdf", data, '泵 手册\r\n"v2".pdf')
    reply = await client.get("/v1/documents/3/content")
    assert (reply.status_code, reply.content) == (200, data)
    assert reply.headers["content-length"] == str(len(data))
    name = "%E6%B3%B5%20%E6%89%8B%E5%86%8C%0D%0A%22v2%22.pdf"
    assert reply.headers["content-disposition"] == f"inline; filename*=UTF-8''{name}"
    again = await client.get("/v1/documents/3/content", headers={"If-None-Match": reply.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert len(backend.opened) == 2
    assert all(file.closed for file in backend.opened)
    assert (await client.get("/v1/documents/4/content")).status_code == 404


@pytest.mark.parametrize(
    ("media_type", "encoding", "given", "shown"),
    [
        ("application/pdf", None, "application/pdf", True),
        ("image/png", None, "image/png", True),
        ("text/plain", "gb18030", "text/plain; charset=gb18030", True),
        ("text/html", "utf-8", "text/plain; charset=utf-8", True),
        ("application/xml", "utf-16-le", "text/plain; charset=utf-16-le", True),
        ("text/markdown", None, "text/plain; charset=utf-8", True),
        ("message/rfc822", "utf-8", "message/rfc822", False),
        ("application/epub+zip", None, "application/epub+zip", False),
        ("image/svg+xml", None, "image/svg+xml", False),
        ("application/xhtml+xml", None, "application/xhtml+xml", False),
    ],
)
async def test_nothing_that_runs_is_shown_as_a_page(
    client: Client, backend: ScriptedBackend, media_type: str, encoding: str | None, given: str, shown: bool
) -> None:
    put(backend, media_type, b"<script>alert(1)</script>", encoding=encoding)
    reply = await client.get("/v1/documents/3/content")
    assert reply.headers["content-type"] == given
    assert reply.headers["content-disposition"].startswith("inline;" if shown else "attachment;")
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "sandbox" in policy or media_type == "application/pdf"
    assert reply.headers["x-content-type-options"] == "nosniff"
