"""Owns the parse worker: a process that reads one document after the other within limits, and may die of one.

Must not know who asks or where documents are kept. It writes no files and opens no network connections.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from typing import BinaryIO

import msgspec

from appliance.documents.formats import parse
from appliance.documents.isolation import forbid_network
from appliance.documents.messages import Limits, ParseReply, ParseRequest, receive, send, too_much_text
from appliance.documents.ocr import NoOcr, Ocr
from appliance.documents.ocr_tesseract import OFF, Tesseract
from appliance.errors import UnreadableDocument

_PARENT_TURN_S = 0.5
_REQUEST_MOST_BYTES = 4 << 30
_FILE_MOST_BYTES = 1 << 20  # of any file; what libraries print goes to one, and would fill the disk


def main() -> None:
    """Serve requests from standard input until it closes."""
    # Libraries may print; the pipe is for messages alone.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    # Ctrl-C goes to the whole group of processes; the one that asks decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A crash is expected and reported; a core file of it would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_MOST_BYTES, _FILE_MOST_BYTES))
    forbid_network()
    _end_with_parent()
    while (request := receive(source, ParseRequest, _REQUEST_MOST_BYTES)) is not None:
        _apply(request.limits)
        _answer(output, request)
        # What this document left of its time is not what the next one may be received in.
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def _end_with_parent() -> None:
    """End soon after the program that asks has ended, also in the middle of a document.

    The kernel's signal for that follows the thread that started this process, and that is one of a pool.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_TURN_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _apply(limits: Limits) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    # The kernel counts whole seconds since the process began, and kills at the soft limit.
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + 1 + max(1, int(limits.cpu_s)), hard))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = limits.memory_bytes if hard == resource.RLIM_INFINITY else min(limits.memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def _ocr(output: BinaryIO, limits: Limits) -> Ocr:
    def before_page() -> None:
        # It costs this process time as well: the page has to be drawn.
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (soft + max(1, int(limits.ocr_page_s)), hard))
        send(output, ParseReply(more_time=True))

    return Tesseract(limits.ocr_pages, limits.ocr_page_s, before_page) if limits.ocr_pages else NoOcr(OFF)


def _answer(output: BinaryIO, request: ParseRequest) -> None:
    began = time.perf_counter()
    try:
        reply = ParseReply(parsed=parse(request.name, request.data, _ocr(output, request.limits)))
        reply = msgspec.structs.replace(reply, read_ms=(time.perf_counter() - began) * 1000)
        size = len(msgspec.msgpack.encode(reply))
        if size > request.limits.output_bytes:
            reply = ParseReply(failure=too_much_text(request.limits.output_bytes))
    except UnreadableDocument as error:
        reply = ParseReply(failure=error.text)
    except MemoryError:
        reply = ParseReply(failure="Reading it needs more memory than is allowed.")
    except RecursionError:
        reply = ParseReply(failure="It is nested too deeply.")
    except Exception as error:  # a parser's fault with one file must not end the worker
        reply = ParseReply(failure=f"It could not be read ({type(error).__name__}: {error}).")
    send(output, reply)
