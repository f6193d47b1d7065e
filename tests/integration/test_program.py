"""The whole program by its command line: documents in, cited answers out, wrong input, no network."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from appliance import samples
from appliance.packs import ResolvedPack
from tests.integration.program import command, environment, run, run_json

ENGLISH, CHINESE = (
    [question for question in samples.questions() if question.answerable and question.lang == lang]
    for lang in ("en", "zh")
)


def one_line(text: str) -> str:
    """The only line of an error; there is no traceback."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_same_files_again_are_skipped(library: Path) -> None:
    before = run_json(library, "collections", "list")
    outcomes = run_json(library, "ingest", *map(str, samples.manuals()))["outcomes"]
    assert {outcome["status"] for outcome in outcomes} == {"unchanged"}
    assert run_json(library, "collections", "list") == before


def test_an_answer_names_the_document_and_the_page(library: Path) -> None:
    question = ENGLISH[0]
    reply = run_json(library, "ask", question.question)
    sources = reply["appliance"]["sources"]
    assert (question.document, question.page) in [(source["document"], source["page"]) for source in sources[:3]]
    assert reply["answer"].strip()
    assert reply["appliance"]["tokens"]["generated"] > 0
    assert {"recall_lexical", "recall_dense", "prefill", "decode", "total"} <= reply["appliance"]["timings_ms"].keys()


def test_a_chinese_question_gets_chinese_quotations_and_is_told_why(library: Path) -> None:
    question = CHINESE[0]
    reply = run_json(library, "ask", question.question)
    sources = reply["appliance"]["sources"]
    assert (question.document, question.page) in [(source["document"], source["page"]) for source in sources[:3]]
    assert any(line.startswith("generator_language") for line in reply["appliance"]["degraded"])
    assert "[1]" in reply["answer"]


def test_on_a_terminal_an_answer_is_readable(library: Path) -> None:
    done = run(library, "ask", ENGLISH[0].question)
    assert done.returncode == 0, done.stderr
    assert "Sources" in done.stdout
    assert f"{ENGLISH[0].document}, p. {ENGLISH[0].page}" in done.stdout
    assert "total" in done.stdout


def test_search_explains_its_scores(library: Path) -> None:
    done = run(library, "search", "HX-200/77-1203", "--explain")
    assert done.returncode == 0, done.stderr
    assert "lexical" in done.stdout
    assert "hx-200-pump-manual.pdf" in done.stdout


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder with one good file and every bad one that the issue tracker knows."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "good.md").write_text("# Valve\n\nThe relief valve opens at 7.5 bar.\n")
    (folder / "empty.txt").touch()
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 50)
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing")
    (folder / "sub").mkdir()
    (folder / "sub" / "loop").symlink_to(folder, target_is_directory=True)
    with (folder / "huge.txt").open("wb") as huge:
        huge.truncate(200 << 20)
    os.mkfifo(folder / "fifo.txt")
    return folder


def test_bad_files_are_named_and_the_rest_goes_on(pocket: ResolvedPack, tmp_path: Path, mixed: Path) -> None:
    done = run(tmp_path / "data", "ingest", str(mixed))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    for name in ("empty.txt", "binary.txt", "broken.pdf", "huge.txt"):
        assert name in done.stdout + done.stderr
    found = run_json(tmp_path / "data", "search", "relief valve pressure")
    assert found["passages"][0]["document"] == "good.md"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ask", "  "], 2, "question is empty"),
        (["ask", "word " * 9000], 1, "characters"),
        (["ask", "x?", "--collection", "none"], 1, "no collection 'none'"),
        (["search", "x", "--collection", "none"], 1, "no collection 'none'"),
        (["collections", "delete", "none", "--yes"], 1, "no collection 'none'"),
        (["documents", "delete", "99999"], 1, "99999"),
        (["ingest", "/does/not/exist"], 1, "/does/not/exist"),
        (["--set", "server.pot=1", "ask", "x"], 2, "Did you mean server.port?"),
        (["models", "use", "pokket"], 1, "Did you mean pocket?"),
    ],
)
def test_a_wrong_call_is_one_clear_sentence(library: Path, arguments: list[str], code: int, said: str) -> None:
    done = run(library, *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    if arguments[0] != "ingest":
        one_line(done.stderr)


def test_no_documents_at_all(pocket: ResolvedPack, tmp_path: Path) -> None:
    done = run(tmp_path, "ask", "x?")
    assert done.returncode == 1
    assert "There are no documents yet." in one_line(done.stderr)


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_model_that_is_not_the_right_file_is_never_loaded(
    pocket: ResolvedPack, tmp_path: Path, library: Path, damage: str
) -> None:
    models = tmp_path / "models"
    shutil.copytree(pocket.embedder.path.parent.parent, models)
    victim = models / "pocket" / pocket.embedder.path.name
    if damage == "missing":
        victim.unlink()
    elif damage == "truncated":
        os.truncate(victim, victim.stat().st_size // 2)
    else:
        with victim.open("r+b") as file:
            file.seek(1000)
            byte = file.read(1)
            file.seek(1000)
            file.write(bytes([byte[0] ^ 1]))
    done = run(library, "search", "x", APPLIANCE_MODELS_DIR=str(models))
    assert done.returncode == 1
    assert victim.name in one_line(done.stderr)
    assert "appliance models pull" in done.stderr


def test_a_port_in_use_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(tmp_path, "serve", "--port", port, APPLIANCE_MODELS_DIR="/none")
    assert done.returncode in (1, 2)
    assert port in one_line(done.stderr)


def test_a_data_directory_has_one_owner(library: Path, tmp_path: Path) -> None:
    from appliance.store.lock import DataDirLock

    with DataDirLock(library):
        done = run(library, "ask", "x?")
    assert done.returncode == 1
    assert str(os.getpid()) in one_line(done.stderr)


def isolated() -> list[str]:
    """A command prefix that leaves only loopback, or skips the test."""
    prefix = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        probe = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if probe.returncode:
        pytest.skip(f"no network namespace can be made here: {probe.stderr.decode().strip()}")
    return prefix


def test_without_a_network_everything_works(pocket: ResolvedPack, tmp_path: Path) -> None:
    prefix = isolated()
    asked = (ENGLISH[0], CHINESE[0])
    manuals = [str(path) for path in samples.manuals() if path.name in {question.document for question in asked}]
    assert run(tmp_path, "ingest", *manuals, prefix=prefix).returncode == 0
    for question in asked:
        done = run(tmp_path, "ask", question.question, "--json", prefix=prefix)
        assert done.returncode == 0, done.stderr
        reply: dict[str, Any] = json.loads(done.stdout)
        assert question.document in [source["document"] for source in reply["appliance"]["sources"]]
    assert run(tmp_path, "search", "seal", prefix=prefix).returncode == 0


def test_no_outside_address_is_ever_looked_up(library: Path, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    tracing = ["strace", "-f", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o", str(trace)]
    done = subprocess.run(
        [*tracing, *command("ask", ENGLISH[0].question)], env=environment(library), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    network = [line for line in trace.read_text().splitlines() if "AF_INET" in line or "sin_addr" in line]
    assert network == []
    assert "AF_UNIX" in trace.read_text()  # the trace saw something: the look for a running service
