"""Owns starting the real program in tests: the same command line that people use, with its own data directory.

Must not know any test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import shared_models_dir

START_TIMEOUT_S = 90.0
TEST_PROGRAM = os.environ.get("TEST_PROGRAM", "")  # a frozen program to be tested instead of this checkout


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    """The environment of the program under test: its own data directory, the shared models, few threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    return {
        **kept,
        "APPLIANCE_DATA_DIR": str(data_dir),
        "APPLIANCE_MODELS_DIR": str(shared_models_dir()),
        # The tests' own processes use the other core; llama.cpp's threads wait for each other busily.
        "APPLIANCE_ENGINE_THREADS": "1",
        "COLUMNS": "200",
        **more,
    }


def command(*arguments: str) -> list[str]:
    """The command line of the program as it is in this checkout, or of the frozen one."""
    if TEST_PROGRAM:
        return [str(Path(TEST_PROGRAM).absolute()), *arguments]
    return [sys.executable, "-m", "appliance", *arguments]


def run(data_dir: Path, *arguments: str, prefix: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*prefix, *command(*arguments)],
        env=environment(data_dir, **more),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_json(data_dir: Path, *arguments: str) -> Any:
    """Run one command with `--json`; it must succeed."""
    done = run(data_dir, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Service:
    """A running `appliance serve`."""

    def __init__(self, data_dir: Path, log: Path, **more: str) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command("serve"),
                env=environment(data_dir, APPLIANCE_PORT=str(self.port), **more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Seconds until `/readyz` says 200. Fails with the service's log when that takes too long."""
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200:
                    return time.monotonic() - began
            time.sleep(0.05)
        raise AssertionError(f"not ready in {timeout_s} s:\n{self.log.read_text()}")

    def children(self) -> dict[str, int]:
        """Process ids of the service's children by the name of their command."""
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        found: dict[str, int] = {}
        for line in listed.stdout.splitlines():
            pid, _, arguments = line.strip().partition(" ")
            for name in ("engine", "parse-worker"):
                if f" {name}" in arguments:
                    found[name] = int(pid)
        return found

    def stop(self) -> int:
        """Stop it as systemd would; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


@contextlib.contextmanager
def serving(data_dir: Path, log: Path, **more: str) -> Iterator[Service]:
    """A ready service for the block; killed at its end if it does not stop."""
    service = Service(data_dir, log, **more)
    try:
        service.wait_ready()
        yield service
    finally:
        if service.process.poll() is None:
            try:
                service.stop()
            except subprocess.TimeoutExpired:
                service.process.kill()
                service.process.wait()


def sse(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Events of a stream as (name, data); the name is "message" where none is given."""
    name, data = "message", []
    for line in lines:
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].lstrip(" "))
        elif not line and data:
            text = "\n".join(data)
            yield name, text if text == "[DONE]" else json.loads(text)
            name, data = "message", []
