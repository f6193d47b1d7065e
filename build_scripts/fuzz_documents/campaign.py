"""Owns a campaign: every damaged document goes through the real parse worker, and is read or refused with a reason.

Must not know how documents are damaged, nor how the outcome is shown.
"""

from __future__ import annotations

import random
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import local

import msgspec

from appliance.config import DocumentSettings
from appliance.documents.chunk import chunks_of
from appliance.documents.model import Parsed
from appliance.documents.parser import Parser
from appliance.errors import UnreadableDocument

from .mutate import mutated
from .seeds import seeds

SETTINGS = DocumentSettings(
    parse_timeout_s=20.0, parse_memory_bytes=1 << 30, max_text_bytes=16 << 20, ocr="off", max_file_bytes=16 << 20
)
_LATE_S = 5.0  # over the limit, until the worker must have been killed
_UNFORESEEN = re.compile(r"It could not be read \((.*)\)\.$", re.DOTALL)
_CRASH = "The program that reads it crashed"


class Fate(msgspec.Struct, frozen=True):
    """What became of one file."""

    number: int
    name: str
    read: bool
    reason: str  # "" for one that was read
    fault: str  # of the program; "": none
    unforeseen: bool  # refused, but by an exception that no reader foresaw, or by a crash
    seconds: float


@dataclass
class Tally:
    """What became of all."""

    files: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    worker_peak_bytes: int = 0
    by_format: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[Fate] = field(default_factory=list)
    unforeseen: list[Fate] = field(default_factory=list)

    def add(self, fate: Fate) -> None:
        """Count one more."""
        self.files += 1
        self.read += fate.read
        self.refused += not fate.read and not fate.fault
        self.slowest_s = max(self.slowest_s, fate.seconds)
        counts = self.by_format.setdefault(fate.name.rpartition(".")[2], Counter())
        counts["fault" if fate.fault else "read" if fate.read else "refused"] += 1
        if fate.fault:
            self.faults.append(fate)
        elif fate.unforeseen:
            self.unforeseen.append(fate)


def document(seed: int, number: int, whole: dict[str, bytes]) -> tuple[str, bytes]:
    """Name and bytes of one damaged document, whatever others were made."""
    rng = random.Random(f"{seed}/{number}")
    names = list(whole)
    name = names[number % len(names)]
    return name, mutated(whole[name], list(whole.values()), rng)[: SETTINGS.max_file_bytes]


def run(
    seed: int, numbers: Sequence[int], workers: int, each: Callable[[Fate, bytes], None], whole: dict[str, bytes] | None
) -> Tally:
    """Read the documents of these numbers in so many processes at once; `each` is called with every fate in order.

    Args:
        whole: the documents to damage; None: `seeds()`.
    """
    whole = whole or seeds()
    tally = Tally()
    began = time.monotonic()
    own = local()
    parsers: list[Parser] = []

    def read(number: int) -> tuple[Fate, bytes]:
        if not hasattr(own, "parser"):
            own.parser = Parser(SETTINGS)
            parsers.append(own.parser)
        name, data = document(seed, number, whole)
        return fate_of(own.parser, number, name, data), data

    try:
        with ThreadPoolExecutor(workers) as pool:
            for fate, data in _in_order(pool, read, numbers, 4 * workers):
                tally.add(fate)
                each(fate, data)
    finally:
        for parser in parsers:
            parser.close()
    tally.seconds = time.monotonic() - began
    # Of a worker also counts what this process held when it was forked: little, when it is the command.
    tally.worker_peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return tally


def _in_order(
    pool: ThreadPoolExecutor,
    read: Callable[[int], tuple[Fate, bytes]],
    numbers: Sequence[int],
    ahead: int,
) -> Iterator[tuple[Fate, bytes]]:
    """Results in order; no more than `ahead` are under way, so that few documents are held."""
    waiting: list[Future[tuple[Fate, bytes]]] = []
    for number in numbers:
        waiting.append(pool.submit(read, number))
        if len(waiting) >= ahead:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def fate_of(parser: Parser, number: int, name: str, data: bytes) -> Fate:
    """What becomes of one document."""
    began = time.monotonic()
    reason = fault = ""
    try:
        fault = flaw(parser.parse(name, data))
    except UnreadableDocument as error:
        reason = error.text
        fault = "" if reason.strip() else "it was refused without a reason"
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    if seconds > SETTINGS.parse_timeout_s + _LATE_S:
        fault = f"it took {seconds:.0f} s; the limit is {SETTINGS.parse_timeout_s:g} s"
    unforeseen = bool(_UNFORESEEN.match(reason)) or reason.startswith(_CRASH)
    return Fate(number, name, not reason and not fault, reason, fault, unforeseen, seconds)


def flaw(parsed: Parsed) -> str:
    """What is wrong with a document that was read; "": nothing."""
    if not any(block.text.strip() for block in parsed.blocks):
        return "it was read, but there is no text"
    for text in (parsed.title, *(block.text for block in parsed.blocks)):
        if "\x00" in text:
            return "a text holds NUL"
        try:
            text.encode()
        except UnicodeEncodeError:
            return "a text holds half a character"
    chunks = chunks_of(parsed.blocks, _tokens, chunk_tokens=200, overlap_tokens=30)
    return "" if chunks else "it was read, but nothing can be searched for"


def _tokens(texts: Sequence[str]) -> list[int]:
    return [len(text) // 3 + bool(text) for text in texts]
