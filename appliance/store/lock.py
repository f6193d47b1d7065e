"""Owns the data directory's lock: one process at a time may write there.

Must not know what is stored in the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import sys
from pathlib import Path
from types import TracebackType

from appliance.durable import sync
from appliance.errors import BadSetting, DataDirBusy


class DataDirLock:
    """An advisory lock on `<data_dir>/lock`, with the holder's pid and command written in it.

    The kernel frees it when the process ends, however it ends, so a lock file that is left behind never
    blocks anyone.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock; makes the directory (mode 0700) when it does not exist.

        Raises:
            DataDirBusy: another process holds it.
            BadSetting: the directory cannot be made or written, or is another user's and this is root.
        """
        make_data_dir(self._data_dir)
        _require_owner(self._data_dir)
        path = self._data_dir / "lock"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadSetting(f"The data directory {self._data_dir} cannot be written: {error.strerror}.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(handle, 4096).decode("utf-8", "replace").splitlines()
            os.close(handle)
            raise DataDirBusy(
                f"The data directory {self._data_dir} is in use by {_describe(holder)}.",
                remedy="Stop it first, or set another data directory.",
            ) from error
        except OSError as error:
            os.close(handle)
            raise BadSetting(
                f"The data directory {self._data_dir} is on a file system without locks: {error.strerror}."
            ) from error
        self._handle = handle
        command = " ".join(sys.argv).replace("\n", " ")[:1000]
        # Only whom to name to others: on a full disk what is stored can be searched and deleted all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n{command}\n".encode("utf-8", "replace"), 0)

    def release(self) -> None:
        """Free the lock; the file stays."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> DataDirLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def make_data_dir(path: Path) -> None:
    """Make `path` and its parents so that they survive a power cut; `path` itself gets mode 0700.

    Raises:
        BadSetting: it cannot be made, or something that is not a directory is there.
    """
    try:
        for folder in [*reversed(path.parents), path]:
            if not folder.is_dir():
                folder.mkdir(mode=0o700 if folder == path else 0o755)
                sync(folder.parent)
    except OSError as error:
        if os.path.isdir(path):  # noqa: PTH112 - made by another process meanwhile; never raises
            return
        raise BadSetting(
            f"The data directory {path} cannot be made: {error.strerror}.",
            remedy="Set data_dir (APPLIANCE_DATA_DIR) to a directory that this user may write.",
        ) from error


def _require_owner(path: Path) -> None:
    """Keep root from leaving files that the service's user then cannot open."""
    owner = path.stat().st_uid
    if os.geteuid() or not owner:
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:  # nobody of this system: a container over a folder of its host
        return
    raise BadSetting(
        f"The data directory {path} is the user {name}'s, who could not open what root writes there.",
        remedy=f"Start the service, which then does the work, or run this as that user: sudo -u {name} appliance …",
        param="data_dir",
    )


def _describe(holder: list[str]) -> str:
    if not holder or not holder[0].isdigit():
        return "another process"
    return f"process {holder[0]} ({holder[1]})" if len(holder) > 1 and holder[1] else f"process {holder[0]}"
