"""What the service manager is told, when, over a real socket; time is the test's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from appliance.cli import supervised
from appliance.cli.supervised import Pulse, Supervision, api_answers, difference, summary
from appliance.config import Settings
from appliance.errors import BadSetting
from appliance.http.lifecycle import Lifecycle
from appliance.http.ports import ComponentState
from appliance.systemd import Notifier

READY = ComponentState("ready")
LOADING = ComponentState("loading", "restarting")
PERIOD_S = 60.0
HEARTBEAT_S = 20.0


class Node:
    """A service of which the test says how it is, and all that its manager was told."""

    def __init__(self, manager: socket.socket, path: Path, period_s: float = PERIOD_S) -> None:
        self.parts: dict[str, ComponentState] = {"store": READY, "engine": READY}
        self.sign: object | None = object()
        self.now = 1000.0
        self.lifecycle = Lifecycle(loading=True)
        self.reread: Callable[[], str] = lambda: ""
        self._manager = manager
        environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": str(int(period_s * 1e6))}
        self.supervision = Supervision(
            Notifier(environ),
            self,
            self.lifecycle,
            path=path,
            heartbeat_timeout_s=HEARTBEAT_S,
            reread=lambda: self.reread(),
            clock=lambda: self.now,
        )

    def health(self) -> Mapping[str, ComponentState]:
        return self.parts

    def pulse(self) -> object | None:
        return self.sign

    def told(self) -> list[str]:
        lines: list[str] = []
        try:
            while True:
                lines += self._manager.recv(8192).decode().split("\n")
        except BlockingIOError:
            return lines

    async def until(self, line: str) -> list[str]:
        """All that is told up to `line`."""
        lines: list[str] = []
        async with asyncio.timeout(10):
            while line not in lines:
                await asyncio.sleep(0.001)
                lines += self.told()
        return lines


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Path]:
    """A socket on which somebody says 200."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "api")
    async with server:
        yield tmp_path / "api"


