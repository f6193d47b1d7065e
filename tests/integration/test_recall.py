"""Recall as a process: killed at any instant, it finds all that was acknowledged and nothing that was deleted."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from appliance.config import ModelSettings
from appliance.inference.embedder import OnnxEmbedder
from appliance.inference.reranker import OnnxReranker
from appliance.packs import ResolvedPack
from appliance.retrieval.types import SearchRequest
from appliance.store.db import Store
from tests.unit.retrieval.fakes import recall_over

ROOT = Path(__file__).parent.parent.parent


def run_until_killed(folder: Path, exact_limit: int, changes: int, delay_s: float) -> list[str]:
    """Start the child, kill it `delay_s` after its `changes`-th acknowledgement; the lines it had printed."""
    command = [sys.executable, "-m", "tests.integration.crash_child", str(folder), str(exact_limit)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline().strip() for _ in range(changes + 1)]
        killer = threading.Timer(delay_s, child.kill)
        killer.start()
        lines += [line.strip() for line in child.stdout if line.endswith("\n")]
        killer.join()
    assert child.returncode == -9
    assert lines[0] == "open"
    return lines[1:]


@pytest.mark.parametrize("exact_limit", [1000, 8])
def test_killed_at_any_instant_nothing_acknowledged_is_lost(tmp_path: Path, exact_limit: int) -> None:
    rng = random.Random(exact_limit)
    acknowledged: dict[str, str | None] = {}
    for _ in range(3):
        for line in run_until_killed(tmp_path, exact_limit, rng.randrange(1, 6), rng.random() * 0.3):
            verb, number, *rest = line.split()
            acknowledged[number] = rest[0] if verb == "put" else None
        store = Store.open(tmp_path / "store.sqlite3")
        recall = recall_over(store, tmp_path / "index", exact_limit=exact_limit)
        assert recall.check() == []

        # Only the very last change can have been committed without having been acknowledged.
        last = store.generation()
        acknowledged.setdefault(str(last % 7), None)
        for number, word in acknowledged.items():
            request = SearchRequest("part", "manuals", "lexical", False, 100)
            passages = recall.search(request).passages
            found = {p.text.split()[0] for p in passages if p.document == f"{number}.txt"}
            allowed: list[set[str]] = [set() if word is None else {word}]
            if int(number) == last % 7:
                allowed += [{f"word{last}"}, set()] if last % 5 == 4 else [{f"word{last}"}]
            assert found in allowed
            acknowledged[number] = next(iter(found), None)
        recall.close()
        store.close()


def test_memory_stays_bounded_over_many_calls_of_mixed_lengths(pocket: ResolvedPack) -> None:
    embedder = OnnxEmbedder(pocket.embedder, ModelSettings(onnx_threads=1))
    reranker = OnnxReranker(pocket.reranker, ModelSettings(onnx_threads=1)) if pocket.reranker is not None else None
    process = psutil.Process()
    rng = random.Random(1)

    def work(calls: int) -> None:
        for _ in range(calls):
            texts = ["pump seal " * rng.randrange(1, 40) for _ in range(rng.randrange(1, 3))]
            embedder.embed_passages(texts)
            if reranker is not None:
                reranker.score("which seal", texts)

    work(30)
    before = process.memory_info().rss
    work(60)
    assert process.memory_info().rss < before * 1.10 + (8 << 20)
