"""Owns cached bytes in memory: least recently used first out.

Must not know what the bytes mean, or disks. For any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

OVERHEAD_BYTES = 200  # of an entry, beside key and value: objects and table, about


class MemoryBytes:
    """Bytes by key, at most `limit_bytes` of them."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, tuple[bytes, str]] = OrderedDict()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> bytes | None:
        """The value, which is now the last to go."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def set(self, key: bytes, value: bytes, *, tag: str) -> None:
        """Keep a value until there is no room for it. `tag`: see `forget`."""
        with self._lock:
            self._remove(key)
            size = _size(key, value)
            if size > self._limit:
                return
            self._entries[key] = (value, tag)
            self.used_bytes += size
            while self.used_bytes > self._limit:
                self._remove(next(iter(self._entries)))

    def forget(self, tag: str) -> None:
        """Delete all values of that tag."""
        with self._lock:
            for key in [key for key, (_, of) in self._entries.items() if of == tag]:
                self._remove(key)

    def clear(self) -> None:
        """Delete all."""
        with self._lock:
            self._entries.clear()
            self.used_bytes = 0

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless what is counted is what is there."""
        with self._lock:
            used = sum(_size(key, value) for key, (value, _) in self._entries.items())
            assert used == self.used_bytes <= self._limit, f"{used} bytes, counted {self.used_bytes}"  # noqa: S101

    def _remove(self, key: bytes) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self.used_bytes -= _size(key, found[0])


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + OVERHEAD_BYTES
