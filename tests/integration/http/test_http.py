"""The service on real sockets: hostile clients, clients that leave, and a stop in the middle of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from appliance.http import body, connection
from appliance.http.server import Server
from tests.integration.http.serving import MAX_FILE_BYTES, serving, settings
from tests.unit.http.backend import ScriptedBackend, Step
from tests.unit.http.test_sse import parse

ROOT = Path(__file__).parents[3]
ASK = {"question": "x"}


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")


def scripted(data_dir: Path, *script: Step, **server: object) -> ScriptedBackend:
    return ScriptedBackend(*script, configured=settings(data_dir, **server))


def client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=20)


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def raw(server: Server, request: bytes) -> bytes:
    """All that the service sends back to these bytes."""
    reader, writer = await connect(server)
    writer.write(request)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


def refusal(reply: bytes, status: int, code: str) -> None:
    head, _, rest = reply.partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode(), reply
    assert json.loads(rest)["error"]["code"] == code


# Both addresses


async def test_the_port_and_the_socket_answer_alike(data_dir: Path) -> None:
    async with serving(scripted(data_dir)) as server:
        transport = httpx.AsyncHTTPTransport(uds=str(server.socket))
        async with client(server) as tcp, httpx.AsyncClient(transport=transport, base_url="http://appliance") as unix:
            for each in (tcp, unix):
                assert (await each.get("/readyz")).json()["status"] == "ready"
                assert (await each.post("/v1/ask", json={**ASK, "stream": False})).status_code == 200
    assert not server.socket.exists()


async def test_a_rebound_name_is_refused_on_the_port(data_dir: Path) -> None:
    backend = scripted(data_dir)
    async with serving(backend) as server, client(server) as http:
        port = server.url.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}"):
            assert (await http.post("/v1/ask", json=ASK, headers={"Host": host})).status_code == 403
        assert (await http.post("/v1/ask", json=ASK, headers={"Origin": "null"})).status_code == 403
        assert (await http.post("/v1/ask", json=ASK, headers={"Origin": server.url})).status_code == 200
        assert (await http.post("/v1/ask", json=ASK, headers={"Host": f"localhost:{port}"})).status_code == 200
    assert len(backend.asked) == 2


# Streams


async def test_a_ping_while_nothing_comes(data_dir: Path) -> None:
    async with serving(scripted(data_dir, "a", 0.35, "b", ping_interval_s=0.1)) as server, client(server) as http:
        reply = await http.post("/v1/ask", json=ASK)
    assert reply.content.count(b"\n\n: ping\n\n") >= 2
    assert [name for name, _ in parse(reply.content)] == ["sources", "delta", "delta", "done"]


async def test_a_slow_first_event_gets_headers_and_pings(data_dir: Path) -> None:
    backend = scripted(data_dir, 30.0, ping_interval_s=0.05)
    async with (
        serving(backend) as server,
        client(server) as http,
        http.stream(
            "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "stream": True}
        ) as reply,
    ):
        assert reply.status_code == 200
        assert await anext(reply.aiter_lines()) == ": ping"


@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_ends_when_its_client_leaves(data_dir: Path, streams: bool) -> None:
    backend = scripted(data_dir, "a", 30.0)
    async with serving(backend) as server, client(server) as http:
        asking = asyncio.create_task(first_byte(http, {**ASK, "stream": streams}))
        await backend.begun.wait()
        assert not backend.closed.is_set()
        if streams:
            await asking
        else:
            asking.cancel()
        began = time.monotonic()
        async with asyncio.timeout(5):
            await backend.closed.wait()
        assert time.monotonic() - began < 1
        assert (await http.get("/healthz")).status_code == 200


async def first_byte(http: httpx.AsyncClient, question: dict[str, Any]) -> None:
    async with http.stream("POST", "/v1/ask", json=question) as reply:
        await anext(reply.aiter_bytes())


async def test_many_streams_at_once_stay_apart(data_dir: Path) -> None:
    backend = scripted(data_dir, *[piece for n in range(40) for piece in (f"{n} ", 0.001)])
    async with serving(backend) as server, client(server) as http:
        replies = await asyncio.gather(*(http.post("/v1/ask", json={"question": str(n)}) for n in range(20)))
    want = "".join(f"{n} " for n in range(40))
    for reply in replies:
        events = parse(reply.content)
        assert "".join(json.loads(data)["text"] for name, data in events if name == "delta") == want
    assert len({json.loads(parse(reply.content)[-1][1])["appliance"]["request_id"] for reply in replies}) == 20


# Hostile bodies and heads


@pytest.mark.parametrize("target", ["POST /v1/ask", "PUT /v1/collections/c/documents?source=x", "POST /nope"])
@pytest.mark.parametrize("length", [b"Content-Length: %d" % (10 << 30), b"Transfer-Encoding: chunked"])
async def test_ten_gigabytes_are_refused_unread_and_the_reply_arrives(
    data_dir: Path, target: str, length: bytes
) -> None:
    backend = scripted(data_dir)
    before = psutil.Process().memory_info().rss
    async with serving(backend) as server:
        reader, writer = await connect(server)
        writer.write(target.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")

        async def flood() -> None:
            piece = b" " * (1 << 16)
            with contextlib.suppress(ConnectionError):
                for _ in range(10 << 14):
                    writer.write(piece if b"Length" in length else b"10000\r\n" + piece + b"\r\n")
                    await writer.drain()

        flooding = asyncio.create_task(flood())
        head = await reader.readuntil(b"\r\n\r\n")
        error = json.loads(await reader.readuntil(b"}}"))["error"]
        assert head.split()[1] == (b"404" if "nope" in target else b"413")
        assert error["code"] == ("not_found" if "nope" in target else "too_large")
        assert b"connection: close" in head
        # The client is let finish what it has begun to send, for a moment; then it is cut off.
        await asyncio.wait_for(flooding, 10)
        writer.close()
    assert backend.ingested == []
    assert psutil.Process().memory_info().rss - before < 64 << 20


async def test_a_client_that_sends_all_before_it_reads_gets_its_refusal(data_dir: Path) -> None:
    async with serving(scripted(data_dir)) as server, client(server) as http:
        reply = await http.put("/v1/collections/c/documents?source=x", content=b"x" * (4 * MAX_FILE_BYTES))
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "too_large")


async def test_a_trickling_body_is_given_up(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_PATIENCE_S", 0.3)

    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield b" "
            await asyncio.sleep(0.05)

    async with serving(scripted(data_dir)) as server, client(server) as http:
        reply = await http.post("/v1/ask", content=trickle(), headers={"Content-Length": "12"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (408, "request_timeout")


async def test_a_steady_upload_outlives_the_patience(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_PATIENCE_S", 0.2)

    async def steady() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b"x" * 4096
            await asyncio.sleep(0.05)

    backend = scripted(data_dir)
    async with serving(backend) as server, client(server) as http:
        assert (await http.put("/v1/collections/c/documents?source=x", content=steady())).status_code == 200
    assert len(backend.ingested[0][3]) == 8 * 4096 <= MAX_FILE_BYTES


async def test_heads_without_end(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_PATIENCE_S", 0.5)
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    async with serving(scripted(data_dir)) as server:
        many = b"".join(b"x-%d: y\r\n" % n for n in range(10_000))
        refusal(await raw(server, start + many + b"\r\n"), 431, "headers_too_large")
        refusal(await raw(server, start + b"x: " + b"y" * (1 << 20) + b"\r\n\r\n"), 431, "headers_too_large")
        refusal(await raw(server, b"GET /" + b"y" * (1 << 20) + b" HTTP/1.1\r\n\r\n"), 431, "headers_too_large")
        # Not even one header is whole: the parser hands nothing on, and keeps it all.
        refusal(await raw(server, start + b"x: " + b"y" * (8 << 20)), 431, "headers_too_large")
        refusal(await raw(server, b"\x16\x03\x01 not http\r\n\r\n"), 400, "malformed_request")
        refusal(await raw(server, start), 408, "request_timeout")
        assert await raw(server, b"") == b""  # a silent client is let go without a word
        async with client(server) as http:
            assert (await http.get("/healthz", headers={f"x-{n}": "y" for n in range(80)})).status_code == 200


async def test_a_trickling_head_is_given_up(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_PATIENCE_S", 0.3)
    async with serving(scripted(data_dir)) as server:
        reader, writer = await connect(server)

        async def trickle() -> None:
            for byte in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" * 5:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(10):
            refusal(await reader.read(), 408, "request_timeout")
        trickling.cancel()
        writer.close()


async def test_a_listed_page_asks_and_sees_its_errors_too(data_dir: Path) -> None:
    page = {"Origin": "https://intranet.example"}
    backend = scripted(data_dir, cors_origins=["https://intranet.example"])
    async with serving(backend) as server, client(server) as http:
        asking = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        preflight = await http.options("/v1/ask", headers=asking)
        assert (preflight.status_code, preflight.content) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == page["Origin"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
        for sent, status in ((ASK, 200), ({}, 400)):
            reply = await http.post("/v1/ask", json=sent, headers=page)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (status, page["Origin"])
        other = {**asking, "Origin": "https://evil.example"}
        assert "access-control-allow-origin" not in (await http.options("/v1/ask", headers=other)).headers
        assert (await http.post("/v1/ask", json=ASK, headers={"Origin": "https://evil.example"})).status_code == 403
    assert len(backend.asked) == 1


async def test_a_kept_connection_may_be_idle_longer_than_a_head_may_take(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_PATIENCE_S", 0.1)
    async with serving(scripted(data_dir)) as server:
        reader, writer = await connect(server)
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"alive" in await reader.readuntil(b"}")
            await asyncio.sleep(0.3)
        writer.close()


@pytest.mark.parametrize(
    "content",
    [
        b'{"question": "\xff\xfe"}',
        b'{"question": NaN}',
        b'{"question": "x", "appliance": {"deadline_ms": 1e999}}',
        b"[" * 10_000,
        b'{"question": "x", "appliance": {"filters": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}}",
        b"\x00",
        b'"x"',
    ],
)
async def test_bodies_that_are_no_question(data_dir: Path, content: bytes) -> None:
    async with serving(scripted(data_dir)) as server, client(server) as http:
        reply = await http.post("/v1/ask", content=content)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
        assert (await http.get("/healthz")).status_code == 200


async def test_half_an_upload_is_no_document(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = scripted(data_dir)
    async with serving(backend) as server, client(server) as http:
        _, writer = await connect(server)
        target = b"PUT /v1/collections/c/documents?source=x HTTP/1.1\r\n"
        writer.write(target + b"Host: localhost\r\nContent-Length: 99\r\n\r\nthe first bytes")
        await writer.drain()
        assert (await http.get("/healthz")).status_code == 200
        writer.close()
        # Both turns of uploads are free again.
        for _ in range(2):
            assert (await http.put("/v1/collections/c/documents?source=y", content=b"y")).status_code == 200
    assert [source for _, source, _, _ in backend.ingested] == ["y", "y"]
    assert "Traceback" not in caplog.text


# Stopping


async def test_a_stream_may_end_within_the_grace(data_dir: Path) -> None:
    backend = scripted(data_dir, "a", 0.5, "b", shutdown_grace_s=20)
    async with serving(backend) as server, client(server) as http:
        asking = asyncio.create_task(http.post("/v1/ask", json=ASK))
        await backend.begun.wait()
        began = time.monotonic()
        server.stop()
        reply = await asking
        assert [name for name, _ in parse(reply.content)] == ["sources", "delta", "delta", "done"]
        with pytest.raises(httpx.ConnectError):
            async with client(server) as late:
                await late.get("/readyz")
    assert time.monotonic() - began < 5, "stopping took longer than the stream"


async def test_what_outlasts_the_grace_is_told_to_retry(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = scripted(data_dir, "a", 30.0, shutdown_grace_s=0.3)
    async with serving(backend) as server, client(server) as http:
        streamed = asyncio.create_task(http.post("/v1/ask", json=ASK))
        whole = asyncio.create_task(http.post("/v1/ask", json={**ASK, "stream": False}))
        head = b"PUT /v1/collections/c/documents?source=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
        uploading = asyncio.create_task(raw(server, head + b"the first bytes of 99"))
        async with asyncio.timeout(10):
            while len(backend.asked) < 2:  # noqa: ASYNC110  # the backend has no event for its second question
                await asyncio.sleep(0.01)
        server.stop()
        *_, (name, data) = parse((await streamed).content)
        assert name == "error"
        assert "stopping" in json.loads(data)["error"]["message"]
        assert "Retry" in json.loads(data)["error"]["message"]
        assert ((await whole).status_code, (await whole).json()["error"]["code"]) == (503, "unavailable")
        assert "retry-after" in (await whole).headers
        refusal(await uploading, 503, "unavailable")
    assert backend.closed.is_set()
    assert "Traceback" not in caplog.text


async def test_a_client_that_does_not_read_does_not_hold_the_stop_up(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = scripted(data_dir, *["x" * 100_000] * 1000, shutdown_grace_s=0.2)
    async with serving(backend) as server:
        reader, writer = await connect(server)
        content = json.dumps(ASK).encode()
        writer.write(b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        await reader.readexactly(15)
        await asyncio.sleep(0.2)  # buffers fill up
        assert backend.made < 1000
        began = time.monotonic()
        server.stop()
    assert time.monotonic() - began < 5
    assert backend.closed.is_set()
    assert "Traceback" not in caplog.text
    writer.close()


PROGRAM = """
import asyncio, logging, sys
import uvloop
from pathlib import Path
from appliance.http.app import create_app
from appliance.http.server import Server
from tests.integration.http.serving import settings
from tests.unit.http.backend import ScriptedBackend

