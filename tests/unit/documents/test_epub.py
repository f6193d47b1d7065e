"""EPUB: chapters in the order of reading, under the names that the book gives them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import pytest

from appliance.documents.formats import parse
from appliance.documents.model import Parsed
from appliance.errors import UnreadableDocument

CONTAINER = """<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">
<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="{version}">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>泵 manual</dc:title></metadata>
<manifest>{items}</manifest><spine toc="ncx">{spine}</spine></package>"""
PAGE = """<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE html [<!ENTITY own SYSTEM "file:///etc/passwd">]>
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>File</title><script/></head><body>{text}</body></html>"""
NAV = """<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>
<nav epub:type="toc">
<ol><li><a href="text/two%20b.xhtml#start">Second <b>chapter</b></a></li><li><a href="text/one.xhtml">First</a></li>
</ol></nav></body></html>"""
NCX = """<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap><navPoint>
<navLabel><text>Second chapter</text></navLabel>
<content src="text/two%20b.xhtml#start"/></navPoint></navMap></ncx>"""


def item(identity: str, href: str, kind: str = "application/xhtml+xml", properties: str = "") -> str:
    return f'<item id="{identity}" href="{href}" media-type="{kind}" properties="{properties}"/>'


def page(text: str, encoding: str = "utf-8") -> bytes:
    return PAGE.format(text=text, encoding=encoding).encode(encoding)


def book(more: Mapping[str, bytes | None] = {}, *, version: str = "3.0", spine: str = "two one nav") -> bytes:
    items = [
        item("one", "text/one.xhtml"),
        item("two", "text/two%20b.xhtml"),
        item("nav", "nav.xhtml", properties="nav" if version == "3.0" else ""),
        item("ncx", "t.ncx", "application/x-dtbncx+xml" if version == "2.0" else "application/xml"),
        item("cover", "cover.jpg", "image/jpeg"),
        item("song", "song.mp3", "audio/mpeg"),
        item("lost", "text/lost.xhtml"),
    ]
    references = "".join(f'<itemref idref="{name}"/>' for name in spine.split())
    files: dict[str, bytes | None] = {
        "mimetype": b"application/epub+zip",
        "META-INF/container.xml": CONTAINER.encode(),
        "OEBPS/book.opf": PACKAGE.format(version=version, items="".join(items), spine=references).encode(),
        "OEBPS/text/one.xhtml": page("<h1>One</h1><p>The torque is 25 Nm.</p>"),
        "OEBPS/text/two b.xhtml": page("<p>Café &own; and<img alt='a valve' src='x.png'/> 扭矩。</p>", "utf-16"),
        "OEBPS/nav.xhtml": NAV.encode(),
        "OEBPS/t.ncx": NCX.encode(),
        "OEBPS/cover.jpg": b"x",
        "OEBPS/song.mp3": b"x",
    }
    return zipped({**files, **more})


def zipped(files: Mapping[str, bytes | None]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            if data is not None:
                archive.writestr(name, data)
    return out.getvalue()


def shown(parsed: Parsed) -> list[str]:
    return [f"{'#' * b.level} {b.text}".strip() for b in parsed.blocks]


@pytest.mark.parametrize("version", ["2.0", "3.0"])
def test_chapters_in_the_order_of_reading(version: str) -> None:
    parsed = parse("a.epub", book(version=version, spine="two one two"))
    assert (parsed.title, parsed.media_type) == ("泵 manual", "application/epub+zip")
    assert shown(parsed)[0] == "# Second chapter" and shown(parsed)[2:] == ["# One", "The torque is 25 Nm."]
    assert "a valve 扭矩。" in shown(parsed)[1] and "root" not in shown(parsed)[1]
    assert [loss.detail for loss in parsed.losses] == [
        "OEBPS/text/two b.xhtml: 1 images; only their descriptions are kept"
    ]


def test_what_is_not_read_of_a_book_is_told() -> None:
    parsed = parse("a.epub", book(spine="cover nav one song lost nowhere"))
    assert shown(parsed) == ["# One", "The torque is 25 Nm."]
    assert [(loss.kind, loss.detail) for loss in parsed.losses] == [
        ("navigation_skipped", "OEBPS/nav.xhtml: 1 navigation menus"),
        ("chapter_unreadable", "OEBPS/song.mp3 is of the kind audio/mpeg"),
        ("chapter_unreadable", "OEBPS/text/lost.xhtml is missing"),
        ("chapter_unreadable", "nowhere is missing"),
        ("image_skipped", "1 images; only their descriptions are kept"),
    ]


def test_a_damaged_chapter_costs_that_chapter() -> None:
    data = bytearray(book(spine="two one"))
    place = data.index(b"The torque")
    data[place] ^= 1  # its checksum is wrong now
    parsed = parse("a.epub", bytes(data))
    assert shown(parsed)[0] == "# Second chapter"
    assert ["Bad CRC-32" in loss.detail for loss in parsed.losses if loss.kind == "chapter_unreadable"] == [True]


def encrypted(method: str) -> bytes:
    return (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><EncryptedData '
        f'xmlns="http://www.w3.org/2001/04/xmlenc#"><EncryptionMethod Algorithm="{method}"/></EncryptedData>'
        "</encryption>"
    ).encode()


AES = encrypted("http://www.w3.org/2001/04/xmlenc#aes256-cbc")


def test_disguised_fonts_are_no_protection() -> None:
    fonts = encrypted("http://www.idpf.org/2008/embedding")
    assert parse("a.epub", book({"META-INF/encryption.xml": fonts})).title == "泵 manual"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (book({"META-INF/encryption.xml": AES}), r"protected against copying \(DRM\)"),
        (book({"META-INF/encryption.xml": AES, "META-INF/rights.xml": b"x"}), "Adobe ADEPT"),
        (book({"META-INF/encryption.xml": AES, "META-INF/license.lcpl": b"x"}), "Readium LCP"),
        (book({"OEBPS/book.opf": None}), "package file is missing"),
        (book({"OEBPS/book.opf": b"<package>"}), "damaged"),
        (book({"META-INF/container.xml": None}), "not an EPUB"),
        (book(spine="lost"), "no text"),
        (book()[:-30], "damaged or not an EPUB"),
        (b"PK no archive", "damaged or not an EPUB"),
        (b"text", "damaged or not an EPUB"),
    ],
)
def test_what_is_no_readable_book(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument, match=reason):
        parse("a.epub", data)


def test_a_book_is_known_by_its_content() -> None:
    assert parse("a.txt", book()).media_type == "application/epub+zip"
    unnamed = book({"mimetype": None})
    assert parse("a.docx", unnamed).media_type == "application/epub+zip"
