"""Owns the reading of EPUB: which files of the archive are chapters, in which order, and what they are called.

Must not know HTML: `formats.html` reads the chapters. Nothing outside of the archive is opened.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from appliance.documents.formats.html import blocks_of, text_of
from appliance.documents.formats.package import DAMAGED, local, open_zip, xml
from appliance.documents.losses import image_skipped, inside
from appliance.documents.model import Block, Parsed, one_line
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

if TYPE_CHECKING:
    import zipfile

    from lxml.etree import _Element

MEDIA_TYPE = "application/epub+zip"
CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
# Fonts are disguised by these; the text is not.
_DISGUISES = frozenset(("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"))
_PROTECTIONS = {
    "META-INF/license.lcpl": "Readium LCP",
    "META-INF/sinf.xml": "Apple FairPlay",
    "META-INF/rights.xml": "Adobe ADEPT",
}
_PAGES = frozenset(("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document"))


def parse(data: bytes, stem: str) -> Parsed:
    """Read a book; the title is its own, each chapter stands under its headings or its line in the contents.

    Raises:
        UnreadableDocument: it is damaged, no book, protected, or unpacks to too much.
    """
    with open_zip(data, "EPUB") as archive:
        _check_protection(archive)
        book = _Book(archive)
        blocks = list(book.blocks())
    title = book.title or next((block.text for block in blocks if block.kind == "heading"), stem)
    return Parsed(title, MEDIA_TYPE, tuple(blocks), encoding=book.encoding, losses=tuple(book.losses))


def _check_protection(archive: zipfile.ZipFile) -> None:
    names = set(archive.namelist())
    if _ENCRYPTION not in names:
        return
    methods = (e.get("Algorithm") for e in _xml(archive, _ENCRYPTION).iter("{*}EncryptionMethod"))
    if any(method not in _DISGUISES for method in methods):
        kind = next((kind for name, kind in _PROTECTIONS.items() if name in names), "DRM")
        raise UnreadableDocument(
            f"It is protected against copying ({kind}): its text is encrypted. Ask its publisher for a copy without."
        )


class _Book:
    """The package file: title, what is in the archive, the order of reading, and the contents list."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._names = set(archive.namelist())
        self.losses: list[Loss] = []
        self.encoding: str | None = None
        if CONTAINER not in self._names:
            raise UnreadableDocument("It is a ZIP file, but not an EPUB.")
        root = next(_xml(archive, CONTAINER).iter("{*}rootfile"), None)
        path = (root.get("full-path") or "") if root is not None else ""
        if path not in self._names:
            raise UnreadableDocument("It is damaged: its package file is missing.")
        package = _xml(archive, path)
        self._folder = posixpath.dirname(path)
        titles = (one_line(str(element.xpath("string()"))) for element in package.iter("{*}title"))
        self.title = next(filter(None, titles), "")
        self._items = {item.get("id") or "": item for item in package.iter("{*}item")}
        self._spine = list(dict.fromkeys(ref.get("idref") or "" for ref in package.iter("{*}itemref")))
        self._contents = self._read_contents()

    def blocks(self) -> Iterator[Block]:
        """The chapters in the order of reading."""
        images = 0
        for identity in self._spine:
            item = self._items.get(identity)
            path = self._path(item.get("href") or "") if item is not None else ""
            media_type = (item.get("media-type") or "") if item is not None else ""
            if path in self._names and media_type.startswith("image/"):
                images += 1
            elif path not in self._names or media_type not in _PAGES:
                why = f"is of the kind {media_type}" if path in self._names else "is missing"
                self.losses.append(Loss("chapter_unreadable", f"{path or identity} {why}"))
            else:
                yield from self._chapter(path)
        self.losses += image_skipped(images)

    def _chapter(self, path: str) -> list[Block]:
        try:
            text, encoding, losses = text_of(self._archive.read(path))
            blocks = blocks_of(text, losses)
        except (UnreadableDocument, *DAMAGED) as error:
            self.losses.append(Loss("chapter_unreadable", f"{path}: {one_line(str(error))}"))
            return []
        self.encoding = self.encoding or encoding
        self.losses += inside(path, losses)
        title = self._contents.get(path)
        if title and blocks and all(block.kind != "heading" for block in blocks):
            blocks.insert(0, Block("heading", title, level=1))
        return blocks

    def _read_contents(self) -> dict[str, str]:
        """The name of each file in the contents list; that of its first line there."""
        found: dict[str, str] = {}
        for item in self._items.values():
            navigation = "nav" in (item.get("properties") or "").split()
            if not navigation and item.get("media-type") != "application/x-dtbncx+xml":
                continue
            path = self._path(item.get("href") or "")
            try:
                root = _xml(self._archive, path)
            except UnreadableDocument:
                continue  # the chapters have headings of their own, most often
            for target, title in _links(root):
                found.setdefault(self._path(target, posixpath.dirname(path)), title)
        return found

    def _path(self, href: str, folder: str | None = None) -> str:
        """The name in the archive of what a link points to."""
        base = self._folder if folder is None else folder
        return posixpath.normpath(posixpath.join(base, unquote(href.partition("#")[0])))


def _links(root: _Element) -> Iterator[tuple[str, str]]:
    """Targets and texts of a contents list, of either version."""
    for element in root.iter("{*}navPoint", "{*}a"):
        if local(element) == "a":
            target, label = str(element.get("href") or ""), element.xpath("string()")
        else:
            target = str(element.xpath("string(*[local-name()='content']/@src)"))
            label = element.xpath("string(*[local-name()='navLabel'])")
        if target and (title := one_line(str(label))):
            yield target, title


def _xml(archive: zipfile.ZipFile, name: str) -> _Element:
    try:
        return xml(archive.read(name))
    except DAMAGED as error:
        raise UnreadableDocument(f"It is damaged: {one_line(str(error))}.") from error
