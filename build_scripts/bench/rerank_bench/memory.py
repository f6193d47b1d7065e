"""Owns the test of time: a process that scores pairs of mixed lengths again and again, and what memory it then holds.

Must not know what is bearable. Run as a program it prints the figures: a process of its own has nothing else in memory.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from appliance.packs import PackStore, load_manifest

from . import sides, texts

_CALLERS = 2


class Held(msgspec.Struct, frozen=True):
    """Resident bytes after the first calls, and after all."""

    first_calls: int
    calls: int
    pairs: int
    first_bytes: int
    bytes: int

    @property
    def growth(self) -> float:
        """Of the later calls, as a share of what was held before."""
        return self.bytes / self.first_bytes - 1.0


def measure(models_dir: Path, first: int, calls: int, most_words: int) -> Held:
    """Let another process make `calls` calls.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    numbers = [str(number) for number in (first, calls, most_words)]
    command = [sys.executable, "-m", "build_scripts.bench.rerank_bench.memory", str(models_dir), *numbers]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[3])
    return msgspec.json.decode(ran.stdout, type=Held)


def _hold(models_dir: Path, first: int, calls: int, most_words: int) -> Held:
    spec = PackStore(models_dir, load_manifest()).resolve("pocket").reranker
    assert spec is not None  # noqa: S101
    reranker = sides.ours(spec, len(os.sched_getaffinity(0)))
    rng = random.Random(1)
    question, text = texts.question(), texts.prose(3 * most_words)
    words = text.split()
    pairs = 0

    def call(lengths: list[int]) -> None:
        reranker.score(question, [" ".join(words[:length]) for length in lengths])

    held = 0
    with ThreadPoolExecutor(_CALLERS) as pool:
        for begin, end in ((0, first), (first, calls)):
            # Lengths over all orders of magnitude, some of them far over what the model reads.
            loads = [[int(most_words ** rng.random()) for _ in range(rng.randint(1, 2))] for _ in range(end - begin)]
            pairs += sum(map(len, loads))
            list(pool.map(call, loads))
            if begin == 0:
                held = _resident_bytes()
    reranker.close()
    return Held(first, calls, pairs, held, _resident_bytes())


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Make the calls and print `Held` as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models_dir", type=Path)
    for name in ("first", "calls", "most_words"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    held = _hold(given.models_dir, given.first, given.calls, given.most_words)
    sys.stdout.buffer.write(msgspec.json.encode(held))


if __name__ == "__main__":
    main()
