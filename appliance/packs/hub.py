"""Owns getting a file from the model hub with its own client, and what the hub itself says that file is.

Must not know which model a file is.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from appliance.packs.files import NO_ROOM, READ_BYTES, sha256_of
from appliance.packs.lock import LockedFile
from appliance.packs.manifest import HubSource
from appliance.packs.registry import MissingExtra, PullFailed


def download_from_hub(source: HubSource, folder: Path, locked: LockedFile | None) -> tuple[Path, LockedFile]:
    """Fetch one file into `folder`, going on with what an interrupted download left there.

    Args:
        source: repository, file and revision.
        folder: kept between calls until the file is in its place.
        locked: what an earlier pull recorded: its commit is taken again, so that a branch that moved
            changes nothing.

    Returns:
        The file in `folder`, and its SHA-256, size and commit as the hub states them and as they were found.

    Raises:
        PullFailed: no network, no such file, or the file is not what the hub says it is or said before.
    """
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ImportError as error:
        raise MissingExtra(error) from error
    revision = locked.revision if locked else source.revision
    where = f"{source.repo}/{source.file} at {revision}"
    try:
        api = HfApi()
        commit = api.model_info(source.repo, revision=revision).sha or revision
        listed = api.get_paths_info(source.repo, [source.file], revision=commit)
        path = Path(hf_hub_download(source.repo, source.file, revision=commit, local_dir=folder))
    except Exception as error:  # the client lets the errors of whichever HTTP library it uses through
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PullFailed(
            f"The hub did not give {where}: {reason.rstrip('.')}.",
            remedy="Check the network and run the same command again, "
            "or bring the files on a disk: `appliance models import FOLDER`.",
        ) from error
    stated = next((entry for entry in listed if entry.path == source.file), None)
    lfs = getattr(stated, "lfs", None)
    found = sha256_of(path)
    if lfs is not None:
        right = found == lfs.sha256
    else:  # a small file, kept in git itself: named by git's own sum
        right = stated is not None and _git_blob(path) == getattr(stated, "blob_id", "")
    if not right or (locked is not None and found != locked.sha256):
        path.unlink(missing_ok=True)
        raise PullFailed(f"What came for {where} is not the file that the hub lists.", remedy="Run the command again.")
    return path, LockedFile(found, path.stat().st_size, commit)


def _git_blob(path: Path) -> str:
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
