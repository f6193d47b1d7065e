"""Spreadsheets, CSV files and slides: what is found of them, row by row."""

from __future__ import annotations

import csv
import io
import zipfile
from datetime import date, datetime
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.documents.formats import parse
from appliance.documents.formats.detect import by_content
from appliance.documents.model import Parsed
from appliance.errors import UnreadableDocument


def rows(parsed: Parsed) -> list[str]:
    return [block.text for block in parsed.blocks if block.kind == "table_row"]


def losses(parsed: Parsed) -> set[str]:
    return {loss.kind for loss in parsed.losses}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp1252", "utf-16"])
def test_csv_in_any_dialect_and_encoding(delimiter: str, encoding: str) -> None:
    text = f'Part{delimiter}Note\r\nValve é{delimiter}"costs 5 €{delimiter} or\r\nmore"\r\nBolt{delimiter}“soft”\r\n'
    parsed = parse("a.csv", text.encode(encoding))
    inner = delimiter.strip()
    assert rows(parsed) == ["Part | Note", f"Valve é | costs 5 €{inner} or more", "Bolt | “soft”"]
    assert parsed.encoding is not None
    assert {block.header for block in parsed.blocks} == {"", "Part | Note"}


def test_csv_with_excels_own_line_and_with_titles() -> None:
    assert rows(parse("a.csv", b"sep=;\nA;B\n1;2\n")) == ["A | B", "1 | 2"]
    parsed = parse("a.tsv", b"Torques of 2024\n\nPart\tNm\nBolt\t120\n")
    assert [(block.kind, block.text, block.header) for block in parsed.blocks] == [
        ("paragraph", "Torques of 2024", ""),
        ("table_row", "Part | Nm", ""),
        ("table_row", "Bolt | 120", "Part | Nm"),
    ]
    assert parsed.media_type == "text/tab-separated-values"

    parsed = parse("a.csv", b"Part,Nm\nBolt,120\n\nCover,25,extra\n")
    assert parsed.blocks[-1].header == "Part | Nm"


def test_a_quotation_mark_that_is_not_closed_costs_no_rows() -> None:
    text = 'Part,Note\nPipe,"3/4 inch\n' + "".join(f"Bolt {i},{i}\n" for i in range(50))
    parsed = parse("a.csv", text.encode())
    assert "Bolt 49 | 49" in rows(parsed) and losses(parsed) == {"rows_guessed"}
    parsed = parse("a.csv", b"A,B\n1,2\n1,2,3 more\n")
    assert rows(parsed)[-1] == "1 | 2 | 3 more" and losses(parsed) == {"rows_guessed"}


cells = st.text(st.sampled_from("ab1 é中,;\"|\t\n'"), max_size=8)


@settings(max_examples=150)
@given(st.lists(st.lists(cells, min_size=1, max_size=5), min_size=1, max_size=12))
def test_no_cell_of_a_csv_is_lost(table: list[list[str]]) -> None:
    # Each cell has a word of its own: whatever dialect is guessed, every word must be there.
    words = [f"w{place}w" for place, _ in enumerate(cell for row in table for cell in row)]
    rest = iter(words)
    out = io.StringIO()
    csv.writer(out).writerows([[next(rest) + cell for cell in row] for row in table])
    found = "\n".join(block.text for block in parse("a.csv", out.getvalue().encode()).blocks)
    assert all(word in found for word in words)


def workbook(**options: Any) -> bytes:
    xlsxwriter: Any = import_module("xlsxwriter")

    out = io.BytesIO()
    with xlsxwriter.Workbook(out, options) as book:
        bold = book.add_format()
        day, moment = book.add_format({"num_format": "yyyy-mm-dd"}), book.add_format({"num_format": "yyyy-mm-dd hh:mm"})
        first = book.add_worksheet("Torques")
        first.merge_range("A1:A2", "Part", bold)
        first.merge_range("B1:C1", "Torque", bold)
        first.write_row("B2", ["Nm", "lb ft"])
        first.write_row("A3", ["Main bolt", 120, 88.5])
        first.write_row("A4", ["盖板", 0.1 + 0.2, True])
        second = book.add_worksheet("保养")
        second.write_row("B3", ["Task", "Due"])
        second.write("B4", "Grease")
        second.write("C4", date(2026, 12, 2), day)
        second.write("B5", "Oil")
        second.write("C5", datetime(2026, 12, 2, 8, 30), moment)
        second.write("B6", "Sum")
        second.write_formula("C6", "=1+1", None, 2)
        second.hide()
        book.add_worksheet("Empty")
        chart = book.add_chart({"type": "line"})
        chart.add_series({"values": "=Torques!$B$3:$B$4"})
        first.insert_chart("F1", chart)
    return out.getvalue()


