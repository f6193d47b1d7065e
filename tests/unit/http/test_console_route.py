"""`GET /` and the console's files over HTTP: headers, caching, and nothing but these files."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from litestar.testing import AsyncTestClient

from appliance.console import assets
from appliance.http.app import Application, create_app
from tests.unit.http.backend import ScriptedBackend

Client = AsyncTestClient[Application]
URLS = ["/", *(f"/console/{name}" for name in assets())]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with AsyncTestClient(create_app(ScriptedBackend()), base_url="http://127.0.0.1") as made:
        yield made


@pytest.mark.parametrize("url", URLS)
async def test_every_file_has_its_type_and_the_strict_policy(client: Client, url: str) -> None:
    reply = await client.get(url)
    asset = assets()[url.rpartition("/")[2] or "index.html"]
    assert (reply.status_code, reply.content) == (200, asset.data)
    assert reply.headers["content-type"].partition(";")[0] == asset.media_type
    assert reply.headers.get_list("x-content-type-options") == ["nosniff"]
    assert reply.headers["cache-control"] == "no-cache"
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    sources = {source for value in policy.values() for source in value.split()}
    assert sources == {"'none'", "'self'", "data:", "'script'"}, "no other host, nothing inline, nothing evaluated"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


async def test_a_file_that_is_known_is_not_sent_again(client: Client) -> None:
    first = await client.get("/")
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await client.get("/", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    changed = await client.get("/", headers={"If-None-Match": '"other"'})
    assert (changed.status_code, changed.content) == (200, first.content)


@pytest.mark.parametrize(
    "path",
    [
        "/console/__init__.py",
        "/console/..%2f__init__.py",
        "/console/../__init__.py",
        "/console/%2e%2e/%2e%2e/config.py",
        "/console/..%5c__init__.py",
        "/console//etc/passwd",
        "/console/%2fetc%2fpasswd",
        "/console/static/app.js",
        "/console/app.js/",
        "/console/app.js%00.css",
        "/console/",
        "/console",
        "/index.html",
    ],
)
async def test_nothing_else_is_served(client: Client, path: str) -> None:
    reply = await client.get(path)
    if path == "/console/app.js/":  # the router takes a slash at the end for none
        assert reply.content == assets()["app.js"].data
        return
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/json"


async def test_the_page_is_there_while_the_service_loads() -> None:
    app = create_app(ScriptedBackend(), loading=True)
    async with AsyncTestClient(app, base_url="http://127.0.0.1") as client:
        for url in ("/", "/console/app.js"):
            assert (await client.get(url)).status_code == 200
        assert (await client.get("/v1/models")).status_code == 503


async def test_the_contract_of_programs_says_nothing_of_it(client: Client) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert "/" not in paths and not any(path.startswith("/console") for path in paths)
