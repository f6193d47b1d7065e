"""Imports point one way: a part may import only the parts named for it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import appliance

BELOW = {"config", "durable", "errors", "native", "sentences", "telemetry"}
ALLOWED: dict[str, set[str]] = {
    "config": {"errors"},
    "durable": set(),
    "errors": set(),
    "native": set(),
    "sentences": set(),
    "systemd": set(),
    "telemetry": {"errors"},
    "cache": BELOW,
    "packs": BELOW,
    "store": BELOW,
    "inference": BELOW | {"packs", "cache"},
    "retrieval": BELOW | {"store", "inference", "cache"},
    "documents": BELOW | {"store", "inference"},
    "engine": BELOW,
    "console": set(),
    "answer": BELOW | {"retrieval", "engine", "cache", "store"},
    "http": BELOW | {"answer", "retrieval", "documents", "engine", "inference", "store", "cache", "console"},
    "samples": set(),
}
ROOT = Path(appliance.__file__).parent


def imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("appliance.")}
    return found


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_a_part_imports_only_what_lies_below_it(part: str) -> None:
    package = ROOT / part
    files = sorted(package.rglob("*.py")) if package.is_dir() else [package.with_suffix(".py")]
    for file in files:
        assert imported(file) <= ALLOWED[part] | {part}, file


def test_every_part_is_listed() -> None:
    above = {"__init__", "__main__", "service", "observe", "cli"}
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - above <= set(ALLOWED)