async def main():
    logging.basicConfig(level=logging.INFO)
    configured = settings(Path(sys.argv[1]), shutdown_grace_s=float(sys.argv[2]))
    with Server.bind(configured) as server:
        print(server.url, flush=True)
        await server.run(create_app(ScriptedBackend("a", 30.0, configured=configured)))
    print("ended", flush=True)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


@pytest.fixture
def started(data_dir: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("grace_s", "signals"),
    [(0.5, [signal.SIGTERM]), (0.5, [signal.SIGINT]), (30.0, [signal.SIGTERM, signal.SIGTERM])],
)
async def test_a_signal_ends_the_process_cleanly_in_the_middle_of_a_stream(
    data_dir: Path, started: list[subprocess.Popen[str]], grace_s: float, signals: list[signal.Signals]
) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220  # starting one does not block
        [sys.executable, "-c", PROGRAM, str(data_dir), str(grace_s)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    assert process.stdout is not None
    url = await asyncio.to_thread(process.stdout.readline)
    received = b""
    async with (
        httpx.AsyncClient(timeout=30) as http,
        http.stream("POST", f"{url.strip()}/v1/ask", json=ASK) as reply,
    ):
        async for piece in reply.aiter_bytes():
            if not received:
                for number in signals:
                    process.send_signal(number)
                    await asyncio.sleep(0.1)
            received += piece
    assert [name for name, _ in parse(received)] == ["sources", "delta", "error"]
    output, log = await asyncio.to_thread(process.communicate, timeout=20)
    assert output == "ended\n"
    assert process.returncode == 0
    assert "Traceback" not in log
    assert not (data_dir / "appliance.sock").exists()
