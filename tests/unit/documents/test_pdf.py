"""PDF: the right page, headings, tables as rows, running lines and contents lists left out."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph, Table

from appliance.documents.chunk import chunks_of
from appliance.documents.formats import parse
from appliance.documents.ligatures import restored
from appliance.documents.model import Block, Parsed
from appliance.errors import UnreadableDocument
from appliance.samples import FOLDER, SampleQuestion, questions
from appliance.store.records import NewChunk

WIDTH, HEIGHT = A4
BODY = getSampleStyleSheet()["Normal"]
GRID = [("GRID", (0, 0), (-1, -1), 0.5, colors.black)]


def count_tokens(texts: Sequence[str]) -> list[int]:
    return [sum(4 if c > "\u2e7f" else 1 for c in text) // 4 + bool(text) for text in texts]


def read(*pages: Callable[[Canvas], None], encrypt: object = None) -> Parsed:
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, encrypt=encrypt)
    for draw in pages:
        canvas.setFont("Helvetica", 11)
        draw(canvas)
        canvas.showPage()
    canvas.save()
    return parse("a.pdf", out.getvalue())


def lines(*texts: str, top: float = 700) -> Callable[[Canvas], None]:
    def draw(canvas: Canvas) -> None:
        for number, text in enumerate(texts):
            canvas.drawString(72, top - 14 * number, text)

    return draw


def table(
    rows: Sequence[Sequence[object]], style: Sequence[object], widths: Sequence[float]
) -> Callable[[Canvas], None]:
    def draw(canvas: Canvas) -> None:
        made = Table(rows, colWidths=widths, style=style)
        _, height = made.wrap(400, 600)
        made.drawOn(canvas, 72, 700 - height)

    return draw


def rows_of(parsed: Parsed) -> list[str]:
    return [block.text for block in parsed.blocks if block.kind == "table_row"]


def test_paragraphs_know_their_page_and_wrapped_lines_are_joined() -> None:
    parsed = read(lines("The pump must be", "switched off first."), lines("打开泵壳之前", "Second page."))
    assert parsed.blocks[0].page == 1 and parsed.blocks[0].text == "The pump must be switched off first."
    assert parsed.pages == 2 and parsed.blocks[-1].page == 2


def test_a_word_broken_at_a_line_end_is_whole() -> None:
    parsed = read(lines("Some are safe for particu-", "lar constructions of a high-", "pressure pump."))
    assert "particular constructions" in parsed.blocks[0].text


def test_a_paragraph_that_goes_on_over_the_page_is_marked() -> None:
    first = lines("One sentence. The torque of the", "casing")
    parsed = read(first, lines("bolts is 65 Nm."), lines("New paragraph."))
    assert [(b.page, b.joined) for b in parsed.blocks] == [(1, False), (2, True), (3, False)]


def test_a_grid_with_cells_over_several_lines() -> None:
    cell = Paragraph("Seal kit, for the long shaft that is used in the wet version of the pump", BODY)
    rows = [["Part no.", "Description", "Qty"], ["HX-1203", cell, "2"], ["HX-1204", "Bearing", "1"]]
    parsed = read(table(rows, GRID, [120, 150, 40]))
    assert rows_of(parsed) == [
        "Part no. | Description | Qty",
        "HX-1203 | Seal kit, for the long shaft that is used in the wet version of the pump | 2",
        "HX-1204 | Bearing | 1",
    ]
    assert [block.header for block in parsed.blocks] == ["", rows_of(parsed)[0], rows_of(parsed)[0]]


def test_a_chinese_cell_broken_inside_a_word() -> None:
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont

    pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))
    style = [*GRID, ("FONT", (0, 0), (-1, -1), "STSong-Light")]
    parsed = read(table([["名称", "持股比\n例"], ["甲公司", "百分之二十五"]], style, [80, 80]))
    if not any("例" in block.text for block in parsed.blocks):
        # The font is not embedded, and some machines have none that pdfium could take the height of "例" from.
        pytest.skip("pdfium does not see a lone character of a font that is neither embedded nor installed")
    assert rows_of(parsed) == ["名称 | 持股比例", "甲公司 | 百分之二十五"]


def test_a_cell_that_spans_rows_is_in_each_of_them() -> None:
    rows = [["Symptom", "Cause"], ["Leak", "Seal worn"], ["", "Bolts loose"]]
    parsed = read(table(rows, [*GRID, ("SPAN", (0, 1), (0, 2))], [100, 100]))
    assert rows_of(parsed) == ["Symptom | Cause", "Leak | Seal worn", "Leak | Bolts loose"]


def test_columns_without_rules() -> None:
    rows = [["Item", "Value"], ["Torque", "25 Nm"], ["Oil", "ISO VG 46"], ["Speed", "1,480 rpm"]]
    parsed = read(table(rows, [], [120, 100]))
    assert rows_of(parsed) == ["Item | Value", "Torque | 25 Nm", "Oil | ISO VG 46", "Speed | 1,480 rpm"]


def test_a_box_around_text_is_no_table() -> None:
    def draw(canvas: Canvas) -> None:
        canvas.rect(60, 600, 400, 120)
        lines("WARNING", "Hot surfaces burn.", top=690)(canvas)

    parsed = read(draw)
    assert [(b.kind, b.text) for b in parsed.blocks] == [("paragraph", "WARNING: Hot surfaces burn.")]


def test_bullets_are_list_items_not_columns() -> None:
    def draw(canvas: Canvas) -> None:
        for number in range(4):
            canvas.drawString(72, 700 - 14 * number, "•")
            canvas.drawString(96, 700 - 14 * number, f"Point {number} of the list.")

    parsed = read(draw)
    assert [(b.kind, b.text) for b in parsed.blocks] == [
        ("list_item", f"• Point {number} of the list.") for number in range(4)
    ]


def heading(text: str, size: float, top: float, font: str = "Helvetica-Bold") -> Callable[[Canvas], None]:
    def draw(canvas: Canvas) -> None:
        canvas.setFont(font, size)
        canvas.drawString(72, top, text)
        canvas.setFont("Helvetica", 11)
        lines("Some body text of the section.", "It has a second line.", top=top - 30)(canvas)

    return draw


def test_headings_by_size_and_by_bold_number() -> None:
    parsed = read(
        heading("Safety", 18, 700), heading("Who may work", 14, 700), heading("1.2 Hazards", 11, 700),
        heading("Not a heading, just bold", 11, 700),
    )  # fmt: skip
    found = [(b.level, b.text) for b in parsed.blocks if b.kind == "heading"]
    assert found == [(1, "Safety"), (2, "Who may work"), (4, "1.2 Hazards")]


def test_headings_by_the_outline_even_in_body_size() -> None:
    def chapter(title: str, level: int) -> Callable[[Canvas], None]:
        def draw(canvas: Canvas) -> None:
            canvas.bookmarkPage(title)
            canvas.addOutlineEntry(title, title, level)
            heading(title, 11, 700)(canvas)

        return draw

    parsed = read(chapter("Operation", 0), chapter("Normal start", 1), lines("The engine is in", "operation."))
    found = [(b.page, b.level, b.text) for b in parsed.blocks if b.kind == "heading"]
    assert found == [(1, 1, "Operation"), (2, 2, "Normal start")]


def test_running_lines_go_and_are_named() -> None:
    def page(number: int) -> Callable[[Canvas], None]:
        def draw(canvas: Canvas) -> None:
            canvas.drawString(72, 810, "HX-200 Manual")
            canvas.drawRightString(520, 810, f"Chapter {chr(64 + number)}")
            canvas.drawRightString(520, 20, f"Page {number} of 4")
            lines(f"Body of page {('one', 'two', 'three', 'four')[number - 1]}.")(canvas)

        return draw

    parsed = read(*(page(number) for number in range(1, 5)))
    assert [b.text for b in parsed.blocks] == [f"Body of page {n}." for n in ("one", "two", "three", "four")]
    details = [loss.detail for loss in parsed.losses if loss.kind == "running_header_removed"]
    assert len(details) == 2 and "HX-200 Manual" in details[0] and "on 4 pages" in details[0]


def test_two_pages_have_no_running_lines() -> None:
    parsed = read(lines("Same line.", top=810), lines("Same line.", top=810))
    assert len(parsed.blocks) == 2 and parsed.losses == ()


def test_a_contents_list_goes_and_is_named() -> None:
    entries = [f"{n}.1 Section number {n} {'.' * 40} {n + 2}" for n in range(1, 7)]
    parsed = read(lines("Contents", *entries), lines("The text itself."))
    assert [b.text for b in parsed.blocks] == ["Contents", "The text itself."]
    assert [(loss.kind, loss.page) for loss in parsed.losses] == [("contents_list_removed", 1)]


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_rotated_pages(turn: int) -> None:
    def draw(canvas: Canvas) -> None:
        canvas.setPageRotation(turn)
        canvas.translate(WIDTH / 2, HEIGHT / 2)
        canvas.rotate(turn)
        canvas.translate(-200, 100)
        made = Table([["Item", "Value"], ["Torque", "25 Nm"], ["Oil", "VG 46"]], colWidths=[100, 100], style=GRID)
        made.wrap(400, 400)
        made.drawOn(canvas, 0, 0)
        canvas.drawString(0, -30, "First line of the text")
        canvas.drawString(0, -44, "and the second.")

    parsed = read(draw)
    assert rows_of(parsed) == ["Item | Value", "Torque | 25 Nm", "Oil | VG 46"]
    assert "First line of the text and the second." in [block.text for block in parsed.blocks]


def test_a_page_without_text_is_told() -> None:
    parsed = read(lines("Text."), lambda canvas: canvas.rect(10, 10, 50, 50), lines("More."))
    assert [(loss.kind, loss.page) for loss in parsed.losses] == [("page_without_text", 2)]


def ligature_pdf(unicode_of_one: str) -> bytes:
    """A PDF whose code 1 draws "ffi" and claims to mean `unicode_of_one`."""
    stream = b"BT /F1 12 Tf 72 700 Td (An e\\001cient pump runs and the o\\001ce is quiet.) Tj ET"
    cmap = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def\n"
        b"1 begincodespacerange <00> <FF> endcodespacerange\n"
        b"1 beginbfchar <01> <%s> endbfchar\n1 beginbfrange <20> <7E> <0020> endbfrange\n"
        b"endcmap end end" % unicode_of_one.encode()
    )
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R "
        b"/Encoding << /Type /Encoding /BaseEncoding /WinAnsiEncoding /Differences [1 /g1] >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(cmap), cmap),
    ]
    out = b"%PDF-1.4\n"
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 7\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + b"trailer << /Size 7 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start


def vocabulary(texts: Sequence[str]) -> list[int]:
    return [1 if text.strip() in ("efficient", "office") else len(text) for text in texts]


@pytest.mark.parametrize("code", ["FB03", "0000", "FFFD", "006600660069"])
def test_ligatures_are_written_out_whatever_code_they_have(code: str) -> None:
    parsed = restored(parse("a.pdf", ligature_pdf(code)), vocabulary)
    assert parsed.blocks[0].text == "An efficient pump runs and the office is quiet."
    guessed = [loss.kind for loss in parsed.losses]
    assert guessed == (["characters_replaced", "ligatures_guessed"] if code in ("0000", "FFFD") else [])


def test_damaged_files_are_refused() -> None:
    good = ligature_pdf("FB03")
    for bad in (b"%PDF-1.7\n", good[:200], b"\0" * 100 + b"x", b"%PDF-1.4\n" + bytes(range(256)) * 20):
        with pytest.raises(UnreadableDocument):
            parse("a.pdf", bad)


# -- the sample manuals: each answer is on its page, below its heading -------------------------------------


@pytest.fixture(scope="module")
def sample_chunks() -> dict[str, list[NewChunk]]:
    found = {}
    for name in {question.document for question in questions() if question.answerable}:
        blocks: Sequence[Block] = parse(name, (FOLDER / name).read_bytes()).blocks
        found[name] = chunks_of(blocks, count_tokens, chunk_tokens=200, overlap_tokens=30)
    return found


@pytest.mark.parametrize("question", [q for q in questions() if q.answerable], ids=lambda q: q.id)
def test_each_answer_is_on_its_page_and_below_its_heading(
    question: SampleQuestion, sample_chunks: dict[str, list[NewChunk]]
) -> None:
    holding = [chunk for chunk in sample_chunks[question.document] if question.answer in chunk.text]
    assert holding
    for chunk in holding:
        assert chunk.page_first == chunk.page_last == question.page
    assert any(chunk.heading.endswith(question.heading) for chunk in holding)


def test_samples_lose_nothing_but_running_lines_and_the_contents() -> None:
    kinds = set()
    for path in sorted(Path(FOLDER).glob("*.pdf")):
        kinds |= {loss.kind for loss in parse(path.name, path.read_bytes()).losses}
    assert kinds == {"running_header_removed", "contents_list_removed"}
