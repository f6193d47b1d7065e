"""Scanned pages and images: their text where tesseract is installed, and what is said where it is not."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from appliance.documents import ocr_tesseract, walk
from appliance.documents.formats import parse
from appliance.documents.model import Parsed
from appliance.documents.ocr import NoOcr, Picture, Recognised, Unrecognised
from appliance.documents.ocr_tesseract import Tesseract
from appliance.errors import UnreadableDocument
from build_scripts.fuzz_documents.mutate import mutated

TEXT = "Tighten the main bolt to 120 Nm"


def scan(text: str = TEXT, mode: str = "L") -> Image.Image:
    small = Image.new("L", (260, 80), 255)
    ImageDraw.Draw(small).text((10, 30), text, fill=0)
    return small.resize((1300, 400), Image.Resampling.LANCZOS).convert(mode)


def saved(kind: str, *images: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    more = {"save_all": True, "append_images": images[1:], "compression": "tiff_deflate"} if len(images) > 1 else {}
    images[0].save(out, kind, **more, **options)
    return out.getvalue()


def pdf(*pages: tuple[Image.Image | None, str]) -> bytes:
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(600, 400))
    for image, text in pages:
        if image is not None:
            canvas.drawImage(ImageReader(image), 0, 80, 600, 300)
        canvas.drawString(20, 20, text)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


class Scripted:
    """Says of each picture what the test wants, and keeps it."""

    def __init__(self, *said: Recognised | str) -> None:
        self._said = list(said)
        self.pictures: list[Picture] = []

    def read(self, picture: Callable[[], Picture]) -> Recognised:
        self.pictures.append(picture())
        said = self._said.pop(0)
        if isinstance(said, str):
            raise Unrecognised(said)
        return said


def found(*paragraphs: str, confidence: float = 90.0, left_out: int = 0) -> Recognised:
    return Recognised(paragraphs, confidence, "chi_sim+eng", left_out)


def told(parsed: Parsed) -> list[tuple[str, str, int | None]]:
    return [(loss.kind, loss.detail, loss.page) for loss in parsed.losses]


WHOLE: dict[str, dict[str, Any]] = {"a.tif": {"compression": "tiff_deflate"}}
LONG = "This page has a text of its own, and more of it than a page number or the stamp of an archive would have."


def test_pages_of_a_pdf_stand_where_they_are_and_say_how_they_were_read() -> None:
    ocr = Scripted(found("Bolts.", "拧紧力矩"), "Only 2 images.", found(), found("Stains", confidence=40, left_out=3))
    data = pdf((scan(), ""), (None, LONG), (scan(), LONG), (scan(), ""), (scan(), ""), (scan(), "17"), (None, ""))
    parsed = parse("a.pdf", data, ocr)
    assert [(b.text, b.page) for b in parsed.blocks] == [
        ("Bolts.", 1), ("拧紧力矩", 1), (LONG, 2), (LONG, 3), ("Stains", 6)
    ]  # fmt: skip
    assert told(parsed) == [
        ("page_without_text", "the page is empty", 7),
        ("page_without_text", "the page is an image, such as a scan. Only 2 images", 4),
        ("page_without_text", "no text was recognised in the image", 5),
        ("text_doubtful", "recognised with a confidence of 40 %; 3 pieces are left out", 6),
        (
            "text_recognised",
            "2 pages are images; their text was recognised as chi_sim+eng, with a confidence of 65 %",
            None,
        ),
    ]
    assert {(p.width, p.height, p.dpi, len(p.pixels)) for p in ocr.pictures} == {(2500, 1667, 300, 2500 * 1667)}


def test_a_page_with_a_stamp_keeps_it_where_nothing_is_recognised() -> None:
    parsed = parse("a.pdf", pdf((scan(), "Page 17")))
    assert [b.text for b in parsed.blocks] == ["Page 17"]
    assert told(parsed) == [("page_without_text", "the page is an image, such as a scan", 1)]


KINDS = {"PNG": "L 1 RGB RGBA P I;16", "JPEG": "L RGB CMYK", "TIFF": "L 1 RGB RGBA P CMYK I;16"}


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in KINDS.items() for mode in modes.split()])
def test_images_of_every_kind_are_shown_in_grey(kind: str, mode: str) -> None:
    image = scan(mode="L")
    if mode == "I;16":
        image = image.convert("I").point(lambda value: value * 257).convert("I;16")
    data = saved(kind, image if mode == "I;16" else image.convert(mode), dpi=(200, 200))
    ocr = Scripted(found("Text"))
    parsed = parse("a.png", data, ocr)
    assert (parsed.media_type, parsed.pages, parsed.title) == (f"image/{kind.lower()}", 1, "a")
    (picture,) = ocr.pictures
    assert (picture.width, picture.height, picture.dpi) == (1300, 400, 200)
    assert max(picture.pixels) > 200 and min(picture.pixels) < 60
    assert sum(picture.pixels) / len(picture.pixels) > 200  # paper is white, letters are few


def test_pictures_of_a_tiff_are_pages_and_large_ones_are_made_smaller() -> None:
    large = Image.new("1", (8000, 8000), 1)
    ocr = Scripted(found("One"), found("Two"))
    parsed = parse("a.tif", saved("TIFF", scan(), large), ocr)
    assert [(b.text, b.page) for b in parsed.blocks] == [("One", 1), ("Two", 2)] and parsed.pages == 2
    assert ocr.pictures[1].width == 4000


def test_a_damaged_picture_costs_its_page() -> None:
    ocr = Scripted(found("One"), found("Three"))
    data = bytearray(saved("TIFF", scan("first"), scan("second"), scan("third")))
    image: Any = Image.open(io.BytesIO(bytes(data)))
    image.seek(1)
    start = image.tag_v2[273][0]  # where its pixels begin
    data[start : start + 40] = bytes(40)
    parsed = parse("a.tif", bytes(data), ocr)
    assert [b.page for b in parsed.blocks] == [1, 3]
    assert ("page_without_text", 2) in {(loss.kind, loss.page) for loss in parsed.losses}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")  # what PIL says of damaged files
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.pdf"])
def test_damaged_pictures_are_read_or_refused(name: str) -> None:
    kinds = {"a.png": "PNG", "a.jpg": "JPEG", "a.tif": "TIFF"}
    whole = saved(kinds[name], scan(), **WHOLE.get(name, {})) if name in kinds else pdf((scan(), ""))
    for number in range(40):
        with contextlib.suppress(UnreadableDocument):
            parse(name, mutated(whole, [whole], random.Random(number)), Scripted(*[found("Text")] * 9))


def test_a_photograph_is_turned_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    ocr = Scripted(found("Text"))
    parse("a.jpg", saved("JPEG", scan(), exif=exif), ocr)
    assert (ocr.pictures[0].width, ocr.pictures[0].height) == (400, 1300)


@pytest.mark.parametrize(
    ("name", "data", "ocr", "reason"),
    [
        ("a.png", saved("PNG", scan()), NoOcr("Install it."), "It is an image. Install it."),
        ("a.png", saved("PNG", scan()), Scripted(found()), "No text was recognised in it."),
        ("a.png", saved("PNG", scan())[:900], Scripted(found()), "It is damaged"),
        ("a.png", b"no image at all", Scripted(found()), "It is damaged"),
        ("a.tif", b"II*\x00" + bytes(60), Scripted(found()), "It is damaged"),
        ("a.pdf", pdf((scan(), "")), NoOcr("Install it."), "it may be a scan. Install it."),
    ],
)
def test_what_is_not_read_says_why(name: str, data: bytes, ocr: NoOcr, reason: str) -> None:
    with pytest.raises(UnreadableDocument) as caught:
        parse(name, data, ocr)
    assert reason in caught.value.message


def test_scans_in_a_mail_are_read_too() -> None:
    from email.message import EmailMessage

    mail = EmailMessage()
    mail["Subject"] = "Scan"
    mail.set_content("See the scan.")
    mail.add_attachment(saved("PNG", scan()), maintype="image", subtype="png", filename="scan.png")
    parsed = parse("a.eml", mail.as_bytes(), Scripted(found("Recognised.")))
    assert [b.text for b in parsed.blocks][-2:] == ["scan.png", "Recognised."]


def test_in_folders_small_images_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "icon.png").write_bytes(b"x")
    (tmp_path / "scan.png").write_bytes(bytes(walk._PAGE_BYTES))
    monkeypatch.setattr(walk, "installed", lambda: True)
    assert {f.name: f.status for f in walk.find_files([tmp_path])} == {"icon.png": "skipped", "scan.png": ""}
    assert [f.status for f in walk.find_files([tmp_path / "icon.png"])] == [""]
    monkeypatch.setattr(walk, "installed", lambda: False)
    assert {f.name: f.status for f in walk.find_files([tmp_path])} == {"icon.png": "skipped", "scan.png": "skipped"}


# -- tesseract: a script in its place, and the real one --------------------------------------------------------------

TABLE = "level\tpage_num\tblock_num\tpar_num\tline_num\tword_num\tleft\ttop\twidth\theight\tconf\ttext\n"


def words(*lines: str, paragraph: int = 1, confidence: float = 90) -> str:
    return "".join(
        f"5\t1\t1\t{paragraph}\t{number}\t1\t0\t0\t9\t9\t{confidence}\t{word}\n"
        for number, line in enumerate(lines)
        for word in line.split()
    )


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a shell script in tesseract's place; what it was called with is written to the path."""

    def put(script: str) -> Path:
        program = tmp_path / "tesseract"
        listed = "List of available languages (3):\nchi_sim\neng\nosd"
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ $1 = --list-langs ] && echo "{listed}" && exit\n{script}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "calls"

    return put


