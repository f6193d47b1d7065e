"""Owns which formats are read and which module reads each; the readers are imported when they are needed.

Must not know workers or limits.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import PurePath

import msgspec

from appliance.documents.model import Parsed
from appliance.errors import UnreadableDocument

# Extension → module here with `parse(data, stem) -> Parsed`.
FORMATS = {
    ".pdf": "pdf",
    ".docx": "docx",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".text": "text",
}
SUPPORTED = "PDF, DOCX, HTML, Markdown and plain text"


def extension_of(name: str) -> str:
    """The extension that decides how a file is read, in lower case."""
    return PurePath(name).suffix.lower()


def why_not(name: str) -> str | None:
    """Why a file of this name cannot be read; None when it can be tried."""
    extension = extension_of(name)
    if extension in FORMATS:
        return None
    kind = f"{extension} files are" if extension else "Files without an extension are"
    return f"{kind} not supported yet; supported are {SUPPORTED}."


def parse(name: str, data: bytes) -> Parsed:
    """Read a document.

    Raises:
        UnreadableDocument: it is empty, damaged, encrypted, not supported or not what its name says.
    """
    if reason := why_not(name):
        raise UnreadableDocument(reason)
    if not data.strip(b"\x00 \t\r\n") and len(data) < 1 << 20:
        raise UnreadableDocument("It is empty.")
    module = import_module(f"{__name__}.{FORMATS[extension_of(name)]}")
    parsed: Parsed = module.parse(data, PurePath(name).stem)
    blocks = tuple(block for block in parsed.blocks if block.text.strip())
    if not blocks:
        raise UnreadableDocument("It holds no text.")
    return msgspec.structs.replace(parsed, blocks=blocks)
