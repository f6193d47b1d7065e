"""Who may reach the service on real sockets, and with what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.cli.remote import RemoteError, RemoteTarget
from appliance.errors import BadSetting
from appliance.http.server import Server
from appliance.store.db import STORE_FILE, Store
from appliance.store.keys import KeyTable, NewKey
from tests.integration.http.serving import serving, settings
from tests.unit.http.backend import ScriptedBackend

ANYWHERE = "0.0.0.0"  # noqa: S104
ASK = {"question": "x", "stream": False}


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")


@pytest.fixture
def table(data_dir: Path) -> Iterator[KeyTable]:
    with closing(Store.open(data_dir / STORE_FILE)) as store:
        yield store.keys


def open_to_all(data_dir: Path, table: KeyTable, **server: object) -> ScriptedBackend:
    return ScriptedBackend(configured=settings(data_dir, host=ANYWHERE, **server), key_table=table)


def reaching(server: Server, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url.replace(ANYWHERE, "127.0.0.1"), timeout=20, **options)


def test_beyond_loopback_a_key_comes_first(data_dir: Path, table: KeyTable) -> None:
    for configured in (settings(data_dir, host=ANYWHERE), settings(data_dir / "new", host=ANYWHERE)):
        with pytest.raises(BadSetting, match=r"no API key.*appliance keys create") as caught:
            Server.bind(configured)
        assert (caught.value.exit_code, caught.value.param) == (2, "server.host")
    key = table.create(NewKey("a", ("query",))).key
    with Server.bind(settings(data_dir, host=ANYWHERE)):
        pass
    table.revoke(key.id)
    with pytest.raises(BadSetting, match="no API key"):
        Server.bind(settings(data_dir, host=ANYWHERE))


async def test_beyond_loopback_everybody_needs_a_key_and_the_socket_does_not(data_dir: Path, table: KeyTable) -> None:
    made = table.create(NewKey("a", ("query",)))
    backend = open_to_all(data_dir, table)
    async with serving(backend) as server, reaching(server) as http, RemoteTarget(server.socket) as remote:
        refused = await http.post("/v1/ask", json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        big = await http.post("/v1/ask", content=b" " * (64 << 20))
        assert big.status_code == 401, "a client that sends all before it reads gets its refusal"
        assert (await http.get("/healthz")).status_code == 200
        # The machine may have any name for those who have a key.
        named = {"Authorization": f"Bearer {made.secret}", "Host": "node7.plant.example"}
        assert (await http.post("/v1/ask", json=ASK, headers=named)).status_code == 200
        assert [asked.label for asked in backend.asked] == [made.key.id]
        # What is done on the machine itself goes on as before.
        assert [key.id for key in await remote.keys()] == [made.key.id]
        other = await remote.create_key(NewKey("b", ("ingest",), "2999-01-01", 5, 2))
        assert (await http.get("/v1/models", headers={"Authorization": f"Bearer {other.secret}"})).status_code == 200
        assert await remote.revoke_key(other.key.id) == table.get(other.key.id)
        gone = await http.get("/v1/models", headers={"Authorization": f"Bearer {other.secret}"})
        assert gone.status_code == 401
        with pytest.raises(RemoteError, match="Revoke it first"):
            await remote.create_key(NewKey("a", ("query",)))


async def test_a_key_may_be_asked_for_everywhere(
    data_dir: Path, table: KeyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = table.create(NewKey("a", ("admin",)))
    backend = ScriptedBackend(configured=settings(data_dir, require_keys="always"), key_table=table)
    async with serving(backend) as server, reaching(server) as http:
        assert (await http.post("/v1/ask", json=ASK)).status_code == 401
        async with RemoteTarget(server.socket) as remote:
            with pytest.raises(RemoteError, match="needs an API key"):
                await remote.keys()
        monkeypatch.setenv("APPLIANCE_API_KEY", admin.secret)
        async with RemoteTarget(server.socket) as remote:
            assert [key.name for key in await remote.keys()] == ["a"]
