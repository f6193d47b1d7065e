"""Owns the look of the DOCX manual: blocks to a Word file with heading styles, lists and tables.

Must not know what any manual says.
"""

from __future__ import annotations

import io
import zipfile
from datetime import datetime
from typing import Any

import docx
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from docx.shared import Cm, Pt, RGBColor

from . import markup

WIDTH_CM = 16.0
FIXED = datetime(2024, 3, 1)
LABELS = {
    "danger": RGBColor(0xC4, 0x28, 0x1C),
    "care": RGBColor(0xB8, 0x74, 0x00),
    "hint": RGBColor(0x2A, 0x6F, 0xA8),
}


def build(head: markup.Head, blocks: list[markup.Block]) -> bytes:
    """The DOCX as bytes, the same for the same input."""
    document = docx.Document()
    section = document.sections[0]
    section.page_width, section.page_height = Cm(21), Cm(29.7)
    section.left_margin = section.right_margin = Cm(2.5)
    document.styles["Normal"].font.name = "Calibri"
    document.styles["Normal"].font.size = Pt(10.5)
    section.header.paragraphs[0].text = f"{head.product} {head.title}"
    section.footer.paragraphs[0].text = f"{head.number}, {head.revision}, {head.date}"
    core = document.core_properties
    core.title, core.author, core.subject = f"{head.product} {head.title}", head.maker, head.number
    core.created = core.modified = FIXED
    core.language, core.comments, core.revision = head.language, "", 1

    document.add_paragraph(f"{head.product} {head.title}", style="Title")
    document.add_paragraph(head.subtitle, style="Subtitle")
    values = (head.number, f"{head.revision}, {head.date}", head.serials)
    for label, value in zip(head.labels, values, strict=True):
        document.add_paragraph(f"{label}: {value}")
    document.add_paragraph(head.front)
    document.add_paragraph(head.disclaimer)
    for block in blocks:
        _add(document, block)

    raw = io.BytesIO()
    document.save(raw)
    return _with_fixed_dates(raw.getvalue())


def _add(document: Any, block: markup.Block) -> None:
    match block:
        case markup.Heading(level, text):
            document.add_heading(text, level)
        case markup.Para(text):
            _runs(document.add_paragraph(), text)
        case markup.Item(mark, text):
            # Numbers are typed, as a Word list would count on through all procedures of the file.
            if mark:
                paragraph = document.add_paragraph()
                paragraph.paragraph_format.left_indent = Cm(0.8)
                paragraph.paragraph_format.first_line_indent = Cm(-0.6)
                _runs(paragraph, f"{mark} {text}")
            else:
                _runs(document.add_paragraph(style="List Bullet"), text)
        case markup.Admonition(kind, label, text):
            paragraph = document.add_paragraph()
            paragraph.paragraph_format.left_indent = Cm(0.8)
            run = paragraph.add_run(f"{label}: ")
            run.bold, run.font.color.rgb = True, LABELS[kind]
            _runs(paragraph, text)
        case markup.Table(caption, widths, rows):
            document.add_paragraph(caption, style="Caption")
            table = document.add_table(rows=0, cols=len(widths), style="Light Grid Accent 1")
            for row in rows:
                for cell, text, width in zip(table.add_row().cells, row, widths, strict=True):
                    cell.text, cell.width = text, Cm(WIDTH_CM * width / 100)
            _repeat_header(table.rows[0])
            document.add_paragraph()
        case markup.PageBreak():
            document.add_page_break()


def _runs(paragraph: Any, text: str) -> None:
    for number, part in enumerate(text.split("**")):
        paragraph.add_run(part).bold = True if number % 2 else None


def _repeat_header(row: Any) -> None:
    mark = OxmlElement("w:tblHeader")
    mark.set(qn("w:val"), "true")
    row._tr.get_or_add_trPr().append(mark)


def _with_fixed_dates(data: bytes) -> bytes:
    """The same archive with one date on all members; python-docx stamps them with the time of the build."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for member in source.infolist():
            fixed = zipfile.ZipInfo(member.filename, FIXED.timetuple()[:6])
            fixed.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(fixed, source.read(member))
    return out.getvalue()
