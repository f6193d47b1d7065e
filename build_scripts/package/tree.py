"""Owns a folder of files that is to be the same from every build: its list with sums, its times, its archive.

Must not know what the files are.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path


def files_of(folder: Path) -> list[Path]:
    """Every file and link below `folder`, relative to it, sorted by name."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def size_of(folder: Path) -> int:
    """Bytes of all files below `folder`; links count nothing."""
    return sum((folder / name).stat().st_size for name in files_of(folder) if not (folder / name).is_symlink())


def sums_of(folder: Path) -> str:
    """One line for each file, as sha256sum writes and checks them; a link has the sum of what it leads to."""
    return "".join(f"{_sum(folder / name)}  {name}\n" for name in files_of(folder))


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settle(folder: Path, epoch_s: int) -> None:
    """Give every file and folder the time `epoch_s`, and modes that a umask has no part in."""
    for path in _all(folder):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch_s, epoch_s), follow_symlinks=False)


def _all(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*"), reverse=True)  # what is in a folder before the folder
    yield folder


def pack(folder: Path, archive: Path, epoch_s: int) -> None:
    """Write `folder` as a .tar.zst: sorted, owned by root, all of the time `epoch_s`.

    Raises:
        subprocess.CalledProcessError: zstd failed; it has said why.
    """
    plain = archive.with_suffix("")
    write_tar(folder, plain, epoch_s)
    subprocess.run(["zstd", "--quiet", "--force", "-10", "--rm", str(plain), "-o", str(archive)], check=True)  # noqa: S607


def write_tar(folder: Path, archive: Path, epoch_s: int) -> None:
    """Write `folder` as a plain tar file, as `pack` does."""

    def settled(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch_s
        return entry

    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in [folder, *sorted(folder.rglob("*"))]:
            tar.add(path, folder.name / path.relative_to(folder), recursive=False, filter=settled)
