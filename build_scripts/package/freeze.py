"""Owns running PyInstaller: from the installed environment to a folder that runs without one.

Must not know what is made of the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SPEC = Path(__file__).with_name("appliance.spec")


def freeze(root: Path, work: Path, epoch_s: int) -> tuple[Path, dict[str, Path]]:
    """Freeze the program of the checkout `root`.

    Returns:
        The folder with the program `appliance` in it, made anew, and where each compiled file in it came from.

    Raises:
        subprocess.CalledProcessError: PyInstaller or strip failed; it has said why.
    """
    out, scratch = work / "frozen", work / "pyinstaller"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level", "WARN"]
    places = ["--distpath", str(out), "--workpath", str(scratch)]
    # Sets and dictionaries in the archive of modules are written in the order of their hashes.
    steady = {"PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": str(epoch_s)}
    subprocess.run([*command, *places, str(SPEC)], check=True, cwd=root, env=os.environ | steady)
    _strip(out / "appliance" / "_internal")
    lines = (scratch / SPEC.stem / "origins.tsv").read_text().splitlines()
    return out / "appliance", {name: Path(source) for name, _, source in (line.partition("\t") for line in lines)}


def _strip(folder: Path) -> None:
    """Take out symbols for debuggers, a third of all bytes. Not of what wheels bring in `….libs`.

    Those were moved by patchelf, and strip has broken such files before.
    """
    libraries = sorted(path for path in folder.rglob("*.so*") if path.is_file() and not path.is_symlink())
    kept = [str(path) for path in libraries if not path.parent.name.endswith(".libs")]
    subprocess.run(["strip", "--strip-unneeded", *kept], check=True)  # noqa: S607


def start_s(program: Path) -> float:
    """Seconds that `--version` takes, the best of five; the first reads from the disk.

    Raises:
        subprocess.CalledProcessError: the program does not start.
    """
    taken = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run([str(program), "--version"], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.monotonic() - began)
    return min(taken)
