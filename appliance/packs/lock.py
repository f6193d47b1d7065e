"""Owns the lock of a pack: sums, recorded at the first pull, of the files whose sum the manifest lacks.

Must not know how files are fetched.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from appliance.errors import ModelCorrupt
from appliance.packs.files import written_beside

LOCK = "lock.toml"


class LockedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hub said about a file when it was pulled, and the file agreed with."""

    sha256: str
    size_bytes: int
    revision: str  # the hub's commit


class LockFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file: file name → what was recorded."""

    files: dict[str, LockedFile] = {}


def read_lock(folder: Path) -> dict[str, LockedFile]:
    """The lock of the pack in `folder`; empty if there is none.

    Raises:
        ModelCorrupt: the lock is damaged.
    """
    path = folder / LOCK
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), LockFile).files
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ModelCorrupt(
            f"{path} cannot be read: {error}.",
            remedy=f"Delete it and run `appliance models pull {folder.name}`.",
        ) from error


def write_lock(folder: Path, files: dict[str, LockedFile]) -> None:
    """Replace the lock, whole or not at all."""
    lines = []
    for name, locked in sorted(files.items()):
        # File names and sums hold no character that TOML would have to escape.
        lines += [f'[files."{name}"]', f'sha256 = "{locked.sha256}"', f"size_bytes = {locked.size_bytes}"]
        lines += [f'revision = "{locked.revision}"', ""]
    with written_beside(folder / LOCK) as file:
        file.write("\n".join(lines).encode("utf-8"))
