"""Owns which format a file is in: by its name, and by its first bytes where these say otherwise.

Must not know how a format is read.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import PurePath

from appliance.documents.formats.package import DAMAGED, OLE, ZIP
from appliance.errors import UnreadableDocument

SUPPORTED = (
    "PDF, DOCX, PPTX, spreadsheets (XLSX, XLS, XLSB, ODS, CSV), HTML, EPUB, mail (EML, MSG), Markdown, "
    "reStructuredText, AsciiDoc, JSON, XML, source code, plain text, and with tesseract images (PNG, JPEG, TIFF)"
)
_EXTENSIONS = {
    "pdf": "pdf",
    "docx": "docx",
    "pptx": "pptx",
    "sheets": "xlsx xlsm xlsb xls ods",
    "csv": "csv tsv tab",
    "image": "png jpg jpeg tif tiff",
    "html": "html htm xhtml",
    "epub": "epub",
    "eml": "eml",
    "msg": "msg",
    "markdown": "md markdown",
    "text": "txt text log",
    "rst": "rst rest",
    "asciidoc": "adoc asciidoc asc",
    "json": "json jsonl ndjson geojson",
    "xml": "xml",
    "source": (
        "py pyi js mjs cjs jsx ts tsx java kt kts scala groovy c h cc cpp cxx hh hpp hxx ino cs go rs swift rb php pl "
        "pm lua r jl sh bash zsh ps1 bat cmd sql proto cmake tcl vb pas st ex exs erl hs ml clj yaml yml toml ini cfg "
        "conf"
    ),
}
# Extension → module of this package with `parse(data, stem) -> Parsed`.
FORMATS = {f".{extension}": module for module, listed in _EXTENSIONS.items() for extension in listed.split()}
_TEXTUAL = frozenset(("csv", "html", "markdown", "text", "rst", "asciidoc", "json", "xml", "source", "eml"))
# Streams of compound files, in the order in which they tell.
_IN_OLE = (
    ("EncryptedPackage", "It is encrypted; remove its password first."),
    ("WordDocument", "It is an old Word file: open it in Word or LibreOffice, and save it as DOCX."),
    ("PowerPoint Document", "It is an old PowerPoint file: open it in PowerPoint or LibreOffice, and save it as PPTX."),
)
# Kinds that people have and that are not read, by extension: what to do.
_INSTEAD = {
    ".doc": _IN_OLE[1][1],
    ".dot": _IN_OLE[1][1],
    ".ppt": _IN_OLE[2][1],
    ".pps": _IN_OLE[2][1],
    ".odt": "It is a LibreOffice text: save it as DOCX.",
    ".odp": "It is a LibreOffice presentation: save it as PPTX.",
    ".rtf": "It is an RTF file: save it as DOCX.",
    ".mobi": "It is a book for Kindle: convert it to EPUB, with Calibre for example.",
    ".azw3": "It is a book for Kindle: convert it to EPUB, with Calibre for example.",
}
_IN_ZIP = {
    "word/document.xml": "docx",
    "ppt/presentation.xml": "pptx",
    "xl/workbook.xml": "sheets",
    "xl/workbook.bin": "sheets",
    "META-INF/container.xml": "epub",
}
_MIMETYPES = {b"application/vnd.oasis.opendocument.spreadsheet": "sheets", b"application/epub+zip": "epub"}
_MIMETYPE_MOST_BYTES = 200
_BEGIN_BYTES = 1024
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_IMAGES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"II*\x00", b"MM\x00*")
_MAGIC = (
    (b"\x89PNG", "a PNG image"),
    (b"\x7fELF", "a program"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!\x1a", "a RAR archive"),
    (b"SQLite format 3\x00", "a database"),
    (b"{\\rtf", "an RTF file"),
)


def extension_of(name: str) -> str:
    """The extension that decides how a file is read, in lower case."""
    return PurePath(name).suffix.lower()


def by_name(name: str) -> str | None:
    """The module that reads files of this name; None when there is none."""
    return FORMATS.get(extension_of(name))


def why_not(name: str) -> str | None:
    """Why a file of this name cannot be read; None when it can be tried."""
    if by_name(name):
        return None
    extension = extension_of(name)
    if instead := _INSTEAD.get(extension):
        return instead
    kind = f"{extension} files are" if extension else "Files without an extension are"
    return f"{kind} not supported yet; supported are {SUPPORTED}."


def by_content(module: str, data: bytes) -> str:
    """The module that reads these bytes, of which the name says `module`.

    Raises:
        UnreadableDocument: they are of a kind that is not read, whatever the name says.
    """
    if b"%PDF-" in data[:1024] and not (module in _TEXTUAL and data.find(b"%PDF-")):
        return "pdf"
    if data.startswith(_IMAGES) and module not in _TEXTUAL:
        return "image"
    if data.startswith(OLE):
        if module == "msg" or "__properties_version1.0".encode("utf-16-le") in data:
            return "msg"  # a message of Outlook; what is attached to it may be anything
        if "Workbook".encode("utf-16-le") in data and "EncryptedPackage".encode("utf-16-le") not in data:
            return "sheets"  # an old Excel file
        raise UnreadableDocument(_compound(data))
    if data.startswith(ZIP):
        if office := _in_zip(data):
            return office
        kind = "a ZIP archive or another office document"
    else:
        kind = next((kind for magic, kind in _MAGIC if data.startswith(magic)), "")
    if module == "msg" and not kind:
        return "eml"
    if module == "sheets" and not kind:
        return _exported(data)
    if kind and module in _TEXTUAL:
        raise UnreadableDocument(f"It is named as text, but it is {kind}.")
    return module


def _exported(data: bytes) -> str:
    """The module that reads what programs export under the name of a spreadsheet that it is not."""
    begin = data[:_BEGIN_BYTES]
    if begin.startswith(_UTF16_MARKS):
        begin = begin.replace(b"\x00", b"")[2:]
    begin = begin.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if begin.startswith(b"<?xml") and b"<html" not in begin:
        return "xml"
    if begin.startswith(b"<"):
        return "html"
    if begin.startswith((b"mime-version:", b"content-type:")):
        return "eml"  # a page that was saved with its pictures
    return "sheets" if b"\x00" in begin else "csv"


def _in_zip(data: bytes) -> str:
    """The module that reads what an archive holds; "" when there is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if "mimetype" in names and archive.getinfo("mimetype").file_size < _MIMETYPE_MOST_BYTES:
                said = archive.read("mimetype")
                return next((module for kind, module in _MIMETYPES.items() if said.startswith(kind)), "")
    except DAMAGED:
        return ""
    return next((module for part, module in _IN_ZIP.items() if part in names), "")


def _compound(data: bytes) -> str:
    for stream, kind in _IN_OLE:
        if stream.encode("utf-16-le") in data:
            return kind
    return "It is encrypted with a password, or an old Office file."
