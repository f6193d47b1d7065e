"""What a parser may do to others: no network, no flood, no kill that hits the next document."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from appliance.config import DocumentSettings
from appliance.documents.messages import Limits, ParseReply, ParseRequest, receive, send
from appliance.documents.parser import Parser, worker_command
from appliance.errors import UnreadableDocument

HOSTILE = """
import asyncio, ctypes, os, socket, struct, subprocess, sys, time, urllib.request
import appliance.documents.worker as worker
from appliance.documents.messages import ParseReply, send
from appliance.documents.model import Block, Parsed
from appliance.documents.ocr import Picture

def native():
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.socket(2, 1, 0)
    return "made" if made >= 0 else os.strerror(ctypes.get_errno())

def child():
    code = "import ctypes; print(ctypes.CDLL(None).socket(2, 1, 0))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()

def io_uring():
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.syscall(425, 8, ctypes.create_string_buffer(256))
    return "made" if made >= 0 else os.strerror(ctypes.get_errno())

def parse(name, data, ocr):
    address = ("127.0.0.1", int(data or b"0"))
    said = "read"
    if name == "connect": socket.create_connection(address)
    if name == "fetch": urllib.request.urlopen("http://127.0.0.1:%d/" % address[1])
    if name == "resolve": socket.getaddrinfo("example.org", 80)
    if name == "stream": asyncio.run(asyncio.open_connection(*address))
    if name == "native": said = native()
    if name == "child": said = child()
    if name == "io_uring": said = io_uring()
    if name == "much": said = "word " * (5 << 20)
    if name == "flood":
        os.write(output, struct.pack(">Q", 1 << 40))
        while True: os.write(output, bytes(1 << 20))
    if name == "nonsense": os.write(output, struct.pack(">Q", 3) + b"xyz")
    if name == "noise":
        for _ in range(64): os.write(2, b"x" * (1 << 20))
    if name == "spin":
        while True: pass
    if name == "scan": said = ocr.read(lambda: Picture(8, 8, bytes(64))).paragraphs[0]
    if name == "endless":
        while True: send(output_stream, ParseReply(more_time=True))
    return Parsed("t", "text/plain", (Block("paragraph", said),))

output = os.dup(1)
output_stream = os.fdopen(os.dup(1), "wb")
worker.parse = parse
worker.main()
"""


@pytest.fixture
def hostile() -> Iterator[Parser]:
    parser = Parser(DocumentSettings(max_text_bytes=16 << 20), [sys.executable, "-c", HOSTILE])
    yield parser
    assert parser.parse("good", b"").blocks[0].text == "read"  # whatever came before
    parser.close()


@pytest.fixture
def port() -> Iterator[int]:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):  # nobody called
            server.accept()


@pytest.mark.parametrize("way", ["connect", "fetch", "resolve", "stream"])
def test_python_code_gets_no_network(way: str, hostile: Parser, port: int) -> None:
    with pytest.raises(UnreadableDocument, match="no network"):
        hostile.parse(way, b"%d" % port)


@pytest.mark.parametrize(("way", "said"), [("native", "Operation not permitted"), ("child", "-1")])
def test_compiled_code_and_children_get_none_either(way: str, said: str, hostile: Parser) -> None:
    assert hostile.parse(way, b"").blocks[0].text == said


def test_nor_by_way_of_io_uring(hostile: Parser) -> None:
    assert hostile.parse("io_uring", b"").blocks[0].text != "made"


@pytest.mark.parametrize(
    ("way", "reason"),
    [("much", "more than 16 MB of text"), ("flood", "more than 16 MB of text"), ("nonsense", "no sense")],
)
def test_a_flood_is_cut_off_before_it_is_held(way: str, reason: str, hostile: Parser) -> None:
    hostile.parse("good", b"")
    before = psutil.Process().memory_info().rss
    with pytest.raises(UnreadableDocument, match=reason):
        hostile.parse(way, b"")
    assert psutil.Process().memory_info().rss - before < 16 << 20


def test_what_a_library_prints_does_not_fill_the_disk(hostile: Parser) -> None:
    with pytest.raises(UnreadableDocument, match="File too large"):
        hostile.parse("noise", b"")


def test_the_time_of_the_processor_is_limited() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOSTILE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        send(worker.stdin, ParseRequest("spin", b"", Limits(2 << 30, 1, 1 << 20)))
        assert receive(worker.stdout, ParseReply, 1 << 20) is None
    assert worker.returncode == -signal.SIGXCPU


class LateTimer(threading.Timer):
    """A timer that goes off at the worst moment: when the reply is there and the timer is about to be stopped."""

    def __init__(self, interval: float, function: Callable[[], None]) -> None:
        super().__init__(0, function)

    def start(self) -> None:
        """Not yet."""

    def cancel(self) -> None:
        """Now, and nobody waits for it here."""
        super().start()


def test_a_kill_that_comes_late_does_not_hit_the_next_document(
    hostile: Parser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Timer", LateTimer)
        for _ in range(5):
            assert hostile.parse("good", b"").blocks[0].text == "read"


def test_the_real_worker_reads_under_all_of_it() -> None:
    parser = Parser(DocumentSettings(), worker_command())
    try:
        assert parser.parse("a.txt", "扭矩 25 Nm".encode("gb18030")).blocks[0].text == "扭矩 25 Nm"
    finally:
        parser.close()


# -- recognition of text runs below the worker, and within its limits -----------------------------------------------

IN_ITS_PLACE = """#!/bin/sh
[ "$1" = --list-langs ] && { echo; echo eng; exit; }
echo $$ > "%(folder)s/process"
%(script)s
"""


@pytest.fixture
def tesseract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a script in tesseract's place; its process is written to the file."""

    def put(script: str) -> Path:
        program = tmp_path / "tesseract"
        program.write_text(IN_ITS_PLACE % {"folder": tmp_path, "script": script})
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return tmp_path / "process"

    return put


