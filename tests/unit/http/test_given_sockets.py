"""Sockets that a service manager opened are served on, and left as they are for the next service."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from appliance.config import Settings
from appliance.errors import BadSetting
from appliance.http.server import Server


def test_given_sockets_take_the_place_of_those_in_the_settings(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path / "data"))
    port = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "given"))
    unix.listen()
    with Server.bind(settings, [unix, port]) as server:
        assert server.url == f"http://127.0.0.1:{port.getsockname()[1]}"
        assert server.socket == tmp_path / "given"
        assert not (tmp_path / "data" / "appliance.sock").exists()
    assert port.fileno() == unix.fileno() == -1
    assert (tmp_path / "given").exists(), "the file is the manager's"


def test_what_is_not_given_is_made(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    with (
        socket.create_server(("127.0.0.1", 0)) as port,
        Server.bind(settings, [port]) as server,
    ):
        assert server.socket == tmp_path / "appliance.sock"
        assert server.socket.exists()


def test_a_given_address_beyond_loopback_needs_a_key_too(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as port:  # noqa: S104
        with pytest.raises(BadSetting, match="no API key"):
            Server.bind(Settings(data_dir=str(tmp_path)), [port])
        assert port.fileno() == -1
