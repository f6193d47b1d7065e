"""constraints.txt says the same as pyproject.toml, and names no place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from build_scripts._lib.constraints import BUILD_TOOLS, pins

ROOT = Path(__file__).parents[3]


def constraints() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_every_declared_dependency_is_pinned_to_the_same_version() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name != "gpu"}
    listed = [*project["dependencies"], *declared["build-system"]["requires"], *(p for e in extras.values() for p in e)]
    pinned = constraints()
    for requirement in listed:
        name, version = re.fullmatch(r"([a-z0-9-]+)==([\w.]+)", requirement).groups()  # type: ignore[union-attr]
        assert pinned.get(name) == version, f"{requirement}: run build_scripts/_lib/constraints.py"
    assert set(BUILD_TOOLS) <= set(pinned)


def test_it_names_no_place() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|@|^-", text, re.MULTILINE)


def test_pins_are_normal_names_without_the_project_itself() -> None:
    found = [("Jinja2", "3"), ("huggingface_hub", "2"), ("appliance", "0")]
    report = {"install": [{"metadata": {"name": name, "version": version}} for name, version in found]}
    assert pins(report) == ["huggingface-hub==2", "jinja2==3"]
