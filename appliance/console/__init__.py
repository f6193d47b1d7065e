"""Owns the web console: the files that a browser loads, read from the package.

Must not know HTTP, nor what the page asks for.

`static/index.html` is the page; it names `boot.js` (before the first paint), `app.js` (modules import one another from
there), `style.css` and `icon.svg`; the words are in `en.json` and `zh.json`. There is no build step.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


class Asset(msgspec.Struct, frozen=True):
    """A file of the console."""

    media_type: str
    data: bytes
    sha256: str  # of `data`, in hexadecimal


def assets() -> dict[str, Asset]:
    """All files of the console by name, whole: some 100 kB. Files of other kinds beside them are none of it."""
    found = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in MEDIA_TYPES:
            data = path.read_bytes()
            found[path.name] = Asset(MEDIA_TYPES[path.suffix], data, hashlib.sha256(data).hexdigest())
    return found