def picture() -> Picture:
    return Picture(2, 1, b"\x00\xff")


def said(tmp_path: Path, table: str) -> str:
    (tmp_path / "said").write_text(TABLE + table, encoding="utf-8")
    return f"cat > /dev/null; cat {tmp_path}/said"


def test_words_become_paragraphs(tmp_path: Path, scripted: Callable[[str], Path]) -> None:
    table = words('The "pump', "is in-", "stalled on Pro-", "File 3") + words("拧紧 力矩", "为 25 Nm", paragraph=2)
    calls = scripted(said(tmp_path, table + words("~~ | =", paragraph=3) + words("xq", paragraph=4, confidence=20)))
    read = Tesseract(2, 10, lambda: None).read(picture)
    assert read.paragraphs == ['The "pump is installed on Pro- File 3', "拧紧力矩为 25 Nm"]
    assert (round(read.confidence), read.languages, read.left_out) == (90, "chi_sim+eng", 1)
    assert calls.read_text().splitlines() == ["--list-langs", "stdin stdout -l chi_sim+eng --psm 3 tsv"]


def test_where_it_is_unsure_other_ways_are_tried(tmp_path: Path, scripted: Callable[[str], Path]) -> None:
    calls = scripted(said(tmp_path, words("a b c", confidence=50)))
    Tesseract(2, 10, lambda: None).read(picture)
    assert [call.split()[3:6] for call in calls.read_text().splitlines()[1:]] == [
        ["chi_sim+eng", "--psm", "3"], ["chi_sim", "--psm", "3"], ["chi_sim+eng", "--psm", "1"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exec sleep 30", "took too long"),
        ("echo bad image >&2; exit 1", r"failed \(1\): bad image"),
        ("kill -9 $$", "-9"),
    ],
)
def test_when_it_fails_the_page_is_not_read(script: str, reason: str, scripted: Callable[[str], Path]) -> None:
    scripted(script)
    with pytest.raises(Unrecognised, match=reason):
        Tesseract(2, 0.3, lambda: None).read(picture)


def test_pages_are_counted(tmp_path: Path, scripted: Callable[[str], Path]) -> None:
    scripted(said(tmp_path, words("a")))
    times: list[int] = []
    reader = Tesseract(2, 10, lambda: times.append(1))
    reader.read(picture)
    reader.read(picture)
    with pytest.raises(Unrecognised, match="Only 2 images"):
        reader.read(picture)
    assert len(times) == 2


def test_without_tesseract_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unrecognised, match="apt install tesseract-ocr"):
        Tesseract(2, 10, lambda: None).read(picture)


@pytest.mark.skipif(not ocr_tesseract.installed(), reason="tesseract is not installed")
def test_the_real_one_reads_a_scan() -> None:
    parsed = parse("a.png", saved("PNG", scan()), Tesseract(5, 60, lambda: None))
    assert "120 Nm" in parsed.blocks[0].text
