"""What was removed from a collection does not live on in kept prompts: not in a reply, a file, or after kill -9."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from appliance.engine.oblivion import NOTE
from appliance.engine.persist import _header
from appliance.packs import ResolvedPack
from tests.integration.program import Service, run_json, serving

NOTES = {
    "winch.md": "# Zeppelin winch\n\nThe zeppelin winch takes a cable of 37 metres. It is greased each Friday.\n",
    "oven.md": "# Bread oven\n\nThe bread oven is heated to 230 degrees. Its door is cleaned each Monday.\n",
}
QUESTION = "How long is the cable of the zeppelin winch?"


@pytest.fixture
def service(pocket: ResolvedPack, tmp_path: Path) -> Iterator[Service]:
    data = ingested(tmp_path)
    with serving(data, tmp_path / "log") as running:
        yield running


def ingested(folder: Path) -> Path:
    for name, text in NOTES.items():
        (folder / name).write_text(text)
    run_json(folder / "data", "ingest", *(str(folder / name) for name in NOTES))
    return folder / "data"


def ask(service: Service) -> dict[str, int]:
    """The tokens of one answer, as the reply counts them."""
    body = {"question": QUESTION, "stream": False, "max_tokens": 4, "appliance": {"cache": "bypass"}}
    reply = httpx.post(f"{service.url}/v1/ask", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    tokens: dict[str, int] = reply.json()["appliance"]["tokens"]
    return tokens


def kept(data: Path) -> list[str]:
    """What lies in the folder of kept prefixes."""
    headers = [_header(path) for path in (data / "prefixes").glob("*.kv")]
    note = ["note"] if (data / "prefixes" / NOTE).exists() else []
    return sorted(note + ["pinned" if found and found[0].pinned else "other" for found in headers])


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process brings about."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def remember(service: Service) -> int:
    """Have a prompt with the document kept in every way there is; returns how much of it the cache then gives."""
    for _ in range(4):
        tokens = ask(service)
    assert tokens["cached"] == tokens["prompt"] - 1
    until(lambda: "other" in kept(service.data_dir) and "pinned" in kept(service.data_dir))
    return tokens["cached"]


def documents(service: Service) -> dict[str, str]:
    """The address of each document."""
    found = httpx.get(f"{service.url}/v1/documents", timeout=60).json()["documents"]
    return {document["name"]: f"{service.url}/v1/documents/{document['id']}" for document in found}


@pytest.mark.slow
def test_nothing_is_left_of_a_prompt_whose_document_was_deleted_or_replaced(service: Service, tmp_path: Path) -> None:
    cached = remember(service)
    assert httpx.delete(documents(service)["winch.md"], timeout=60).is_success
    assert kept(service.data_dir) == ["pinned"]
    run_json(service.data_dir, "ingest", str(tmp_path / "winch.md"))  # it is back: the same prompt as before
    tokens = ask(service)
    pinned = tokens["cached"]
    assert 0 < pinned < cached / 2, "the instructions alone are found"
    remember(service)
    (tmp_path / "winch.md").write_text(NOTES["winch.md"].replace("37", "48"))
    assert run_json(service.data_dir, "ingest", str(tmp_path / "winch.md"))["outcomes"][0]["status"] == "replaced"
    assert kept(service.data_dir) == ["pinned"]
    assert ask(service)["cached"] == pinned
    remember(service)
    assert httpx.delete(f"{service.url}/v1/collections/default", timeout=60).is_success
    assert kept(service.data_dir) == ["pinned"]


@pytest.mark.slow
def test_a_service_that_is_killed_before_its_engine_has_forgotten_forgets_when_it_starts(
    service: Service, tmp_path: Path
) -> None:
    cached = remember(service)
    os.kill(service.children()["engine"], signal.SIGSTOP)  # it does not answer any more
    url = documents(service)["winch.md"]

    def delete() -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.delete(url, timeout=60)

    deleting = threading.Thread(target=delete)
    deleting.start()
    until(lambda: (service.data_dir / "prefixes" / NOTE).exists())
    until(lambda: len(documents(service)) == 1)
    service.process.kill()
    service.process.wait()
    deleting.join()
    assert "other" in kept(service.data_dir), "the text was still on the disk"
    with serving(service.data_dir, tmp_path / "log 2") as again:
        until(lambda: kept(again.data_dir) == ["pinned"])
        run_json(again.data_dir, "ingest", str(tmp_path / "winch.md"))
        assert 0 < ask(again)["cached"] < cached / 2


def test_a_command_that_deletes_without_a_service_deletes_kept_prompts_too(
    pocket: ResolvedPack, tmp_path: Path
) -> None:
    data = ingested(tmp_path)
    with serving(data, tmp_path / "log") as service:
        remember(service)
        assert service.stop() == 0
    assert "other" in kept(data)
    run_json(data, "documents", "delete", "1")
    assert kept(data) == ["pinned"]
