"""Owns the note that something is to be forgotten: a file that outlives this process, however it ends.

Must not know engines or documents. Whoever removes a document notes it before, so that nothing of it can come back
from kept prefixes, whatever dies in between; the note is taken away when all that was noted has been forgotten.

    incur ──▶ (the document is removed) ──▶ commit ──▶ (the engine forgets) ──▶ settle
"""

from __future__ import annotations

import threading
from pathlib import Path

from appliance.durable import sync
from appliance.engine.persist import remove_unpinned
from appliance.errors import Unavailable

NOTE = "to-forget"


class Oblivion:
    """What is still to be forgotten of kept prefixes; `folder`: where they lie, if any do. For any thread.

    Attributes:
        due: number of the last removal that has happened; those up to `settled` are forgotten.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        # Noted by a process that ended before it was done.
        self._incurred = 1 if folder is not None and (folder / NOTE).exists() else 0
        self.due = self._incurred
        self.settled = 0

    @property
    def owed(self) -> bool:
        """Whether something that was removed is not forgotten yet."""
        return self.due > self.settled

    def incur(self) -> None:
        """Something is about to be removed; on disk when this returns.

        Raises:
            Unavailable: the note can't be written; nothing must be removed then.
        """
        with self._lock:
            self._incurred += 1
            if self._folder is None or (self._folder / NOTE).exists():
                return
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (self._folder / NOTE).touch(0o600)
                sync(self._folder)
                sync(self._folder.parent)
            except OSError as error:
                remedy = f"Make {self._folder} writable."
                raise Unavailable(f"A removal can't be noted in {self._folder}: {error}.", remedy=remedy) from error

    def commit(self) -> None:
        """What was announced until now has happened, or never will. Not to be called while another is announced."""
        self.due = self._incurred

    def remove_files(self) -> None:
        """Delete what is kept on the disk, for good.

        Raises:
            Unavailable: a file can't be deleted; the note stays.
        """
        if self._folder is None:
            return
        try:
            remove_unpinned(self._folder)
        except OSError as error:
            message = f"Text that was removed is still kept in {self._folder}: {error}."
            raise Unavailable(message, remedy="Delete the files there.") from error

    def settle(self, number: int) -> None:
        """All up to removal `number` is forgotten."""
        with self._lock:
            self.settled = max(self.settled, number)
            if self.settled == self._incurred and self._folder is not None:
                (self._folder / NOTE).unlink(missing_ok=True)
