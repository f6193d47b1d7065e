"""TLS from files: it works, and what is wrong with the files is said before anything is served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from appliance.errors import BadSetting
from appliance.http import server as server_module
from appliance.http.server import Server
from appliance.http.tls import server_context
from tests.integration.http.serving import serving, settings
from tests.unit.http.backend import ScriptedBackend

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")


class Files(NamedTuple):
    certificate: str
    key: str


def issue(authority: trustme.CA, folder: Path, *, begins: timedelta = -DAY, ends: timedelta = 90 * DAY) -> Files:
    now = datetime.now(UTC)
    made = authority.issue_cert("127.0.0.1", "localhost", not_before=now + begins, not_after=now + ends)
    files = Files(str(folder / "chain.pem"), str(folder / "key.pem"))
    made.private_key_pem.write_to_path(files.key)
    for blob in made.cert_chain_pems:
        blob.write_to_path(files.certificate, append=True)
    return files


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_the_port_speaks_tls_and_the_socket_does_not(authority: trustme.CA, data_dir: Path) -> None:
    files = issue(authority, data_dir)
    backend = ScriptedBackend(configured=settings(data_dir, tls_certificate=files.certificate, tls_key=files.key))
    transport = httpx.AsyncHTTPTransport(uds=str(data_dir / "appliance.sock"))
    async with (
        serving(backend) as server,
        httpx.AsyncClient(base_url=server.url, verify=trusting(authority)) as http,
        httpx.AsyncClient(base_url="http://localhost", transport=transport) as local,
    ):
        assert server.url.startswith("https://127.0.0.1:")
        streamed = await http.post("/v1/ask", json={"question": "x"}, headers={"Origin": server.url})
        assert streamed.text.count("event: ") == 6
        assert (await local.get("/readyz")).status_code == 200
        async with httpx.AsyncClient(base_url=server.url.replace("https", "http")) as plain:
            with pytest.raises(httpx.TransportError):
                await plain.get("/healthz")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(old)
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        async with httpx.AsyncClient(base_url=server.url, verify=old) as outdated:
            with pytest.raises(httpx.ConnectError):
                await outdated.get("/healthz")


async def test_a_handshake_that_does_not_go_on_is_given_up(
    authority: trustme.CA, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_PATIENCE_S", 0.2)
    files = issue(authority, data_dir)
    backend = ScriptedBackend(configured=settings(data_dir, tls_certificate=files.certificate, tls_key=files.key))
    async with serving(backend) as server, asyncio.timeout(10):
        host, port = server.url.removeprefix("https://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01\x02\x00")  # the beginning of a hello
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        async with httpx.AsyncClient(base_url=server.url, verify=trusting(authority)) as http:
            assert (await http.get("/healthz")).status_code == 200


def _made_a_folder(key: str) -> None:
    Path(key).unlink()
    Path(key).mkdir()


def _encrypted(key: str) -> None:
    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"secret")
    pkcs8 = serialization.PrivateFormat.PKCS8
    Path(key).write_bytes(loaded.private_bytes(serialization.Encoding.PEM, pkcs8, how))


@pytest.mark.parametrize(
    ("damage", "says", "param"),
    [
        (lambda f: Path(f.certificate).unlink(), "cannot be read: No such file", "server.tls_certificate"),
        (lambda f: Path(f.key).unlink(), "cannot be read: No such file", "server.tls_key"),
        (lambda f: _made_a_folder(f.key), "cannot be read: Is a directory", "server.tls_key"),
        (lambda f: Path(f.certificate).write_bytes(b"\x00" * 99), "PEM files", "server.tls_certificate"),
        (lambda f: Path(f.key).write_text("no key"), "PEM files", "server.tls_certificate"),
        (lambda f: Path(f.certificate).write_bytes(Path(f.key).read_bytes()), "PEM files", "server.tls_certificate"),
        (lambda f: _encrypted(f.key), "encrypted", "server.tls_key"),
    ],
)
def test_files_that_are_no_certificate_and_key(
    authority: trustme.CA, tmp_path: Path, damage: Callable[[Files], object], says: str, param: str
) -> None:
    files = issue(authority, tmp_path)
    damage(files)
    with pytest.raises(BadSetting, match=says) as caught:
        server_context(*files)
    assert caught.value.param == param


def test_a_key_of_another_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, other = issue(authority, tmp_path), issue(authority, tmp_path / "other")
    with pytest.raises(BadSetting, match="does not belong"):
        server_context(one.certificate, other.key)


def test_one_without_the_other(tmp_path: Path) -> None:
    for given in (("x", ""), ("", "x")):
        with pytest.raises(BadSetting, match="TLS needs both"):
            server_context(*given)
    assert server_context("", "") is None


def test_dates(authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for name, begins, ends, says in (
        ("good", -DAY, 90 * DAY, ""),
        ("soon", -DAY, 3 * DAY, "expires at"),
        ("later", DAY, 90 * DAY, "is the clock right?"),
    ):
        (tmp_path / name).mkdir()
        caplog.clear()
        assert server_context(*issue(authority, tmp_path / name, begins=begins, ends=ends)) is not None
        assert says in caplog.text
        assert bool(says) == bool(caplog.text)
    (tmp_path / "over").mkdir()
    with pytest.raises(BadSetting, match=r"expired at .* GMT\. Renew it"):
        server_context(*issue(authority, tmp_path / "over", begins=-2 * DAY, ends=-DAY))


def test_nothing_is_bound_with_bad_files(data_dir: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        Server.bind(settings(data_dir, tls_certificate="/nowhere/c.pem", tls_key="/nowhere/k.pem"))
    assert list(data_dir.iterdir()) == []
