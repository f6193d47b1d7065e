"""The addresses: loopback only, one clear sentence when they are taken, a socket that only its user may open."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config import ServerSettings, Settings
from appliance.errors import BadSetting, DataDirBusy
from appliance.http.address import CannotListen, UnixListener, answers, bind_port, is_exposed, require_own, socket_path


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("s")
    assert len(str(folder)) < 80, "the temporary folder's path is too long for a socket"
    yield folder


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.2"])
def test_loopback_addresses(host: str) -> None:
    with bind_port(host, 0) as listener:
        assert listener.getsockname()[1] > 0
        assert not is_exposed(listener)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104
def test_addresses_that_other_machines_reach(host: str) -> None:
    with bind_port(host, 0) as listener:
        assert is_exposed(listener)


@pytest.mark.parametrize("host", ["example.com", "", "*", "127.0.0.1:80", "localhost.", "1"])
def test_names_are_not_looked_up(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("looked a name up"))
    with pytest.raises(BadSetting, match="no address"):
        bind_port(host, 0)


def test_an_address_of_another_machine_is_told() -> None:
    with pytest.raises(CannotListen, match="no such address"):
        bind_port("192.0.2.1", 0)


def test_a_port_in_use_is_told_in_one_sentence() -> None:
    with bind_port("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"Port {port} on 127.0.0.1 is in use") as caught:
            bind_port("127.0.0.1", port)
    assert caught.value.exit_code == 1


def test_the_socket_is_its_users_alone_and_goes_with_its_listener(short: Path) -> None:
    path = short / "new" / "a.sock"
    listener = UnixListener(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert answers(path)
    listener.close()
    assert not path.exists()
    assert not answers(path)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_has_the_mode_that_is_set_whatever_the_umask(short: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        with contextlib.closing(UnixListener(short / "a.sock", mode)):
            assert stat.S_IMODE((short / "a.sock").stat().st_mode) == mode
    finally:
        os.umask(before)


def test_a_socket_that_anyone_could_replace_is_not_made(short: Path) -> None:
    folder = short / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(CannotListen, match="Anyone may replace"):
        UnixListener(folder / "a.sock")
    assert list(folder.iterdir()) == []
    folder.chmod(0o1777)  # as /tmp: others make files there, and replace their own alone
    with contextlib.closing(UnixListener(folder / "a.sock")):
        assert answers(folder / "a.sock")


def test_a_socket_of_somebody_else_is_not_talked_to_where_anyone_makes_files(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = short / "open"
    folder.mkdir()
    path = folder / "a.sock"
    with contextlib.closing(UnixListener(path)):
        me = os.getuid()
        made_by = path.stat().st_uid
        monkeypatch.setattr("os.getuid", lambda: me + 1)
        require_own(path)  # a service of another user, in a folder that is that user's
        folder.chmod(0o1777)
        if made_by == 0:
            require_own(path)
            return  # root's is nobody's trap
        with pytest.raises(CannotListen, match="another user"):
            require_own(path)


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(short: Path) -> None:
    path = short / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with contextlib.closing(UnixListener(path)):
        with pytest.raises(DataDirBusy, match="already answers"):
            UnixListener(path)
        assert answers(path)


def test_a_file_in_the_sockets_place_is_kept(short: Path) -> None:
    path = short / "a.sock"
    path.write_text("precious")
    with pytest.raises(CannotListen, match="not a socket"):
        UnixListener(path)
    assert path.read_text() == "precious"


def test_closing_leaves_the_socket_of_a_successor(short: Path) -> None:
    path = short / "a.sock"
    old = UnixListener(path)
    path.unlink()
    with contextlib.closing(UnixListener(path)):
        old.close()
        assert answers(path)


def test_a_long_data_directory_gets_a_short_socket_of_its_own(monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    one, two = (Settings(data_dir=f"/srv/{'d' * 120}/{name}") for name in ("one", "two"))
    assert socket_path(one) == socket_path(one) != socket_path(two)
    assert socket_path(one).parent == short
    assert socket_path(Settings(data_dir="/srv/data")) == Path("/srv/data/appliance.sock")
    with contextlib.closing(UnixListener(socket_path(one))):
        assert answers(socket_path(one))


def test_a_folder_of_somebody_else_in_the_shared_place_is_not_used(
    monkeypatch: pytest.MonkeyPatch, short: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(short))
    path = socket_path(Settings(data_dir="/srv/" + "d" * 120))
    path.parent.mkdir()
    monkeypatch.setattr("os.getuid", lambda: path.parent.stat().st_uid + 1)
    foreign = socket_path(Settings(data_dir="/srv/" + "d" * 120))
    foreign.parent.mkdir()
    with pytest.raises(CannotListen, match="somebody else"):
        UnixListener(foreign)
    assert not foreign.exists()


def test_a_long_socket_setting_is_refused() -> None:
    named = Settings(data_dir="/srv", server=ServerSettings(socket="/srv/" + "s" * 120))
    with pytest.raises(BadSetting, match="100 bytes"):
        socket_path(named)
