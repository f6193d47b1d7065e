"""Owns what the frozen program says of its parts: the CycloneDX list and the licences.

Must not know how the program is made. Reads the environment that it was frozen from, less what only builds, and the
system's packages that compiled files came from.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from build_scripts.package.contents import EXCLUDED

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """Something in the program that is not a Python package."""

    name: str
    version: str
    reference: str  # a package URL
    licence: str  # the whole text


def normal(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def runtime_packages(extra: str) -> list[Distribution]:
    """What the program is made of: its dependencies with `extra` ("cpu" or "gpu") and theirs, sorted."""
    found: dict[str, Distribution] = {}
    excluded = {normal(name) for name in EXCLUDED}
    waiting = [("appliance", extra)]
    while waiting:
        name, wanted = waiting.pop()
        if normal(name) in found or normal(name) in excluded:
            continue
        try:
            package = distribution(name)
        except PackageNotFoundError:  # for another system, by its marker
            continue
        found[normal(name)] = package
        waiting += [(needed, "") for needed in _needs(package, wanted)]
    return [found[name] for name in sorted(found)]


def _needs(package: Distribution, extra: str) -> Iterator[str]:
    for line in package.requires or ():
        requirement, _, marker = line.partition(";")
        named = _NAME.match(requirement)
        if named and ("extra" not in marker or (extra and re.search(rf"extra\s*==\s*['\"]{extra}['\"]", marker))):
            yield named[0]


def other_parts(origins: Mapping[str, Path]) -> list[Part]:
    """Python itself, and the system's packages that files of `origins` (file in the program → its source) are of."""
    files = [path for path in origins.values() if not _is_ours(path)]
    return [_python(), *_system_packages(sorted(set(files)))]


def _is_ours(path: Path) -> bool:
    folders = {sys.prefix, sys.base_prefix}
    return any(path.is_relative_to(folder) for folder in folders) and not path.is_relative_to("/usr/lib")


def _python() -> Part:
    version = platform.python_version()
    text = next((path for path in _python_licences() if path.is_file()), None)
    return Part("CPython", version, f"pkg:generic/cpython@{version}", text.read_text("utf-8") if text else "PSF-2.0\n")


def _python_licences() -> Iterator[Path]:
    series = f"python{sys.version_info.major}.{sys.version_info.minor}"
    yield Path(sys.base_prefix, "lib", series, "LICENSE.txt")
    yield Path("/usr/share/doc", series, "copyright")


def _system_packages(files: Iterable[Path]) -> Iterator[Part]:
    """The Debian packages that `files` belong to; none where dpkg does not know them."""
    owners = {owner for file in files if (owner := _owner(file))}
    for owner in sorted(owners):
        shown = ["dpkg-query", "--show", "--showformat=${Version}\\t${Architecture}", owner]
        version, _, architecture = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.partition(
            "\t"
        )
        name = owner.partition(":")[0]
        text = Path("/usr/share/doc", name, "copyright")
        licence = text.read_text("utf-8", "replace") if text.is_file() else "see Debian's package\n"
        yield Part(name, version, f"pkg:deb/debian/{name}@{version}?arch={architecture}", licence)


def _owner(file: Path) -> str:
    # With merged /usr, dpkg may know the file by its path without /usr.
    real = file.resolve()
    for path in (file, real, *(Path("/", *one.parts[2:]) for one in (file, real) if one.parts[:2] == ("/", "usr"))):
        done = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True, check=False)  # noqa: S607
        if done.returncode == 0:
            return done.stdout.rpartition(": ")[0].splitlines()[0]
    return ""


def bill_of_materials(packages: list[Distribution], others: Iterable[Part]) -> str:
    """A CycloneDX document, without a time or a number that another build would not have.

    Raises:
        subprocess.CalledProcessError: cyclonedx-py failed; it has said why.
    """
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"]
    done = subprocess.run([*command, sys.executable], check=True, stdout=subprocess.PIPE)
    document: dict[str, Any] = json.loads(done.stdout)
    kept = {normal(package.name) for package in packages}
    components = [part for part in document["components"] if normal(part["name"]) in kept]
    references = {part["bom-ref"] for part in components}
    document["components"] = components + [
        {"type": "library", "bom-ref": one.reference, "name": one.name, "version": one.version, "purl": one.reference}
        for one in others
    ]
    document["dependencies"] = [
        {**entry, "dependsOn": [one for one in entry.get("dependsOn", ()) if one in references]}
        for entry in document["dependencies"]
        if entry["ref"] in references
    ]
    return json.dumps(_without_places(document), indent=1, sort_keys=True) + "\n"


def _without_places(document: Any) -> Any:
    """The document without the addresses and folders of this machine."""
    if isinstance(document, dict):
        return {key: _without_places(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_without_places(item) for item in document if not (isinstance(item, dict) and _is_place(item))]
    return document


def _is_place(item: dict[str, Any]) -> bool:
    return item.get("type") == "distribution" or str(item.get("url", "")).startswith("file:")


def licences(packages: list[Distribution], others: Iterable[Part]) -> str:
    """Every part with its version, its licence in a word where one is stated, and the texts that come with it."""
    lines = ["What the program is made of, and under which licences.\n"]
    for package in packages:
        lines.append(f"\n==== {package.name} {package.version}: {_stated(package)}\n")
        for file in sorted(package.files or (), key=str):
            if ".dist-info" in str(file) and _LICENCE_FILE.search(file.name):
                text = Path(str(file.locate())).read_text("utf-8", errors="replace").strip()
                lines.append(f"\n---- {file.name}\n\n{text}\n")
    lines += [f"\n==== {one.name} {one.version}\n\n{one.licence.strip()}\n" for one in others]
    return "".join(lines)


def _stated(package: Distribution) -> str:
    fields = {name: package.metadata.get_all(name, []) for name in ("License-Expression", "Classifier", "License")}
    classified = [line.rpartition(":: ")[2] for line in fields["Classifier"] if line.startswith("License")]
    for stated in (*fields["License-Expression"], " / ".join(classified), *fields["License"]):
        if stated.strip():
            return str(stated).strip().splitlines()[0]
    return "see below"
