"""Which reader a file gets, and the loss report that is the same for all of them."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import pytest

import appliance.documents
from appliance.documents.formats import parse
from appliance.documents.formats.detect import by_content
from appliance.documents.formats.package import OLE
from appliance.documents.losses import KINDS, bounded
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss
from build_scripts.fuzz_documents.seeds import seeds
from build_scripts.fuzz_documents.seeds import zipped as repacked


def zipped(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return out.getvalue()


def test_bytes_say_the_format_where_the_name_is_wrong() -> None:
    assert by_content("text", b"%PDF-1.7 ...") == "pdf"
    assert by_content("html", zipped("word/document.xml")) == "docx"
    assert by_content("text", b"A note about the mark %PDF- of such files.") == "text"


DOC = "It is an old Word file: open it in Word or LibreOffice, and save it as DOCX."


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (zipped("visio/document.xml"), "It is named as text, but it is a ZIP archive or another office document."),
        (b"SQLite format 3\x00", "It is named as text, but it is a database."),
        (OLE + "EncryptedPackage".encode("utf-16-le"), "It is encrypted; remove its password first."),
        (OLE + "WordDocument".encode("utf-16-le"), DOC),
        (OLE, "It is encrypted with a password, or an old Office file."),
    ],
)
def test_bytes_that_no_reader_reads(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument) as caught:
        parse("a.txt", data)
    assert caught.value.message == reason


@pytest.mark.parametrize(("name", "kind"), [("a.doc", "DOCX"), ("B.PPT", "PPTX"), ("c.mobi", "EPUB")])
def test_of_kinds_that_people_have_and_that_are_not_read_it_says_what_to_do(name: str, kind: str) -> None:
    with pytest.raises(UnreadableDocument, match=f"(save|convert) it (as|to) {kind}"):
        parse(name, b"x")


TABLE = "<table><tr><td>Part</td><td>Nm</td></tr><tr><td>盖板</td><td>25</td></tr></table>"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
@pytest.mark.parametrize(
    ("text", "media_type"),
    [
        (TABLE, "text/html"),
        (f"\n<HTML xmlns:x='urn:schemas-microsoft-com:office:excel'><body>{TABLE}</body></HTML>", "text/html"),
        ("Part\tNm\r\n盖板\t25\r\n", "text/tab-separated-values"),
    ],
)
def test_a_spreadsheet_by_name_alone_is_read_as_what_it_is(text: str, media_type: str, encoding: str) -> None:
    parsed = parse("export.xls", text.encode(encoding))
    assert parsed.media_type == media_type
    assert [b.text for b in parsed.blocks] == ["Part | Nm", "盖板 | 25"]


def test_so_is_a_page_that_was_saved_with_its_pictures() -> None:
    page = f"MIME-Version: 1.0\nContent-Type: text/html; charset=utf-8\n\n{TABLE}"
    assert [b.text for b in parse("export.xls", page.encode()).blocks] == ["Part | Nm", "盖板 | 25"]


@pytest.mark.parametrize("data", [b"\x09\x08\x10\x00\x00\x06\x05\x00", b"\x00\x01" * 50, b"\x07 not text \x00"])
def test_a_spreadsheet_that_is_none_of_these(data: bytes) -> None:
    with pytest.raises(UnreadableDocument, match="damaged"):
        parse("a.xls", data)


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html"])
def test_unreadable_characters_are_told_by_every_format(name: str) -> None:
    parsed = parse(name, "Torque \ue123\ue124 of 25 \ufffd Nm".encode())
    assert [loss.detail for loss in parsed.losses if loss.kind == "characters_replaced"] == [
        "2 characters mean something in their own font alone",
        "1 characters have no readable code",
    ]


def test_a_table_in_a_table_is_told() -> None:
    page = b"<p>x</p><table><tr><td>a<table><tr><td>b</td></tr></table></td></tr></table>"
    assert "table_flattened" in {loss.kind for loss in parse("a.html", page).losses}


def test_the_report_is_bounded_and_tells_nothing_twice() -> None:
    losses = [Loss("page_without_text", "empty", number) for number in range(1, 200)] + [Loss("image_skipped", "1")] * 3
    kept = bounded(losses)
    assert len(kept) == 52 and kept[50].detail == "and 149 more" and kept[51] == Loss("image_skipped", "1")


def test_every_kind_of_loss_is_explained_and_used() -> None:
    folder = Path(appliance.documents.__file__).parent
    used = {kind for file in folder.rglob("*.py") for kind in re.findall(r'Loss\(\s*"(\w+)"', file.read_text("utf-8"))}
    assert used == set(KINDS)


@pytest.mark.parametrize("name", ["a.docx", "a.pptx", "a.xlsx", "a.epub"])
def test_an_archive_without_one_of_its_parts_is_read_or_damaged(name: str) -> None:
    # And with a part that is another one: what libraries raise then is not what they document.
    whole = seeds()[name]
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    some = next(data for part, data in parts.items() if part.endswith((".xml", ".xhtml")))
    for part in parts:
        for changed in ({p: d for p, d in parts.items() if p != part}, parts | {part: some}):
            try:
                parse(name, repacked(changed))
            except UnreadableDocument as error:
                assert error.message
