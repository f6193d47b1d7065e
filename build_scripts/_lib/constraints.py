"""Owns `constraints.txt`: the version of everything that is installed with or for this project.

Must not know where packages come from: no index address gets into the file.

Run after a change of a version in pyproject.toml: `.venv/bin/python build_scripts/_lib/constraints.py`.
Asks the package registry that pip is set up for, and installs nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# What wheels are built with, pinned too so that a build is the same tomorrow. cmake and ninja are only fetched where
# the machine has none; setuptools, wheel and pybind11 are hnswlib's.
BUILD_TOOLS = ("pip", "hatchling", "scikit-build-core", "cmake", "ninja", "setuptools", "wheel", "pybind11")
HEADER = """\
# Every package that this project is installed, built and tested with. Written by build_scripts/_lib/constraints.py.
"""


def resolve(requirements: list[str]) -> dict[str, Any]:
    """pip's report of what it would install for `requirements`.

    Raises:
        subprocess.CalledProcessError: pip found no answer; it has said why.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*command, *requirements], check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def pins(report: dict[str, Any], *, own: str = "appliance") -> list[str]:
    """`name==version` of everything in `report` but the project itself, sorted."""
    packages = [item["metadata"] for item in report["install"]]
    found = {package["name"].lower().replace("_", "-"): package["version"] for package in packages}
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name != own]


def main() -> int:
    lines = pins(resolve([f"{ROOT}[bench,build,cpu,otlp,packs,dev]", *BUILD_TOOLS]))
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n", "utf-8")
    print(f"{len(lines)} packages pinned in constraints.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
