"""Owns the whole documents that are then damaged: small ones, each with what its format can hold.

Must not know how they are damaged.
"""

from __future__ import annotations

import io
import zipfile
from datetime import datetime
from email.message import EmailMessage
from importlib import import_module
from typing import Any

ROWS = [["Part", "Torque Nm", "备注"], ["Main bolt", "120", "三次对角拧紧"], ["Cover", "25.5", "no impact wrench"]]
TEXT = "Before opening the pump housing, cut the power. 打开泵壳之前必须切断电源。"


def seeds() -> dict[str, bytes]:
    """File name → bytes, the same kinds in the same order each time."""
    return {
        "a.pdf": _pdf(), "a.docx": _docx(), "a.html": _html().encode(), "a.csv": _csv().encode("gb18030"),
        "a.eml": _eml(), "a.xlsx": _xlsx(), "a.epub": _epub(), "a.pptx": _pptx(), "a.md": _markdown().encode(),
        "a.json": b'[{"name": "Pump", "torque": [1, 2.50, null], "note": "\\u6cf5"}]', "a.xml": _xml().encode("utf-16"),
    }  # fmt: skip


def _pdf() -> bytes:
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, invariant=True, pageCompression=0)
    canvas.setTitle("Pump")
    for page in range(2):
        canvas.bookmarkPage(f"p{page}")
        canvas.addOutlineEntry(f"Chapter {page}", f"p{page}")
        canvas.setFont("Helvetica-Bold", 18)
        canvas.drawString(72, 760, f"Chapter {page}")
        canvas.setFont("Helvetica", 11)
        canvas.drawString(72, 720, "Tighten the efficient bolt to 120 Nm.")
        canvas.grid([72, 200, 330], [600, 620, 640, 660])
        for line, row in enumerate(ROWS):
            canvas.drawString(76, 645 - 20 * line, row[0])
            canvas.drawString(204, 645 - 20 * line, row[1])
        canvas.showPage()
    canvas.drawImage(ImageReader(io.BytesIO(_png())), 0, 0, 600, 800)
    canvas.showPage()
    canvas.save()
    return out.getvalue()


def _docx() -> bytes:
    import docx

    document = docx.Document()
    document.add_heading("Pump", 1)
    document.add_paragraph(TEXT)
    document.add_paragraph("First", style="List Bullet")
    table = document.add_table(len(ROWS), len(ROWS[0]))
    for r, row in enumerate(ROWS):
        for c, text in enumerate(row):
            table.cell(r, c).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    return _saved(document)


def _pptx() -> bytes:
    import pptx

    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "Pump"
    slide.placeholders[1].text = TEXT
    slide.notes_slide.notes_text_frame.text = "Say that the torque is 25 Nm."
    return _saved(deck)


def _xlsx() -> bytes:
    xlsxwriter: Any = import_module("xlsxwriter")

    out = io.BytesIO()
    with xlsxwriter.Workbook(out) as book:
        book.set_properties({"created": datetime(2024, 3, 1)})
        for name in ("Torques", "保养"):
            sheet = book.add_worksheet(name)
            sheet.merge_range("A1:C1", "Head")
            for number, row in enumerate(ROWS):
                sheet.write_row(number + 1, 0, row)
            sheet.write_formula("A9", "=1+1", None, 2)
    return out.getvalue()


def _html() -> str:
    rows = "".join(f"<tr><td rowspan=2>{row[0]}<td>{row[1]}" for row in ROWS)
    return (
        "<!doctype html><html><head><meta charset=utf-8><title>Pump</title><style>p{}</style></head><body><nav>x</nav>"
        f"<h1>Pump</h1><p>{TEXT}<br>&amp;&#x6cf5;<ul><li>One<li>Two</ul><table>{rows}</table><pre>code\n  x</pre>"
    )


def _csv() -> str:
    return "".join(",".join(f'"{cell}"' for cell in row) + "\r\n" for row in ROWS * 5)


def _markdown() -> str:
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    return f"---\ntitle: Pump\n---\n# Pump\n\n{TEXT}\n\n- one\n  - two\n\n{table}\n\n```sh\nls\n```\n<b>x</b>\n"


def _xml() -> str:
    return f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY e "x">]><a id="1"><title>Pump</title><b>{TEXT} &e;</b></a>'


def _eml() -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Zoë <z@example.org>", "a@example.org", "泵"
    message.set_content(TEXT)
    message.add_alternative(_html(), subtype="html")
    message.add_attachment(_csv().encode(), maintype="text", subtype="csv", filename="价格.csv")
    message.add_attachment(_docx(), maintype="application", subtype="octet-stream", filename="a.docx")
    inner = EmailMessage()
    inner["Subject"] = "Inner"
    inner.set_content("Text.")
    message.add_attachment(inner)
    for number, part in enumerate(message.walk()):
        if part.get_content_maintype() == "multipart":
            part.set_boundary(f"b{number}")
    return message.as_bytes()


def _epub() -> bytes:
    item = '<item id="{0}" href="{0}.xhtml" media-type="application/xhtml+xml" properties="{1}"/>'
    page = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>x</title></head><body>{}</body></html>'
    files = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="b.opf"/></rootfiles></container>',
        "b.opf": (
            f"<package><metadata><title>Pump</title></metadata><manifest>{item.format('one', '')}"
            f'{item.format("two", "")}{item.format("nav", "nav")}</manifest><spine><itemref idref="one"/>'
            '<itemref idref="two"/></spine></package>'
        ),
        "one.xhtml": page.format(f"<h1>One</h1><p>{TEXT}</p>"),
        "two.xhtml": page.format(f"<p>{TEXT}</p>"),
        "nav.xhtml": page.format('<nav><ol><li><a href="two.xhtml#x">Second</a></li></ol></nav>'),
    }
    return zipped({name: text.encode() for name, text in files.items()})


def _png() -> bytes:
    from PIL import Image, ImageDraw

    image = Image.new("L", (120, 60), 255)
    ImageDraw.Draw(image).text((10, 20), "120 Nm", fill=0)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _saved(document: Any) -> bytes:
    """Office libraries write the time of day into the archive; here it is always the same."""
    out = io.BytesIO()
    document.save(out)
    with zipfile.ZipFile(out) as archive:
        return zipped({name: archive.read(name) for name in archive.namelist()})


def zipped(files: dict[str, bytes]) -> bytes:
    """An archive of these, the same for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()