def test_a_workbook_with_two_sheets_and_a_merged_header() -> None:
    parsed = parse("a.xlsx", workbook())
    assert [block.text for block in parsed.blocks if block.kind == "heading"] == ["Torques", "保养"]
    assert rows(parsed)[:3] == ["Part | Torque Nm | Torque lb ft", "Main bolt | 120 | 88.5", "盖板 | 0.3 | TRUE"]
    text = "\n".join(rows(parsed))
    for expected in ("Task | Due", "Grease | 2026-12-02", "Oil | 2026-12-02 08:30:00", "Sum | 2"):
        assert expected in text
    assert {b.header for b in parsed.blocks if b.text.startswith("盖板")} == {"Part | Torque Nm | Torque lb ft"}
    assert losses(parsed) == {"chart_skipped"}


ODS = """<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 office:version="1.2"><office:body><office:spreadsheet><table:table table:name="Parts">
<table:table-row><table:table-cell office:value-type="string"><text:p>Part</text:p></table:table-cell>
<table:table-cell office:value-type="string"><text:p>Nm</text:p></table:table-cell></table:table-row>
<table:table-row><table:table-cell office:value-type="string"><text:p>Bolt</text:p></table:table-cell>
<table:table-cell office:value-type="float" office:value="120"><text:p>120</text:p></table:table-cell></table:table-row>
</table:table></office:spreadsheet></office:body></office:document-content>"""

MANIFEST = """<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">
<manifest:file-entry manifest:full-path="/" manifest:media-type="application/vnd.oasis.opendocument.spreadsheet"/>
<manifest:file-entry manifest:full-path="content.xml" manifest:media-type="text/xml"/></manifest:manifest>"""


def ods() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("content.xml", ODS.replace("\n", ""))
        archive.writestr("META-INF/manifest.xml", MANIFEST)
    return out.getvalue()


def test_an_open_document_spreadsheet() -> None:
    parsed = parse("a.ods", ods())
    assert rows(parsed) == ["Part | Nm", "Bolt | 120"] and parsed.blocks[0].text == "Parts"
    assert parsed.media_type.endswith("opendocument.spreadsheet")


def slides() -> bytes:
    from pptx import Presentation
    from pptx.enum.chart import XL_CHART_TYPE
    from pptx.util import Inches

    chart_data: Any = import_module("pptx.chart.data").CategoryChartData
    show: Any = Presentation()
    first = show.slides.add_slide(show.slide_layouts[5])
    first.shapes.title.text = "Pump start-up"
    frame = first.shapes.add_textbox(0, 0, Inches(2), Inches(1)).text_frame
    frame.text = "Open the suction valve."
    frame.add_paragraph().text = "先开吸入阀。"
    group = first.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.text = "Inside a group."
    table = first.shapes.add_table(2, 2, 0, 0, Inches(2), Inches(1)).table
    for place, text in enumerate(("Part", "Nm", "Bolt", "120")):
        table.cell(place // 2, place % 2).text = text
    first.notes_slide.notes_text_frame.text = "The key is in the red box."
    second = show.slides.add_slide(show.slide_layouts[6])
    data: Any = chart_data()
    data.categories = ["March", "April"]
    data.add_series("Hours", (10.5, 20))
    second.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, Inches(2), Inches(2), data)
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def test_slides_with_tables_charts_and_notes() -> None:
    parsed = parse("a.pptx", slides())
    assert parsed.title == "Pump start-up" and parsed.pages == 2
    assert [(block.text, block.page) for block in parsed.blocks] == [
        ("Pump start-up", 1),
        ("Open the suction valve.", 1),
        ("先开吸入阀。", 1),
        ("Inside a group.", 1),
        ("Part | Nm", 1),
        ("Bolt | 120", 1),
        ("Notes", 1),
        ("The key is in the red box.", 1),
        (" | Hours", 2),
        ("March | 10.5", 2),
        ("April | 20", 2),
    ]


@pytest.mark.parametrize(("name", "make"), [("a.xlsx", workbook), ("a.ods", ods), ("a.pptx", slides)])
def test_office_files_that_are_cut_changed_or_misnamed(name: str, make: Any) -> None:
    data = make()
    assert by_content("text", data) in ("sheets", "pptx")
    for size in range(10, len(data) - 1, len(data) // 12):
        with pytest.raises(UnreadableDocument, match=r"damaged|not a"):
            parse(name, data[:size])
    for part in range(20):
        place = len(data) * part // 20
        try:
            parse(name, data[:place] + b"\x00\xff\x13" + data[place + 3 :])
        except UnreadableDocument as error:
            assert error.message


@pytest.mark.parametrize("name", ["a.xlsx", "a.ods", "a.pptx"])
def test_other_archives_by_the_name_of_an_office_file(name: str) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(UnreadableDocument, match="It is a ZIP file, but not a"):
        parse(name, out.getvalue())
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", b" " * (100 << 20))
    with pytest.raises(UnreadableDocument, match="ZIP bomb"):
        parse(name, out.getvalue())