@pytest.fixture
def node(manager: socket.socket, api: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(supervised, "TURN_S", 0.001)
    return Node(manager, api)


async def stopped(node: Node, running: asyncio.Task[None]) -> list[str]:
    node.lifecycle.stopping = True
    await running
    return node.told()


async def test_a_start_tells_progress_then_readiness_once_then_the_stop(node: Node) -> None:
    node.parts["engine"] = LOADING
    running = asyncio.create_task(node.supervision.run())
    assert await node.until("EXTEND_TIMEOUT_USEC=60000000") == [
        "STATUS=Loading models and indexes",
        "EXTEND_TIMEOUT_USEC=60000000",
    ]
    node.lifecycle.loaded()
    assert await node.until("STATUS=Not ready: engine: restarting") == ["STATUS=Not ready: engine: restarting"]
    node.parts["engine"] = READY
    said = await node.until("WATCHDOG=1")
    assert said == ["STATUS=Ready for questions", "READY=1", "WATCHDOG=1"]
    node.parts["engine"] = ComponentState("degraded", "on the CPU")
    assert await node.until("STATUS=Ready for questions; engine: on the CPU")
    last = await stopped(node, running)
    assert last[-2:] == ["STOPPING=1", "STATUS=Stopping: requests under way are finished"]
    assert "READY=1" not in last


async def test_a_start_that_failed_asks_for_no_more_time(node: Node) -> None:
    node.lifecycle.loaded()
    node.parts["engine"] = ComponentState("failed", "no such model")
    for _ in range(10):
        node.supervision.tell_state()
        node.now += 30
    assert node.told() == ["STATUS=Not ready: engine: no such model"]


async def test_more_time_is_asked_for_before_the_last_runs_out(node: Node) -> None:
    for _ in range(121):
        node.supervision.tell_state()
        node.now += 1
    assert node.told().count("EXTEND_TIMEOUT_USEC=60000000") == 8


async def fed(node: Node) -> bool:
    """Whether one turn feeds the watchdog."""
    node.told()
    await node.supervision._feed_watchdog()
    return node.told() == ["WATCHDOG=1"]


async def test_the_watchdog_is_fed_three_times_in_its_time_and_only_when_ready(node: Node) -> None:
    assert not await fed(node), "nobody watches a start"
    node.lifecycle.loaded()
    node.supervision.tell_state()
    assert await fed(node)
    node.now += PERIOD_S / 3 - 1
    assert not await fed(node)
    node.now += 2
    assert await fed(node)


async def test_an_engine_without_signs_of_life_starves_the_watchdog_until_it_gives_one(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.lifecycle.loaded()
    node.supervision.tell_state()
    assert await fed(node)
    node.now += 3 * HEARTBEAT_S + 1
    assert not await fed(node)
    assert not await fed(node)
    assert [record.message for record in caplog.records] == [
        "the watchdog is not told that all is well: the engine gives no sign of life, and is not replaced"
    ]
    node.sign = object()
    assert await fed(node)


async def test_an_engine_that_is_known_to_be_down_does_not_starve_the_watchdog(node: Node) -> None:
    node.lifecycle.loaded()
    node.supervision.tell_state()
    node.sign = None
    for _ in range(10):
        assert await fed(node)
        node.now += PERIOD_S


async def test_a_service_that_does_not_answer_starves_the_watchdog(manager: socket.socket, tmp_path: Path) -> None:
    left = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the one who asks has lost patience
        writer.close()
        left.set()

    path = tmp_path / "hung"
    node = Node(manager, path, period_s=0.3)
    node.lifecycle.loaded()
    node.supervision.tell_state()
    assert not await fed(node), "nobody listens"
    server = await asyncio.start_unix_server(hold, path)
    async with server:
        assert not await fed(node), "nobody answers"
        await left.wait()


@pytest.mark.parametrize("reply", [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"nonsense", b""])
async def test_only_a_200_is_an_answer(tmp_path: Path, reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "s"):
        assert not await api_answers(tmp_path / "s", 5)


async def test_a_reload_is_told_from_beginning_to_end(node: Node) -> None:
    node.lifecycle.loaded()
    running = asyncio.create_task(node.supervision.run())
    await node.until("READY=1")
    node.parts["engine"] = LOADING  # a reload ends all the same
    node.reread = lambda: "; a restart is needed for changed settings: server.port"
    node.supervision.reload()
    said = [line for line in await node.until("READY=1") if not line.startswith(("STATUS=Not", "WATCHDOG"))]
    assert said[0] == "RELOADING=1"
    assert said[1].startswith("MONOTONIC_USEC=")
    node.parts["engine"] = READY
    await node.until("STATUS=Ready for questions; a restart is needed for changed settings: server.port")
    await stopped(node, running)


async def test_wrong_settings_are_told_and_change_nothing(node: Node) -> None:
    def wrong() -> str:
        raise BadSetting("Unknown setting server.pot.", remedy="Did you mean server.port?")

    node.reread = wrong
    node.lifecycle.loaded()
    running = asyncio.create_task(node.supervision.run())
    await node.until("READY=1")
    node.supervision.reload()
    wrong_line = "; the settings in the file are wrong: Unknown setting server.pot. Did you mean server.port?"
    said = await node.until("READY=1")
    assert said.index("RELOADING=1") < said.index(f"STATUS=Ready for questions{wrong_line}")
    await stopped(node, running)


async def test_a_reload_during_the_start_does_not_say_ready(node: Node) -> None:
    node.supervision.reload()
    running = asyncio.create_task(node.supervision.run())
    await node.until("EXTEND_TIMEOUT_USEC=60000000")
    await asyncio.sleep(0.02)
    said = await stopped(node, running)
    assert not {"READY=1", "RELOADING=1"} & set(said)


def test_only_settings_that_differ_need_a_restart() -> None:
    settings = Settings()
    assert difference(settings, Settings()) == ""
    changed = replace(settings, data_dir="/elsewhere", server=replace(settings.server, port=9000))
    assert difference(settings, changed) == "; a restart is needed for changed settings: data_dir, server.port"


def test_a_summary_names_what_is_missing_before_what_is_worse() -> None:
    worse = ComponentState("degraded", "on the CPU")
    assert summary({"store": READY, "engine": worse}) == "Ready for questions; engine: on the CPU"
    assert summary({"store": ComponentState("loading"), "engine": worse}) == "Not ready: store: loading"


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from(["new", "same", "down"])), max_size=30))
def test_a_pulse_beats_while_its_last_change_is_recent(turns: list[tuple[float, str]]) -> None:
    now = changed = 0.0
    pulse = Pulse(60.0, lambda: now)
    signs: list[object | None] = [None]
    for passed, kind in turns:
        now += passed
        signs.append({"new": object(), "same": signs[-1], "down": None}[kind])
        if signs[-1] is None or signs[-1] is not signs[-2]:
            changed = now
        assert pulse.beats(signs[-1]) == (now - changed <= 60.0)
