"""API keys over HTTP: who gets in, where to, how often, and that nobody sees what is another's."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import ServerSettings, Settings
from appliance.errors import BadRequest
from appliance.http import auth
from appliance.http.app import Application, create_app
from appliance.http.auth import Meter, RateLimited
from appliance.http.auth_routes import ROUTES, is_open, needed
from appliance.store import keys as keys_module
from appliance.store.db import Store
from appliance.store.keys import KeyTable, NewKey, Scope
from appliance.store.responses import RESPONSES_FILE, ResponseStore
from tests.unit.http.backend import ScriptedBackend
from tests.unit.http.test_routes import failure

Client = httpx.AsyncClient
ASK = {"question": "x", "stream": False}
REQUIRED = Settings(server=ServerSettings(require_keys="tcp"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "_LOG2_N", 2)  # its slowness is not what is tested


@pytest.fixture
def table(tmp_path: Path) -> Iterator[KeyTable]:
    with closing(Store.open(tmp_path / "store.sqlite3")) as store:
        yield store.keys


@pytest.fixture
def backend(table: KeyTable, tmp_path: Path) -> Iterator[ScriptedBackend]:
    made = ScriptedBackend(configured=REQUIRED, key_table=table)
    with closing(ResponseStore(tmp_path / RESPONSES_FILE)) as made.response_store:
        yield made


@pytest.fixture
def app(backend: ScriptedBackend) -> Application:
    return create_app(backend)


@pytest.fixture
async def client(app: Application) -> AsyncIterator[Client]:
    async with reaching(app) as made:
        yield made


def reaching(app: Application) -> Client:
    """Several requests at once, in this loop; Litestar's own client makes them one after the other."""
    transport: Any = httpx.ASGITransport(app)  # its types know one kind of scope alone
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")


def bearer(table: KeyTable, *scopes: Scope, name: str = "", **limits: Any) -> dict[str, str]:
    made = table.create(NewKey(name or "-".join(scopes), scopes, **limits))
    return {"Authorization": f"Bearer {made.secret}"}


def unauthorized(reply: httpx.Response, says: str) -> None:
    assert (reply.status_code, failure(reply)["code"]) == (401, "invalid_api_key")
    assert failure(reply)["type"] == "invalid_request_error"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert says in failure(reply)["message"]


# Who gets in


async def test_without_a_good_key_nothing_is_done(
    app: Application, client: Client, backend: ScriptedBackend, table: KeyTable
) -> None:
    good = bearer(table, "query")["Authorization"]
    for header, says in (
        (None, "needs an API key"),
        ("", "needs an API key"),
        ("Basic dTpw", "needs an API key"),
        ("Bearer", "needs an API key"),
        ("Bearer none", "not known"),
        ("Bearer sk-12345", "not known"),
        (good[:-1] + ("A" if good[-1] != "A" else "B"), "not known"),
        (good + "x", "not known"),
        (good.replace("apl_", "apl_0"), "not known"),
        (f"Bearer apl_{'0' * 16}_{'x' * 43}", "not known"),
        ("Bearer \u00e9", "not known"),
    ):
        headers = [] if header is None else [(b"Authorization", header.encode("latin-1"))]
        unauthorized(await client.post("/v1/ask", json=ASK, headers=headers), says)
    assert backend.asked == []
    with pytest.raises(BadRequest, match="more than one"):
        await app.access.caller({"server": ("127.0.0.1", 1)}, [good, good])
    for right in (good, good.replace("Bearer", "bearer"), good.replace(" ", "   ")):
        assert (await client.post("/v1/ask", json=ASK, headers={"Authorization": right})).status_code == 200


async def test_what_is_open_stays_open(client: Client) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert (await client.get(path)).status_code == 200
    for path in ("/nope", "/v1/nope", "/healthz/../v1/models", "/openapi.json/nope", "//v1/models"):
        assert (await client.get(path)).status_code in (401, 404), path