HEAD = "cat > /dev/null; printf 'block_num\\tpar_num\\tline_num\\tconf\\ttext\\n1\\t1\\t1\\t95\\t%s\\n' "


def ends(process: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_page_gets_time_of_its_own(tesseract: Callable[[str], Path]) -> None:
    tesseract("sleep 2; " + HEAD + "words")
    parser = Parser(DocumentSettings(parse_timeout_s=60, ocr_page_timeout_s=30), [sys.executable, "-c", HOSTILE])
    assert parser.parse("good", b"").blocks[0].text == "read"
    parser._settings = DocumentSettings(parse_timeout_s=1, ocr_page_timeout_s=30)
    assert parser.parse("scan", b"").blocks[0].text == "words"
    parser.close()


def test_it_gets_no_network(tesseract: Callable[[str], Path]) -> None:
    code = "import ctypes; print(ctypes.CDLL(None).socket(2, 1, 0))"
    tesseract(HEAD + f"\"$({sys.executable} -c '{code}')\"")
    parser = Parser(DocumentSettings(), [sys.executable, "-c", HOSTILE])
    assert parser.parse("scan", b"0").blocks[0].text == "-1"
    parser.close()


def test_it_ends_with_the_worker(tesseract: Callable[[str], Path]) -> None:
    file = tesseract("exec sleep 600")
    parser = Parser(DocumentSettings(), [sys.executable, "-c", HOSTILE])
    reason: list[str] = []

    def read() -> None:
        with pytest.raises(UnreadableDocument) as caught:
            parser.parse("scan", b"")
        reason.append(caught.value.message)

    thread = threading.Thread(target=read)
    thread.start()
    while not file.exists() or not file.read_text().strip():
        time.sleep(0.02)
    process = int(file.read_text())
    parser.interrupt()
    thread.join()
    assert reason == ["The program that reads it crashed (SIGKILL)."] and ends(process)


def test_a_worker_gets_no_more_time_than_pages_may_take() -> None:
    parser = Parser(DocumentSettings(ocr_pages=3), [sys.executable, "-c", HOSTILE])
    with pytest.raises(UnreadableDocument, match="It could not be read"):
        parser.parse("endless", b"")
    assert parser.parse("good", b"").blocks[0].text == "read"
    parser.close()


def test_recognition_can_be_off(tesseract: Callable[[str], Path]) -> None:
    tesseract(HEAD + "words")
    parser = Parser(DocumentSettings(ocr="off"), [sys.executable, "-c", HOSTILE])
    with pytest.raises(UnreadableDocument, match=r"documents\.ocr is off"):
        parser.parse("scan", b"")
    parser.close()
