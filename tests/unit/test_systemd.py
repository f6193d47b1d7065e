"""What the service manager is sent, over real sockets, and the sockets that it gives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.systemd import Notifier, listeners


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        yield listener


def told(manager: socket.socket) -> list[str]:
    return manager.recv(8192).decode().split("\n")


def test_fields_arrive_as_one_message_of_lines(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    assert notifier.listening
    assert notifier.tell(READY=1, STATUS="Bereit: 就绪")
    assert told(manager) == ["READY=1", "STATUS=Bereit: 就绪"]


@pytest.mark.parametrize("text", ["first\nREADY=1", "first\r\nREADY=1", "first\u2028READY=1"])
def test_a_value_cannot_say_a_second_thing(manager: socket.socket, text: str) -> None:
    assert Notifier({"NOTIFY_SOCKET": manager.getsockname()}).tell(STATUS=text)
    assert told(manager) == ["STATUS=first"]


def test_a_message_is_never_too_long_to_be_read(manager: socket.socket) -> None:
    assert Notifier({"NOTIFY_SOCKET": manager.getsockname()}).tell(STATUS="\U0001f4d6" * 10_000, READY=1)
    message = manager.recv(1 << 20)
    assert len(message) <= 4096
    assert message.endswith(b"\nREADY=1")


def test_an_abstract_socket_is_found() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # the kernel gives it an abstract name
        listener.settimeout(5)
        assert Notifier({"NOTIFY_SOCKET": "@" + listener.getsockname()[1:].decode()}).tell(READY=1)
        assert told(listener) == ["READY=1"]


def test_what_is_not_taken_is_told_apart(manager: socket.socket, tmp_path: Path) -> None:
    assert not Notifier({}).listening
    assert not Notifier({}).tell(READY=1)
    assert not Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).tell(READY=1)
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    sent = 0
    while notifier.tell(STATUS="x"):  # until the queue of who does not read is full
        sent += 1
    assert sent
    told(manager)
    assert notifier.tell(STATUS="y")


@pytest.mark.parametrize(
    ("environ", "period_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdogs_time(environ: dict[str, str], period_s: float | None) -> None:
    assert Notifier(environ).watchdog_s == period_s
    assert not environ, "children would inherit it"


SERVICE = """
import os, socket
from appliance.systemd import listeners
os.environ["LISTEN_PID"] = str(os.getpid())
found = listeners()
print([(one.family.name, one.getsockname(), one.get_inheritable()) for one in found], "LISTEN_FDS" in os.environ)
print(listeners())
"""


def test_given_sockets_are_taken_once_and_not_left_to_children(tmp_path: Path) -> None:
    """As the manager does it: the sockets are the numbers 3 and 4 of a new process."""
    path = str(tmp_path / "s")
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        script = 'exec 3<&"$1" 4<&"$2"; shift 2; exec "$@"'
        numbers = (port.fileno(), unix.fileno())
        done = subprocess.run(
            ["bash", "-c", script, "bash", *map(str, numbers), sys.executable, "-c", SERVICE],
            pass_fds=numbers,
            env=os.environ | {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        expected = [("AF_INET", port.getsockname(), False), ("AF_UNIX", path, False)]
        assert done.stdout.splitlines() == [f"{expected} False", "[]"]


@pytest.mark.parametrize(
    "environ", [{}, {"LISTEN_FDS": "2", "LISTEN_PID": "1"}, {"LISTEN_FDS": "x", "LISTEN_PID": str(os.getpid())}]
)
def test_sockets_of_somebody_else_are_left_alone(environ: dict[str, str]) -> None:
    assert listeners(environ) == []
    assert not environ
