"""A short campaign of damaged documents, and that it would tell if something were wrong."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.documents.model import Block, Parsed
from appliance.documents.parser import Parser
from build_scripts.fuzz_documents.campaign import SETTINGS, document, fate_of, flaw, run
from build_scripts.fuzz_documents.seeds import seeds

ROOT = Path(__file__).parents[2]


def test_whole_documents_are_read_and_damaged_ones_read_or_refused() -> None:
    whole = seeds()
    parser = Parser(SETTINGS)
    assert [fate.reason for name, data in whole.items() if not (fate := fate_of(parser, 0, name, data)).read] == []
    parser.close()
    # In a process of its own: the peak of a worker counts what its parent held when it was forked.
    arguments = ["--files", "44", "--seed", str(random.randrange(10**6)), "--workers", "2", "--json"]
    command = [sys.executable, "-m", "build_scripts.fuzz_documents", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["files"] == 44 and told["read"] + told["refused"] == 44 and told["faults"] == []
    assert len(told["by_format"]) == len(whole)
    assert 0 < told["worker_peak_bytes"] <= SETTINGS.parse_memory_bytes


def test_the_same_seed_makes_the_same_files() -> None:
    whole, again = seeds(), seeds()
    assert whole == again
    made = [document(7, number, whole) for number in range(40)]
    assert made == [document(7, number, again) for number in range(40)]
    assert made != [document(8, number, whole) for number in range(40)]


@pytest.mark.parametrize(
    ("parsed", "found"),
    [
        (Parsed("t", "x", (Block("paragraph", "a\x00b"),)), "a text holds NUL"),
        (Parsed("t", "x", (Block("paragraph", "a\ud800"),)), "a text holds half a character"),
        (Parsed("t", "x", ()), "it was read, but there is no text"),
        (Parsed("t", "x", (Block("paragraph", "ab"),)), ""),
    ],
)
def test_what_would_be_a_fault(parsed: Parsed, found: str) -> None:
    assert flaw(parsed) == found


ABORT = "import os, sys; print({!r}, file=sys.stderr, flush=True); os.abort()"
WORKERS = {
    "raise ValueError('odd')": "odd",
    ABORT.format(""): "SIGABRT",
    ABORT.format("memory allocation of 9 bytes failed"): "more memory than is allowed",
}


@pytest.mark.parametrize(("code", "reason"), WORKERS.items())
def test_a_worker_that_ends_is_told(code: str, reason: str) -> None:
    parser = Parser(SETTINGS, [sys.executable, "-c", code])
    fate = fate_of(parser, 3, "a.txt", b"x")
    parser.close()
    assert not fate.read and reason in fate.reason and not fate.fault
    assert fate.unforeseen == (reason == "SIGABRT")


def test_a_run_tells_of_each_file_in_order() -> None:
    numbers: list[int] = []
    tally = run(
        1, [5, 2, 9], 2, lambda fate, data: numbers.append(fate.number), {"a.txt": b"Some text.", "b.md": b"# x"}
    )
    assert numbers == [5, 2, 9] and tally.files == 3 and not tally.faults
