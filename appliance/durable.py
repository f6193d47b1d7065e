"""Owns how a file's bytes, or the names in a folder, are made to survive a power cut.

Must not know what they are.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk as they are now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
