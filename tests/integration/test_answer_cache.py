"""A question that was answered is answered again at once, and never from documents that are not those of now."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.packs import ResolvedPack
from tests.integration.program import Service, run, run_json, serving

NOTE = "# Zeppelin winch\n\nThe zeppelin winch takes a cable of 37 metres. It is greased each Friday.\n"
PATIENT = {"APPLIANCE_CACHE_DISK_WAIT_MS": "30000"}  # other tests take the CPU
QUESTION = "How long is the cable of the zeppelin winch?"


@pytest.fixture
def service(pocket: ResolvedPack, tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "winch.md").write_text(NOTE)
    run_json(tmp_path / "data", "ingest", str(tmp_path / "winch.md"))
    with serving(tmp_path / "data", tmp_path / "log", **PATIENT) as running:
        yield running


def ask(service: Service, question: str = QUESTION, **more: Any) -> dict[str, Any]:
    body = {"question": question, "stream": False, "max_tokens": 16, **more}
    reply = httpx.post(f"{service.url}/v1/ask", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def outcome(reply: dict[str, Any]) -> str:
    return str(reply["appliance"]["cache"])


def streamed(service: Service, question: str) -> tuple[list[str], bytes]:
    """The `delta` events of an answer, and all that came."""
    body = {"question": question, "max_tokens": 16}
    reply = httpx.post(f"{service.url}/v1/ask", json=body, timeout=120)
    lines = reply.text.split("\n")
    return [after for before, after in itertools.pairwise(lines) if before == "event: delta"], reply.content


def test_an_answer_is_given_again_until_the_documents_change(service: Service, tmp_path: Path) -> None:
    first = ask(service)
    assert outcome(first) == "miss"
    begin = time.monotonic()
    again = ask(service, "how long is the cable of the zeppelin winch")
    assert outcome(again) == "hit"
    assert again["answer"] == first["answer"]
    assert again["appliance"]["sources"] == first["appliance"]["sources"]
    assert again["appliance"]["request_id"] != first["appliance"]["request_id"]
    assert time.monotonic() - begin < 5
    assert outcome(ask(service, appliance={"cache": "bypass"})) == "miss"
    assert "37 metres" in again["answer"]

    (tmp_path / "winch.md").write_text(NOTE.replace("37", "48"))
    run_json(service.data_dir, "ingest", str(tmp_path / "winch.md"))
    changed = ask(service)
    assert outcome(changed) == "miss"
    assert "37 metres" not in changed["answer"]
    assert outcome(ask(service)) == "hit"

    shown = run_json(service.data_dir, "cache", "stats")["answers"]
    assert shown["memory_hits"] >= 2
    assert "hit rate" in run(service.data_dir, "cache", "stats").stdout
    run_json(service.data_dir, "cache", "clear")
    assert outcome(ask(service)) == "miss"

    (document,) = httpx.get(f"{service.url}/v1/documents", timeout=60).json()["documents"]
    httpx.delete(f"{service.url}/v1/documents/{document['id']}", timeout=60).raise_for_status()
    gone = httpx.post(f"{service.url}/v1/ask", json={"question": QUESTION, "stream": False}, timeout=60)
    assert gone.status_code == 409, "a collection without documents answers nothing, nor does its cache"


def test_a_stream_from_the_cache_comes_in_the_same_pieces(service: Service) -> None:
    first, _ = streamed(service, QUESTION)
    again, raw = streamed(service, QUESTION)
    assert b'"cache":"hit"' in raw
    assert again == first
    assert len(first) > 3


def test_the_same_question_at_once_is_generated_once(service: Service) -> None:
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda _: ask(service), range(12)))
    assert len({reply["answer"] for reply in replies}) == 1
    assert [outcome(reply) for reply in replies].count("miss") == 1


def test_answers_survive_kill_and_restart_and_a_planted_cache_is_not_believed(service: Service, tmp_path: Path) -> None:
    first = ask(service)
    assert outcome(first) == "miss"
    run_json(service.data_dir, "cache", "stats")  # comes after the write, in the same thread
    service.process.kill()
    service.process.wait()
    with serving(service.data_dir, tmp_path / "log 2", **PATIENT) as second:
        again = ask(second)
        assert (outcome(again), again["answer"]) == ("hit", first["answer"])
        assert second.stop() == 0
    (service.data_dir / "cache" / "answers" / "cache.db").write_bytes(b"cposix\nsystem\n(S'false'\ntR." * 400)
    with serving(service.data_dir, tmp_path / "log 3", **PATIENT) as third:
        assert outcome(ask(third)) == "miss"
        assert outcome(ask(third)) == "hit"
