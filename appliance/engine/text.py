"""Owns the way from token bytes to text that may be shown: whole characters only, stop strings held back.

Must not know tokens, models or messages. The result depends on the bytes alone, not on how they were cut.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of one generated text into pieces that can be sent.

    - A character is released when all its bytes are there. Bytes that can never become a character are
      dropped, and so is an unfinished one at the end: no U+FFFD is ever made.
    - Text that could still become a stop string is held back and released when it can't.
    - The stop string that is completed first ends the text before its first character; of several completed
      by the same character, the longest counts.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.stopped = False

    def feed(self, data: bytes) -> str:
        """Add bytes; return the text that can now be sent. After a stop string, always "" ."""
        return "" if self.stopped else self._advance(self._decoder.decode(data))

    def finish(self) -> str:
        """No more bytes will come: return what was held back."""
        if self.stopped:
            return ""
        text = self._advance(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _advance(self, text: str) -> str:
        if not self._stop:
            return text
        text = self._held + text
        cut = self._cut(text)
        if cut is not None:
            self.stopped = True
            self._held = ""
            return text[:cut]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _cut(self, text: str) -> int | None:
        """Where the text ends if it holds a stop string."""
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
