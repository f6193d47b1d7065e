"""Owns llama-server under test: its process and how it is asked.

Must not know workloads or figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from appliance.errors import Unavailable

from .answers import Answer
from .events import EventReader
from .tokens import Tokenizer
from .workloads import Request

_HOST = "127.0.0.1"
_START_S = 180.0
_STOP_S = 10.0


class Peer:
    """llama-server, asked for token ids by `/completion`, streaming, with its prompt cache.

    Args:
        program: llama-server.
        model: a GGUF file.
        options: how it is started, beside model, address and threads.
        threads: for prompts and for answers.
        tokenizer: of the model.
    """

    def __init__(
        self, program: Path, model: Path, options: tuple[str, ...], threads: int, tokenizer: Tokenizer
    ) -> None:
        self._program = program
        self._arguments = ("-m", str(model), "-t", str(threads), "-tb", str(threads), *options)
        self._tokenizer = tokenizer
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # for as long as this object lives
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """See `Engine`."""
        self._port = _free_port()
        address = ("--host", _HOST, "--port", str(self._port), "--offline", "--no-ui", "-lv", "2")
        self._process = await asyncio.create_subprocess_exec(
            str(self._program),
            *self._arguments,
            *address,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        begin = time.monotonic()
        while not await self._is_ready():
            if self._process.returncode is not None or time.monotonic() - begin > _START_S:
                raise Unavailable(f"llama-server does not start with {' '.join(self._arguments)}: {self._said()}")
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """See `Engine`."""
        self._log.close()
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._process = None

    async def ask(self, request: Request) -> Answer:
        """See `Engine`."""
        prompt = self._tokenizer.prompt(request.prompt)
        body = {
            "prompt": prompt,
            "n_predict": request.max_tokens,
            "stream": True,
            "cache_prompt": True,
            "temperature": 0.0,
            "top_k": 1,
            "ignore_eos": True,
        }
        answer = Answer(request.kind, time.perf_counter(), prompt_tokens=len(prompt))
        last: dict[str, Any] = {}
        events = EventReader()
        async with self._sent("POST", "/completion", msgspec.json.encode(body)) as connection:
            while not events.ended and (data := await connection.receive()):
                moment = time.perf_counter()
                for event in events.feed(data):
                    last = msgspec.json.decode(event)
                    tokens = last.get("tokens", ())
                    if tokens and not last["stop"]:
                        answer.arrivals.append((moment, len(tokens)))
                    answer.text += last.get("content", "")
        timings = last.get("timings")
        if events.status != 200 or not timings:
            told = bytes(events.body).decode(errors="replace") or last
            raise Unavailable(f"llama-server failed with status {events.status}: {told} {self._said()}")
        answer.generated_tokens = timings["predicted_n"]
        answer.cached_tokens = timings["cache_n"]
        answer.drafted_tokens = timings.get("draft_n", 0)
        answer.accepted_tokens = timings.get("draft_n_accepted", 0)
        if answer.generated_tokens != request.max_tokens or last["tokens_evaluated"] != len(prompt):
            told = f"{answer.generated_tokens} tokens after a prompt of {last['tokens_evaluated']}"
            raise Unavailable(
                f"llama-server generated {told}; {request.max_tokens} after {len(prompt)} were asked for."
            )
        return answer

    def _said(self) -> str:
        """The end of its log."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return " / ".join(lines[-3:])

    async def _is_ready(self) -> bool:
        events = EventReader()
        with contextlib.suppress(OSError):
            async with self._sent("GET", "/health") as connection:
                while not events.status and (data := await connection.receive()):
                    events.feed(data)
        return events.status == 200

    @contextlib.asynccontextmanager
    async def _sent(self, method: str, path: str, body: bytes = b"") -> AsyncGenerator[_Connection]:
        head = f"{method} {path} HTTP/1.1\r\nHost: {_HOST}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(_Connection, _HOST, self._port)
        try:
            transport.write(head.encode() + body)
            yield connection
        finally:
            transport.close()


class _Connection(asyncio.Protocol):
    """Received bytes, one piece after the other; b"" when the other side has closed."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def data_received(self, data: bytes) -> None:
        self._pieces.put_nowait(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pieces.put_nowait(b"")

    async def receive(self) -> bytes:
        return await self._pieces.get()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
