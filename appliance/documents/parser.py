"""Owns the program's side of the parse worker: start it, ask it, time it, replace it when it dies.

Must not know formats.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO

from appliance.config import DocumentSettings
from appliance.documents.messages import Limits, ParseReply, ParseRequest, TooLong, receive, send, too_much_text
from appliance.documents.model import Parsed
from appliance.errors import UnreadableDocument
from appliance.telemetry import past

_FILES_MOST = 200  # then the worker is replaced: what a library leaks goes with it
_ENVELOPE_BYTES = 1 << 10  # of a reply, beside its text
_STOP_TIMEOUT_S = 2.0
_LAST_WORDS_BYTES = 16 << 10
_OUT_OF_MEMORY = ("MemoryError", "memory allocation of", "std::bad_alloc")  # Python's, Rust's, C++'s


def worker_command() -> list[str]:
    """The command that runs a parse worker, from source and in a frozen program alike."""
    if getattr(sys, "frozen", False):
        return [sys.executable, "parse-worker"]
    return [sys.executable, "-m", "appliance", "parse-worker"]


class Parser:
    """Reads documents in a process of its own; for one thread at a time."""

    def __init__(self, settings: DocumentSettings, command: list[str] | None = None) -> None:
        self._settings = settings
        self._command = command or worker_command()
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._served = 0

    def parse(self, name: str, data: bytes) -> Parsed:
        """Read a document.

        Raises:
            UnreadableDocument: it cannot be read, holds too much text, or reading it took too much time or memory.
        """
        process = self._running()
        self._served += 1
        settings = self._settings
        most = settings.max_text_bytes
        pages = settings.ocr_pages if settings.ocr == "auto" else 0
        page_s = settings.ocr_page_timeout_s
        limits = Limits(settings.parse_memory_bytes, settings.parse_timeout_s, most, pages, page_s)
        clock = _Clock(process, settings.parse_timeout_s)
        reply: ParseReply | None = None
        try:
            reply = _exchange(process, ParseRequest(name, data, limits), most + _ENVELOPE_BYTES)
            while reply is not None and reply.more_time and pages > 0:
                pages -= 1
                clock.add(page_s)
                reply = _next(process, most + _ENVELOPE_BYTES)
        except TooLong:
            self._kill()
            raise UnreadableDocument(too_much_text(most)) from None
        except ValueError as error:
            self._kill()
            raise UnreadableDocument(
                f"The program that reads it gave an answer that makes no sense: {error}."
            ) from None
        finally:
            late = clock.stop()
        if reply is None:
            raise UnreadableDocument(self._obituary(process, late))
        if late or reply.more_time:
            self._kill()
        if reply.parsed is None:
            raise UnreadableDocument(reply.failure or "It could not be read.")
        past("parse.worker", reply.read_ms, {"process.pid": process.pid})
        return reply.parsed

    def interrupt(self) -> None:
        """Kill the worker under a `parse` that runs in another thread; that ends with `UnreadableDocument`."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _kill(self) -> None:
        """End a worker that may still be writing."""
        self.interrupt()
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None or self._served >= _FILES_MOST:
            self.close()
            self._served = 0
            # What a dying worker says; a file, since nobody reads along.
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr
            )
        return self._process

    def _obituary(self, process: subprocess.Popen[bytes], late: bool) -> str:
        """Why the worker gave no reply; frees it."""
        _end(process)
        code = process.returncode
        said = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            said = self._stderr.read()[-_LAST_WORDS_BYTES:].decode("utf-8", "replace").strip()
        self.close()
        if late or code == -signal.SIGXCPU:
            return f"Reading it took longer than {self._settings.parse_timeout_s:g} seconds."
        if any(word in said for word in _OUT_OF_MEMORY):
            return "Reading it needs more memory than is allowed."
        if code < 0:
            return f"The program that reads it crashed ({signal.Signals(-code).name})."
        last_words = said.splitlines()[-1:]
        return " ".join((f"The program that reads it ended with code {code}.", *last_words))


class _Clock:
    """Kills a process when its time is over. For the thread that waits for the process."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self._process = process
        self._late = threading.Event()
        self._deadline = time.monotonic() + seconds
        self._start()

    def add(self, seconds: float) -> None:
        """Give it more time."""
        if not self.stop():
            self._deadline += seconds
            self._start()

    def stop(self) -> bool:
        """End the count; whether the process was killed."""
        self._timer.cancel()
        # It may be under way: the kill must not hit the worker while that reads the next document.
        self._timer.join()
        return self._late.is_set()

    def _start(self) -> None:
        self._timer = threading.Timer(max(self._deadline - time.monotonic(), 0), self._end_it)
        self._timer.daemon = True
        self._timer.start()

    def _end_it(self) -> None:
        self._late.set()
        self._process.kill()


def _exchange(process: subprocess.Popen[bytes], request: ParseRequest, most_bytes: int) -> ParseReply | None:
    assert process.stdin is not None  # noqa: S101 - pipes were asked for
    try:
        send(process.stdin, request)
    except OSError:
        return None
    return _next(process, most_bytes)


def _next(process: subprocess.Popen[bytes], most_bytes: int) -> ParseReply | None:
    assert process.stdout is not None  # noqa: S101
    try:
        return receive(process.stdout, ParseReply, most_bytes)
    except OSError:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # the rest of a request that nobody reads any more
                pipe.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
