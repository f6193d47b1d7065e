"""The real service with the real models, as its clients see it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import psutil
import pytest
from openai.types.chat import ChatCompletionMessageParam

from appliance import samples
from appliance.http.address import answers
from appliance.packs import ResolvedPack
from tests.integration.program import Service, command, environment, run, run_json, serving, sse

QUESTION = next(question for question in samples.questions() if question.id == "en-01")
LONG = {"question": QUESTION.question, "max_tokens": 200, "appliance": {"cache": "bypass"}}
GROUNDED = {"appliance": {"collection": "default"}}


@pytest.fixture(scope="module")
def service(library: Path) -> Iterator[Service]:
    """A service with the sample manuals in it."""
    with serving(library, library.parent / "log") as running:
        yield running


def client(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def test_a_source_leads_to_the_file_that_it_is_from(service: Service) -> None:
    found = httpx.post(f"{service.url}/v1/search", json={"query": "HX-200/77-1203", "mode": "lexical", "top_k": 1})
    (passage,) = found.json()["results"]
    (given,) = (path for path in samples.manuals() if path.name == passage["document"])
    reply = httpx.get(f"{service.url}/v1/documents/{passage['document_id']}/content")
    assert (reply.headers["content-type"], reply.content) == ("application/pdf", given.read_bytes())
    where = {"source": "note.txt"}
    added = httpx.put(f"{service.url}/v1/collections/default/documents", params=where, content=b"A note.").json()
    address = f"{service.url}/v1/documents/{added['document']['id']}"
    assert httpx.get(f"{address}/content").text == "A note."
    assert httpx.delete(address).status_code == 204
    assert httpx.get(f"{address}/content").status_code == 404
    assert b"A note." not in {path.read_bytes() for path in service.data_dir.glob("originals/??/*")}


def test_sources_come_before_the_first_delta(service: Service) -> None:
    with httpx.stream("POST", f"{service.url}/v1/ask", json={"question": QUESTION.question}, timeout=120) as reply:
        assert reply.status_code == 200
        events = list(sse(reply.iter_lines()))
    names = [name for name, _ in events]
    assert names[0] == "sources"
    assert names[1] == "delta"
    assert names[-1] == "done"
    first = events[0][1]["sources"][:3]
    assert (QUESTION.document, QUESTION.page) in [(source["document"], source["page"]) for source in first]


def test_curl_as_the_readme_says(service: Service) -> None:
    body = '{"question": "' + QUESTION.question + '"}'
    done = subprocess.run(
        ["curl", "-sN", f"{service.url}/v1/ask", "-d", body], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("event: sources\n")


def test_streamed_text_equals_unstreamed_text(service: Service) -> None:
    whole = httpx.post(f"{service.url}/v1/ask", json={"question": QUESTION.question, "stream": False}, timeout=120)
    with httpx.stream("POST", f"{service.url}/v1/ask", json={"question": QUESTION.question}, timeout=120) as reply:
        pieces = [data["text"] for name, data in sse(reply.iter_lines()) if name == "delta"]
    assert "".join(pieces) == whole.json()["answer"]


@pytest.mark.parametrize("extra", [GROUNDED, {}])
def test_the_openai_client_gets_a_chat_completion_streamed_and_not(service: Service, extra: dict[str, object]) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION.question}]
    with client(service) as api:
        whole = api.chat.completions.create(
            model="appliance", messages=messages, max_tokens=40, temperature=0, extra_body=extra
        )
        stream = api.chat.completions.create(
            model="appliance",
            messages=messages,
            max_tokens=40,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=extra,
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0
    assert whole.model_extra is not None
    sources = whole.model_extra["appliance"]["sources"]
    assert bool(sources) == bool(extra)


def tool(name: str, **properties: object) -> Any:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}


def test_the_pocket_model_calls_tools_as_their_schemas_say(service: Service) -> None:
    convert = tool("convert", value={"type": "integer", "maximum": 999}, unit={"enum": ["bar", "psi"]})
    search = tool("search", query={"type": "string", "maxLength": 12})
    asked: dict[str, Any] = {
        "model": "appliance",
        "messages": [{"role": "user", "content": "How much is 7 bar in psi? Use a tool."}],
        "tools": [convert, search],
        "max_tokens": 80,
        "temperature": 0,
    }
    one: dict[str, Any] = {**asked, "tool_choice": "required", "parallel_tool_calls": False}
    with client(service) as api:
        whole = api.chat.completions.create(**one).choices[0]
        stream = list(api.chat.completions.create(**one, stream=True))
        with api.chat.completions.stream(**one) as gathering:
            gathered = gathering.get_final_completion().choices[0]
        named: Any = {"type": "function", "function": {"name": "search"}}
        chosen = api.chat.completions.create(**asked, tool_choice=named, stop=["e", "\n"]).choices[0]
        turns = [
            whole.message.model_dump(),
            {"role": "tool", "tool_call_id": (whole.message.tool_calls or [])[0].id, "content": "101 psi"},
        ]
        going_on = {**asked, "messages": [*asked["messages"], *turns], "max_tokens": 24}
        free = api.chat.completions.create(**going_on).choices[0]
        wrong = [convert, tool("open", path={"not": {"type": "null"}})]
        with pytest.raises(openai.BadRequestError, match=r"The tool open: .* keyword not is") as refused:
            api.chat.completions.create(**{**asked, "tools": wrong})
    assert refused.value.param == "tools[1].function.parameters"
    assert whole.message.content is None
    for choice in (whole, gathered, chosen):
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or []
        function = {"convert": convert, "search": search}[call.function.name]["function"]
        jsonschema.Draft202012Validator(function["parameters"]).validate(json.loads(call.function.arguments))
    pieces = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    (first,) = whole.message.tool_calls or []
    assert "".join(piece.function.arguments for piece in pieces) == first.function.arguments
    assert [piece.function.name for piece in pieces if piece.id] == [first.function.name]
    assert (chosen.message.tool_calls or [])[0].function.name == "search"
    assert free.finish_reason in ("stop", "length", "tool_calls")
    assert free.message.content or free.message.tool_calls


def test_a_response_is_stored_and_gone_on_from(service: Service) -> None:
    asked: Any = {"model": "appliance", "max_output_tokens": 8}
    with client(service) as api:
        first = api.responses.create(**asked, input="Name a pump.")
        assert api.responses.retrieve(first.id) == first
        *_, last = api.responses.create(**asked, input="Another.", previous_response_id=first.id, stream=True)
        assert last.type in ("response.completed", "response.incomplete")
        second = last.response
        assert second.output_text and second.usage is not None and first.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens
        api.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            api.responses.create(**asked, input="Another.", previous_response_id=second.id)
    assert (service.data_dir / "responses.sqlite3").stat().st_mode & 0o777 == 0o600


def test_commands_talk_to_the_running_service(service: Service) -> None:
    assert run_json(service.data_dir, "search", QUESTION.question)["passages"]
    reply = run_json(service.data_dir, "ask", QUESTION.question)
    assert reply["appliance"]["sources"]
    listed = run_json(service.data_dir, "collections", "list")
    assert listed[0]["documents"] == len(samples.manuals())


def test_a_document_put_in_now_is_found_now_and_gone_when_deleted(service: Service, tmp_path: Path) -> None:
    note = tmp_path / "note.md"
    note.write_text("# Zeppelin winch\n\nThe zeppelin winch takes a cable of 37 metres.\n")
    added = run_json(service.data_dir, "ingest", str(note), "--collection", "notes")["outcomes"][0]
    assert added["status"] == "added"
    found = httpx.post(f"{service.url}/v1/search", json={"query": "zeppelin winch cable", "collection": "notes"})
    assert found.json()["results"][0]["document"] == "note.md"
    note.write_text("# Zeppelin winch\n\nThe zeppelin winch takes a chain of 12 metres.\n")
    assert (
        run_json(service.data_dir, "ingest", str(note), "--collection", "notes")["outcomes"][0]["status"] == "replaced"
    )
    found = httpx.post(f"{service.url}/v1/search", json={"query": "zeppelin winch cable", "collection": "notes"})
    texts = [result["text"] for result in found.json()["results"]]
    assert any("12 metres" in text for text in texts)
    assert not any("37 metres" in text for text in texts)
    (document,) = run_json(service.data_dir, "documents", "list", "--collection", "notes")
    assert run(service.data_dir, "documents", "delete", str(document["id"])).returncode == 0
    gone = httpx.post(f"{service.url}/v1/search", json={"query": "zeppelin", "collection": "notes"})
    assert gone.status_code == 409
    assert "no documents" in gone.json()["error"]["message"]


def test_a_queued_document_is_watched_until_it_is_found(service: Service) -> None:
    url = f"{service.url}/v1/collections/queued/documents"
    revision = httpx.get(f"{service.url}/v1/jobs").json()["revision"]
    attributes = '{"lang": "en"}'
    queued = httpx.post(
        url, params={"source": "davit.md", "attributes": attributes}, content=b"# Davit\n\nThe davit lifts 410 kg."
    )
    assert queued.status_code == 202
    states: list[str] = []
    deadline = time.monotonic() + 60
    while "indexed" not in states:
        assert time.monotonic() < deadline, states
        news = httpx.get(f"{service.url}/v1/jobs", params={"since": revision}).json()
        states += [job["state"] for job in news["jobs"]]
        revision = news["revision"]
        time.sleep(0.05)
    job = httpx.get(service.url + queued.headers["Location"]).json()
    assert (job["state"], job["ending"], job["attempts"]) == ("indexed", "added", 1)
    filters = {"type": "eq", "key": "lang", "value": "en"}
    asked = {"query": "davit lifts", "collection": "queued", "filters": filters}
    assert httpx.post(f"{service.url}/v1/search", json=asked, timeout=60).json()["results"][0]["document"] == "davit.md"
    listed = run_json(service.data_dir, "jobs", "list", "--state", "indexed", "--limit", "1")["jobs"]
    assert [one["id"] for one in listed] == [job["id"]]
    assert run(service.data_dir, "jobs", "retry", str(job["id"])).returncode == 1


def test_a_killed_engine_is_a_pause_in_the_stream(service: Service) -> None:
    # Without documents: an answer from them may be one sentence, which is there whole when it is seen first.
    engine = service.children()["engine"]
    body = {
        "messages": [{"role": "user", "content": "Tell a long story of a lighthouse keeper and his dog."}],
        "max_tokens": 120,
        "stream": True,
        "appliance": {"cache": "bypass"},
    }
    pieces, names = [], []
    with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=body, timeout=120) as reply:
        for name, data in sse(reply.iter_lines()):
            names.append(name)
            choices = [] if data == "[DONE]" else data.get("choices", [])
            text = choices[0]["delta"].get("content") if choices else None
            pieces += [text] if text else []
            if text and len(pieces) == 1:
                os.kill(engine, signal.SIGKILL)
    assert "error" not in names
    assert len(pieces) > 20
    assert service.children()["engine"] != engine
    answer = httpx.post(f"{service.url}/v1/ask", json={**LONG, "max_tokens": 4, "stream": False}, timeout=60).json()
    assert answer["appliance"]["tokens"]["generated"]


def test_a_client_that_leaves_frees_its_sequence(service: Service) -> None:
    for _ in range(3):
        with httpx.stream("POST", f"{service.url}/v1/ask", json=LONG, timeout=60) as reply:
            for name, _data in sse(reply.iter_lines()):
                if name == "delta":
                    break
    # Were they still running, this would wait for them.
    quick = httpx.post(f"{service.url}/v1/ask", json={**LONG, "max_tokens": 2, "stream": False}, timeout=60).json()
    assert quick["appliance"]["timings_ms"]["queue"] < 1000


def test_sigterm_stops_it_cleanly_and_leaves_no_process(service: Service, tmp_path: Path) -> None:
    with serving(tmp_path / "data", tmp_path / "log") as own:
        children = list(own.children().values())
        assert children
        assert own.stop() == 0
    assert not any(psutil.pid_exists(pid) for pid in children)
    assert "Traceback" not in (tmp_path / "log").read_text()


@contextlib.contextmanager
def loading(data: Path, log: Path) -> Iterator[Service]:
    """A service that has begun to listen and not finished to load; stopped cleanly at the end."""
    service = Service(data, log)
    try:
        while not answers(data / "appliance.sock"):
            assert service.process.poll() is None, log.read_text()
            time.sleep(0.01)
        assert httpx.get(f"{service.url}/healthz", timeout=30).json() == {"status": "alive"}
        yield service
        assert service.stop() == 0
    finally:
        service.process.kill()
        service.process.wait()
    assert not (data / "appliance.sock").exists()
    assert "Traceback" not in log.read_text()


def test_health_is_answered_while_it_loads(pocket: ResolvedPack, tmp_path: Path) -> None:
    with loading(tmp_path / "data", tmp_path / "log") as service:
        seen = set()
        while (reply := httpx.get(f"{service.url}/readyz", timeout=30)).status_code != 200:
            seen.add((reply.status_code, reply.json()["status"]))
        assert (503, "loading") in seen
        assert seen <= {(503, "loading"), (503, "not_ready")}  # then the engine may still be starting


def test_a_command_waits_while_it_loads(pocket: ResolvedPack, tmp_path: Path) -> None:
    with loading(tmp_path / "data", tmp_path / "log"):
        assert run_json(tmp_path / "data", "documents", "list") == []


def test_sigterm_while_it_loads_ends_it_cleanly(pocket: ResolvedPack, tmp_path: Path) -> None:
    with loading(tmp_path / "data", tmp_path / "log"):
        pass


def test_a_service_that_cannot_load_ends_and_says_why(tmp_path: Path) -> None:
    done = run(tmp_path / "data", "serve", APPLIANCE_MODELS_DIR=str(tmp_path / "none"), APPLIANCE_PORT="0")
    assert done.returncode == 1
    assert "models pull pocket" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "data" / "appliance.sock").exists()
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file", "serve", APPLIANCE_PORT="0")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: The data directory") and "cannot be made" in done.stderr


def test_what_was_acknowledged_survives_kill_nine(pocket: ResolvedPack, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    acknowledged: list[int] = []
    with serving(data_dir, tmp_path / "log") as own:
        children = list(own.children().values())
        for number in range(12):
            body = f"# Tank {number}\n\nTank number {number} holds {number * 100 + 7} litres of fuel.\n"
            url = f"{own.url}/v1/collections/default/documents"
            reply = httpx.put(url, params={"source": f"tank{number}.md"}, content=body.encode(), timeout=60)
            assert reply.status_code == 200, reply.text
            acknowledged.append(number)
            if number == 8:
                own.process.kill()
                own.process.wait()
                break
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in children):
        assert time.monotonic() < deadline, "the engine outlived its service"
        time.sleep(0.05)
    listed = run_json(data_dir, "documents", "list")
    assert sorted(document["source"] for document in listed) == sorted(f"tank{number}.md" for number in acknowledged)
    for number in (0, 8):
        found = run_json(data_dir, "search", f"How much does tank number {number} hold?", "--top-k", "3")
        assert any(f"Tank number {number} holds" in passage["text"] for passage in found["passages"])


def test_a_second_service_on_the_data_directory_is_refused(service: Service) -> None:
    done = subprocess.run(
        command("serve", "--port", "0"),
        env=environment(service.data_dir),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(service.data_dir) in done.stderr
