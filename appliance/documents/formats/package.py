"""Owns the opening of files that hold other files (ZIP), and of XML, without being led astray.

Must not know what the parts mean.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import TYPE_CHECKING

from appliance.errors import UnreadableDocument

if TYPE_CHECKING:
    from lxml.etree import _Element

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # a compound file: old Office, an encrypted new one, a message
ZIP = b"PK\x03\x04"
DAMAGED = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError, RuntimeError, ValueError, KeyError)
_UNPACKED_MOST_BYTES = 512 << 20
_RATIO_MOST = 200  # XML packs about 10 to 1
_ENCRYPTED = 1  # flag of a ZIP entry


def open_zip(data: bytes, kind: str) -> zipfile.ZipFile:
    """The archive; `kind` names the format in messages.

    Raises:
        UnreadableDocument: it is no archive, encrypted, or would unpack to too much.
    """
    if data.startswith(OLE):
        raise UnreadableDocument(f"It is encrypted with a password, or of an older kind than {kind}.")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except DAMAGED as error:
        article = "an" if kind[0] in "AEIO" else "a"
        raise UnreadableDocument(f"It is damaged or not {article} {kind} file: {error}.") from error
    # zipfile never unpacks more of an entry than the size that its directory states.
    unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > _UNPACKED_MOST_BYTES or unpacked > max(len(data), 1 << 16) * _RATIO_MOST:
        raise UnreadableDocument(f"It would unpack to {unpacked >> 20} MB; that looks like a ZIP bomb.")
    if any(info.flag_bits & _ENCRYPTED for info in archive.infolist()):
        raise UnreadableDocument("It is encrypted; remove its password first.")
    return archive


def xml(data: bytes) -> _Element:
    """The root of an XML document; nothing is fetched for it, and its own entities stay as they are.

    Raises:
        UnreadableDocument: it is damaged.
    """
    from lxml import etree

    try:
        return etree.fromstring(data, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False))
    except (etree.XMLSyntaxError, ValueError) as error:
        raise UnreadableDocument(f"It is damaged: {error}.") from error


def local(element: _Element) -> str:
    """An element's tag without its namespace; comments and entities have none."""
    return str(element.tag).rpartition("}")[2]