async def test_where_no_key_is_needed_anything_may_be_sent(table: KeyTable) -> None:
    async with reaching(create_app(ScriptedBackend(key_table=table))) as client:
        for header in ({}, {"Authorization": "Bearer none"}, {"Authorization": "Bearer sk-1"}, {"Authorization": "x"}):
            assert (await client.post("/v1/ask", json=ASK, headers=header)).status_code == 200
        # What says that it is a key of ours is held to it.
        wrong = {"Authorization": f"Bearer apl_{'0' * 16}_{'x' * 43}"}
        unauthorized(await client.post("/v1/ask", json=ASK, headers=wrong), "not known")
        ingest = bearer(table, "ingest")
        assert (await client.post("/v1/ask", json=ASK, headers=ingest)).status_code == 403


async def test_a_revoked_key_and_one_that_expired_open_nothing_from_then_on(
    client: Client, table: KeyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = bearer(table, "query", name="first")
    passing = bearer(table, "query", name="second", expires_at="2999-01-01")
    for sent in (headers, passing):
        assert (await client.post("/v1/ask", json=ASK, headers=sent)).status_code == 200
    table.revoke(table.list()[-1].id if table.list()[-1].name == "first" else table.list()[0].id)
    unauthorized(await client.post("/v1/ask", json=ASK, headers=headers), "was revoked")
    monkeypatch.setattr(keys_module, "_now", lambda: "2999-01-01T00:00:00.000+00:00")
    unauthorized(await client.post("/v1/ask", json=ASK, headers=passing), "has expired")


async def test_the_slow_hash_runs_once_for_a_key_and_once_for_a_wrong_one(
    client: Client, table: KeyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = bearer(table, "query")
    wrong = {"Authorization": right["Authorization"][:-2] + "__"}
    hashed: list[str] = []
    matches = table.matches
    gate = threading.Event()

    def counting(key_id: str, secret: str) -> bool:
        hashed.append(secret)
        gate.wait(10)
        return matches(key_id, secret)

    monkeypatch.setattr(table, "matches", counting)
    asking = [asyncio.create_task(client.post("/v1/ask", json=ASK, headers=right)) for _ in range(5)]
    asking[0].cancel()  # it came first, and its leaving is nobody's fault
    async with asyncio.timeout(10):
        while not hashed:  # noqa: ASYNC110 - a thread
            await asyncio.sleep(0.005)
    gate.set()
    assert [reply.status_code for reply in await asyncio.gather(*asking[1:])] == [200] * 4
    for _ in range(3):
        assert (await client.post("/v1/ask", json=ASK, headers=wrong)).status_code == 401
        assert (await client.post("/v1/ask", json=ASK, headers=right)).status_code == 200
    assert len(hashed) == 2


async def test_a_flood_of_wrong_keys_stops_nobody_who_was_let_in_before(
    client: Client, table: KeyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "CHECKS_WAITING", 3)
    right = bearer(table, "query")
    assert (await client.post("/v1/ask", json=ASK, headers=right)).status_code == 200
    gate = threading.Event()
    monkeypatch.setattr(table, "matches", lambda *_: not gate.wait(10))
    stem = right["Authorization"][:-3]
    flood = [
        asyncio.create_task(client.post("/v1/ask", json=ASK, headers={"Authorization": f"{stem}{n:03}"}))
        for n in range(8)
    ]
    done, _ = await asyncio.wait(flood, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    refused = next(iter(done)).result()
    assert (refused.status_code, failure(refused)["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await client.post("/v1/ask", json=ASK, headers=right)).status_code == 200
    gate.set()
    assert sorted(reply.status_code for reply in await asyncio.gather(*flood)) == [401] * 3 + [429] * 5


async def test_what_is_remembered_of_keys_is_bounded(
    app: Application, client: Client, table: KeyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REMEMBERED", 4)
    right = bearer(table, "query")
    assert (await client.post("/v1/ask", json=ASK, headers=right)).status_code == 200
    for n in range(12):
        wrong = {"Authorization": f"{right['Authorization'][:-3]}{n:03}"}
        assert (await client.post("/v1/ask", json=ASK, headers=wrong)).status_code == 401
    access = app.access
    assert (len(access._right), len(access._wrong), len(access._checking)) == (1, 4, 0)


# Scopes


async def test_every_route_has_its_scopes_and_every_other_key_is_refused(
    app: Application, client: Client, table: KeyTable
) -> None:
    headers = {scope: bearer(table, scope) for scope in ("query", "ingest", "admin")}
    served = {
        (method, route.path_format)
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "OPTIONS"
        and not is_open(route.path_format.rstrip("/") or "/")
        # Litestar serves its description under its own name as well.
        and not route.path_format.startswith("/openapi.json/")
    }
    listed = {(method, path.rstrip("/")) for method, path in served}
    assert listed == set(ROUTES), "each route says in auth_routes who may use it"
    for method, path in sorted(listed):
        address = re.sub(r"\{[^}]*\}", "999", path)
        unauthorized(await client.request(method, address), "needs an API key")
        for scope, sent in headers.items():
            reply = await client.request(method, address, headers=sent)
            if scope == "admin" or scope in needed(method, path):
                assert reply.status_code not in (401, 403), (method, path, scope)
            else:
                assert (reply.status_code, failure(reply)["code"]) == (403, "missing_scope"), (method, path, scope)
                assert scope in failure(reply)["message"]


def test_a_route_that_nobody_listed_is_for_admins() -> None:
    assert needed("GET", "/v1/something/new") == {"admin"}
    assert needed("POST", "/v1/models") == {"admin"}


# Limits


async def test_a_key_may_be_used_so_often(client: Client, table: KeyTable, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("appliance.http.auth.time.monotonic", lambda: now)
    limited, free = bearer(table, "query", name="limited", rate_per_min=2), bearer(table, "query", name="free")

    async def ask(headers: dict[str, str]) -> httpx.Response:
        return await client.post("/v1/ask", json=ASK, headers=headers)

    assert [(await ask(limited)).status_code for _ in range(2)] == [200, 200]
    refused = await ask(limited)
    assert (refused.status_code, failure(refused)["code"]) == (429, "rate_limit_exceeded")
    assert (failure(refused)["type"], refused.headers["retry-after"]) == ("rate_limit_error", "30")
    assert (await ask(free)).status_code == 200
    assert (await client.get("/healthz", headers=limited)).status_code == 200
    now += 30
    assert [(await ask(limited)).status_code for _ in range(2)] == [200, 429]


async def test_a_key_may_be_used_for_so_much_at_once(
    app: Application, client: Client, backend: ScriptedBackend, table: KeyTable
) -> None:
    backend.script = ("a", 30.0)
    limited = bearer(table, "query", concurrency=1)
    asking = asyncio.create_task(client.post("/v1/ask", json=ASK, headers=limited))
    async with asyncio.timeout(10):
        await backend.begun.wait()
    for _ in range(2):
        refused = await client.post("/v1/search", json={"query": "x"}, headers=limited)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    app.lifecycle.cut()
    assert (await asking).status_code == 503
    app.lifecycle.is_cut = app.lifecycle.stopping = False
    # However a request ended, it is counted out: well, refused for its scope or its body, or broken.
    for path, body in (("/v1/search", {"query": "x"}), ("/v1/cache", None), ("/v1/search", {}), ("/nope", None)):
        await client.request("POST", path, json=body, headers=limited)
    assert (await client.post("/v1/search", json={"query": "x"}, headers=limited)).status_code == 200


@given(
    rate=st.integers(1, 100),
    gaps=st.lists(st.floats(0, 100, allow_nan=False), min_size=1, max_size=60),
)
def test_the_rate_holds_over_any_stretch_of_time_and_the_wait_is_told_rightly(rate: int, gaps: list[float]) -> None:
    meter, now, let = Meter(rate, None), 0.0, []
    for gap in gaps:
        now += gap
        try:
            meter.enter(now)
            let.append(now)
        except RateLimited as limited:
            assert limited.retry_after_s <= math.ceil(60 / rate)
            again = Meter(rate, None)
            again.__dict__.update(meter.__dict__)
            again.enter(now + limited.retry_after_s)
    for first in range(len(let)):
        for last in range(first, len(let)):
            assert last - first + 1 <= rate + (let[last] - let[first]) * rate / 60 + 1e-3
    assert meter.running == len(let)


# Isolation


async def test_what_a_key_asks_goes_by_its_label(client: Client, backend: ScriptedBackend, table: KeyTable) -> None:
    one, two = bearer(table, "query", name="one"), bearer(table, "query", name="two")
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for headers in (one, two):
        assert (await client.post("/v1/ask", json=ASK, headers=headers)).status_code == 200
        assert (await client.post("/v1/chat/completions", json=chat, headers=headers)).status_code == 200
        assert (await client.post("/v1/search", json={"query": "x"}, headers=headers)).status_code == 200
    ids = {key.name: key.id for key in table.list()}
    assert [asked.label for asked in backend.asked] == [ids["one"]] * 2 + [ids["two"]] * 2
    assert [asked.label for asked in backend.searched] == [ids["one"], ids["two"]]


# Keys over HTTP


async def test_keys_are_made_listed_and_revoked_with_an_admins_key(client: Client, table: KeyTable) -> None:
    admin = bearer(table, "admin")
    wanted = {"name": "web", "scopes": ["query"], "expires_at": "2999-01-01", "rate_per_min": 5, "concurrency": 2}
    made = await client.post("/v1/keys", json=wanted, headers=admin)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    key, secret = made.json()["key"], made.json()["secret"]
    assert (key["name"], key["scopes"], key["rate_per_min"], key["concurrency"]) == ("web", ["query"], 5, 2)
    own = {"Authorization": f"Bearer {secret}"}
    assert (await client.get("/v1/models", headers=own)).status_code == 200
    listed = await client.get("/v1/keys", headers=admin)
    assert [found["name"] for found in listed.json()["keys"]].count("web") == 1
    assert secret not in listed.text
    assert "hash" not in listed.text
    ended = await client.delete(f"/v1/keys/{key['id']}", headers=admin)
    assert (ended.status_code, ended.json()["id"]) == (200, key["id"])
    unauthorized(await client.get("/v1/models", headers=own), "was revoked")
    assert (await client.delete("/v1/keys/nope", headers=admin)).status_code == 404


@pytest.mark.parametrize(
    ("changed", "status", "param"),
    [
        ({"name": ""}, 400, "name"),
        ({"name": "admin"}, 409, "name"),
        ({"scopes": []}, 400, "scopes"),
        ({"scopes": ["root"]}, 400, "scopes[0]"),
        ({"expires_at": "soon"}, 400, "expires_at"),
        ({"expires_at": "2020-01-01"}, 400, "expires_at"),
        ({"rate_per_min": 0}, 400, "rate_per_min"),
        ({"concurrency": 0}, 400, "concurrency"),
        ({"scope": "query"}, 400, "scope"),
    ],
)
async def test_keys_that_cannot_be_made(
    client: Client, table: KeyTable, changed: dict[str, Any], status: int, param: str
) -> None:
    admin = bearer(table, "admin")
    reply = await client.post("/v1/keys", json={"name": "a", "scopes": ["query"], **changed}, headers=admin)
    assert (reply.status_code, failure(reply)["param"]) == (status, param)
    assert len(table.list()) == 1


async def test_a_port_that_needs_no_key_makes_none(table: KeyTable) -> None:
    async with reaching(create_app(ScriptedBackend(key_table=table))) as client:
        for reply in (
            await client.post("/v1/keys", json={"name": "a", "scopes": ["admin"]}),
            await client.get("/v1/keys"),
            await client.delete("/v1/keys/0"),
        ):
            assert (reply.status_code, failure(reply)["code"]) == (403, "missing_scope")
            assert "unix socket" in failure(reply)["message"]
        assert (await client.get("/v1/cache")).status_code == 200
    assert table.list() == []
