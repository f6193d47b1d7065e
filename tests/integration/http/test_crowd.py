"""More connections than there may be, and clients that hold theirs without use."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path

import httpx
import pytest

from appliance.http import connection, crowd
from appliance.http.server import Server
from tests.integration.http.serving import serving, settings
from tests.unit.http.backend import ScriptedBackend

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
ASK = json.dumps({"question": "x"}).encode()
ASKING = b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(ASK) + ASK

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")


async def connect(server: Server) -> Line:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def health(line: Line) -> bytes:
    """The status of a health check on a connection; empty when it was closed."""
    reader, writer = line
    writer.write(HEALTH)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"}")
    return head.split()[1]


async def test_one_connection_too_many_is_told_so_and_the_socket_stays_open(data_dir: Path) -> None:
    backend = ScriptedBackend("a", 30.0, configured=settings(data_dir, max_connections=2))
    async with serving(backend) as server:
        asking, silent = await connect(server), await connect(server)
        asking[1].write(ASKING)
        async with asyncio.timeout(10):
            await backend.begun.wait()
        reader, writer = await connect(server)
        async with asyncio.timeout(10):
            reply = await reader.read()
        head, _, rest = reply.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in head
        assert json.loads(rest)["error"]["code"] == "too_many_connections"
        transport = httpx.AsyncHTTPTransport(uds=str(server.socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as local:
            assert (await local.get("/healthz")).status_code == 200
        silent[1].close()
        await silent[1].wait_closed()
        async with asyncio.timeout(10):
            while not await _served(line := await connect(server)):
                line[1].close()
        for _, each in (asking, line, (reader, writer)):
            each.close()


async def _served(line: Line) -> bool:
    try:
        return await health(line) == b"200"
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def test_beyond_a_few_refusals_at_once_there_is_no_reply(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LEAVING_MOST", 1)
    async with serving(ScriptedBackend(configured=settings(data_dir, max_connections=1))) as server:
        lines = [await connect(server) for _ in range(4)]
        async with asyncio.timeout(10):
            replies = [await _whole(line) for line in lines[1:]]
        assert [reply[:12] for reply in replies] == [b"HTTP/1.1 503", b"", b""]
        assert await health(lines[0]) == b"200"
        for _, writer in lines:
            writer.close()


async def _whole(line: Line) -> bytes:
    try:
        return await line[0].read()
    except ConnectionError:
        return b""


async def test_a_kept_connection_gives_way_when_it_has_rested(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "RESTED_S", 0.0)
    async with serving(ScriptedBackend(configured=settings(data_dir, max_connections=2))) as server:
        first, second = await connect(server), await connect(server)
        for line in (first, second, first, second):  # both are kept, and used again
            assert await health(line) == b"200"
        third = await connect(server)
        assert await health(third) == b"200"
        async with asyncio.timeout(10):
            assert await first[0].read() == b""
        assert await health(second) == b"200"
        for _, writer in (first, second, third):
            writer.close()


async def test_what_was_refused_or_left_frees_its_place(data_dir: Path) -> None:
    async with serving(ScriptedBackend(configured=settings(data_dir, max_connections=3))) as server:
        for _ in range(20):
            line = await connect(server)
            assert await health(line) == b"200"
            line[1].close()
            await line[1].wait_closed()
            await asyncio.sleep(0.001)


async def test_a_client_that_reads_nothing_is_let_go_and_a_slow_one_is_not(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "READ_PATIENCE_S", 0.4)
    backend = ScriptedBackend(*["x" * 200_000] * 100, configured=settings(data_dir))
    async with serving(backend) as server, asyncio.timeout(30):
        _, writer = await connect(server)
        writer.write(ASKING)
        await backend.closed.wait()
        assert backend.made < 100
        writer.close()
        backend.closed.clear()
        reader, writer = await connect(server)
        writer.write(ASKING)
        size = 0
        while not (piece := await reader.read(1 << 20)).endswith(b"0\r\n\r\n"):
            assert piece, "it was cut off"
            size += len(piece)
            await asyncio.sleep(0.05)
        assert size > 19_000_000
        writer.close()


def test_the_process_may_open_as_many_files_as_it_takes(data_dir: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with Server.bind(settings(data_dir, max_connections=300)):
            raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised == hard or raised >= 300 + 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
