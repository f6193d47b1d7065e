"""Owns the look of the PDF manuals: blocks to pages, with outline, contents, running lines and page numbers.

Must not know what any manual says.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from reportlab import platypus
from reportlab.lib import textsplit
from reportlab.lib.colors import HexColor, white
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import paragraph

from . import markup

WIDTH, HEIGHT = A4
MARGIN = 20 * mm
TEXT_WIDTH = WIDTH - 2 * MARGIN
INK = HexColor("#1d2730")
ACCENT = HexColor("#14507a")
RULE = HexColor("#b9c4cd")
STRIPE = HexColor("#f2f5f8")
BOXES = {
    "danger": (HexColor("#c4281c"), HexColor("#fdeeec")),
    "care": (HexColor("#d98a00"), HexColor("#fff6e4")),
    "hint": (HexColor("#2a6fa8"), HexColor("#ebf3fa")),
}


@dataclass(frozen=True)
class Typeface:
    """A regular and a bold font; `thicken` draws headings bold by stroking, for a face that has no bold cut.

    Small text stays thin then: a screen draws no stroke finer than a pixel, which blots small characters.
    """

    regular: str
    bold: str
    thicken: bool
    size: float
    leading: float


def latin() -> Typeface:
    """The standard fonts that every PDF viewer has."""
    return Typeface("Helvetica", "Helvetica-Bold", False, 9.8, 13.4)


def cjk(font: Path) -> Typeface:
    """A TrueType font with Chinese glyphs, embedded as a subset."""
    # The library's marks that may not start a line are the Japanese ones: no comma, semicolon, colon, ! and ?
    for module in (textsplit, paragraph):
        module.ALL_CANNOT_START += "\uff0c\uff1b\uff1a\uff01\uff1f\u201d\u300b"
    pdfmetrics.registerFont(TTFont("cjk", str(font)))
    pdfmetrics.registerFontFamily("cjk", "cjk", "cjk", "cjk", "cjk")
    return Typeface("cjk", "cjk", True, 10.2, 16.6)


class _Text(platypus.Paragraph):  # type: ignore[misc, unused-ignore]
    """A paragraph that can be thickened, and that carries what the outline needs of a heading."""

    def __init__(self, text: str, style: ParagraphStyle, thicken: bool = False) -> None:
        super().__init__(text, style)
        self.thicken = thicken
        self.heading: markup.Heading | None = None

    def draw(self) -> None:
        if not self.thicken:
            super().draw()
            return
        canvas = self.canv
        canvas.saveState()
        canvas.setStrokeColor(self.style.textColor)
        canvas.setLineWidth(self.style.fontSize * 0.03)
        canvas._code.append("2 Tr")  # fill and stroke, until the graphics state is restored
        super().draw()
        canvas.restoreState()


_CONTENTS_HEIGHTS = {1: 13.2, 2: 9.7}


class _ContentsLine(platypus.Flowable):  # type: ignore[misc, unused-ignore]
    def __init__(self, level: int, text: str, page: int, face: Typeface, stretch: float) -> None:
        super().__init__()
        self.level, self.text, self.page, self.face = level, text, page, face
        self.line_height = stretch * _CONTENTS_HEIGHTS[level]

    def wrap(self, width: float, height: float) -> tuple[float, float]:
        self.width = width
        return width, self.line_height

    def draw(self) -> None:
        canvas, face = self.canv, self.face
        font = face.bold if self.level == 1 else face.regular
        size = face.size - (0.6 if self.level == 1 else 1.4)
        left = 0 if self.level == 1 else 6 * mm
        canvas.setFont(font, size)
        canvas.setFillColor(ACCENT if self.level == 1 else INK)
        # The trailing space keeps title and page number apart for readers that go by the text alone.
        canvas.drawString(left, 2, self.text + " ")
        canvas.drawRightString(self.width, 2, str(self.page))
        start = left + pdfmetrics.stringWidth(self.text, font, size) + 5
        canvas.setStrokeColor(RULE)
        canvas.setDash(0.6, 2.4)
        canvas.line(start, 2.5, self.width - 16, 2.5)


class _Manual(platypus.BaseDocTemplate):  # type: ignore[misc, unused-ignore]
    """One layout pass. `headings` collects (level, text, page) as they are placed."""

    def __init__(self, out: io.BytesIO, head: markup.Head, face: Typeface, total: int) -> None:
        super().__init__(
            out,
            pagesize=A4,
            invariant=1,
            title=f"{head.product} {head.title}",
            author=head.maker,
            subject=head.number,
            lang=head.language,
            creator="sample manuals",
        )
        self.head, self.face, self.total = head, face, total
        self.headings: list[tuple[int, str, int]] = []
        self.chapter = ""
        frame = platypus.Frame(
            MARGIN, 20 * mm, TEXT_WIDTH, HEIGHT - 44 * mm, leftPadding=0, rightPadding=0, topPadding=0
        )
        self.addPageTemplates(
            [
                platypus.PageTemplate("title", [frame], onPage=self._title_page),
                platypus.PageTemplate("page", [frame], onPageEnd=self._running_lines),
            ]
        )

    def afterFlowable(self, flowable: Any) -> None:
        heading = getattr(flowable, "heading", None)
        if heading is None:
            return
        key = f"h{len(self.headings)}"
        self.canv.bookmarkPage(key)
        self.canv.addOutlineEntry(heading.text, key, level=heading.level - 1, closed=heading.level > 1)
        self.headings.append((heading.level, heading.text, self.page))
        if heading.level == 1:
            self.chapter = heading.text

    def _running_lines(self, canvas: Any, _doc: Any) -> None:
        head, size = self.head, 8
        canvas.setFont(self.face.regular, size)
        canvas.setFillColor(HexColor("#5a6873"))
        canvas.setStrokeColor(RULE)
        canvas.setLineWidth(0.6)
        canvas.line(MARGIN, HEIGHT - 17 * mm, WIDTH - MARGIN, HEIGHT - 17 * mm)
        canvas.drawString(MARGIN, HEIGHT - 15 * mm, f"{head.product}  {head.title}")
        canvas.drawRightString(WIDTH - MARGIN, HEIGHT - 15 * mm, self.chapter)
        canvas.line(MARGIN, 16 * mm, WIDTH - MARGIN, 16 * mm)
        canvas.drawString(MARGIN, 12 * mm, f"{head.number}  {head.revision}")
        foot = head.page.format(page=self.page, total=self.total)
        canvas.drawRightString(WIDTH - MARGIN, 12 * mm, foot)

    def _title_page(self, canvas: Any, _doc: Any) -> None:
        canvas.setFillColor(ACCENT)
        canvas.rect(0, HEIGHT - 92 * mm, WIDTH, 92 * mm, stroke=0, fill=1)
        canvas.setFillColor(HexColor("#e0a526"))
        canvas.rect(0, HEIGHT - 94 * mm, WIDTH, 2 * mm, stroke=0, fill=1)


def _styles(face: Typeface) -> dict[str, ParagraphStyle]:
    wrap = "CJK" if face.thicken else None

    def style(name: str, size: float, leading: float, **more: Any) -> ParagraphStyle:
        values: dict[str, Any] = {"fontName": face.regular, "textColor": INK, "wordWrap": wrap} | more
        return ParagraphStyle(name, fontSize=size, leading=leading, **values)

    size, leading, bold = face.size, face.leading, face.bold
    lead: dict[str, Any] = {"fontName": bold, "textColor": ACCENT, "keepWithNext": 1}
    cell_leading = leading - 2.2 if face.thicken else leading - 1.9
    return {
        "h1": style("h1", 19, 25, **lead, spaceAfter=8),
        "h2": style("h2", 13, 18, **lead, spaceBefore=8, spaceAfter=4),
        "body": style("body", size, leading, spaceAfter=5.5),
        "item": style("item", size, leading, leftIndent=7 * mm, bulletIndent=1.5 * mm, spaceAfter=3),
        "caption": style("caption", size - 0.6, leading, **lead, spaceBefore=4, spaceAfter=3),
        "cell": style("cell", size - 0.9, cell_leading),
        "headcell": style("headcell", size - 0.9, cell_leading, fontName=bold, textColor=white),
        "product": style("product", 34, 42, fontName=bold, textColor=white, spaceAfter=6),
        "title": style("title", 21, 29, textColor=white),
        "subtitle": style("subtitle", 12, 18, textColor=HexColor("#d5e3ee")),
        "small": style("small", 8, 12, textColor=HexColor("#5a6873")),
    }


def _box(block: markup.Admonition, styles: dict[str, ParagraphStyle], face: Typeface) -> platypus.Table:
    bar, ground = BOXES[block.kind]
    label = ParagraphStyle("label", styles["body"], fontName=face.bold, textColor=bar, spaceAfter=0)
    body = ParagraphStyle("box", styles["body"], spaceAfter=0)
    cell = [_Text(block.label, label), _Text(_inline(block.text), body)]
    return platypus.Table(
        [[cell]],
        colWidths=[TEXT_WIDTH],
        spaceBefore=4,
        spaceAfter=8,
        style=[
            ("BACKGROUND", (0, 0), (-1, -1), ground),
            ("LINEBEFORE", (0, 0), (0, -1), 4, bar),
            ("LEFTPADDING", (0, 0), (-1, -1), 10),
            ("TOPPADDING", (0, 0), (-1, -1), 5),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 6),
        ],
    )


def _table(block: markup.Table, styles: dict[str, ParagraphStyle], face: Typeface) -> platypus.Table:
    rows = [[_Text(_inline(cell), styles["headcell"]) for cell in block.rows[0]]]
    rows += [[_Text(_inline(cell), styles["cell"]) for cell in row] for row in block.rows[1:]]
    return platypus.Table(
        rows,
        colWidths=[TEXT_WIDTH * width / 100 for width in block.widths],
        repeatRows=1,
        spaceAfter=9,
        style=[
            ("BACKGROUND", (0, 0), (-1, 0), ACCENT),
            ("ROWBACKGROUNDS", (0, 1), (-1, -1), [white, STRIPE]),
            ("LINEBELOW", (0, 0), (-1, -1), 0.5, RULE),
            ("BOX", (0, 0), (-1, -1), 0.7, RULE),
            ("VALIGN", (0, 0), (-1, -1), "MIDDLE"),
            ("TOPPADDING", (0, 0), (-1, -1), 3),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 4),
        ],
    )


def _inline(text: str) -> str:
    parts = escape(text, quote=False).split("**")
    return "".join(f"<b>{part}</b>" if number % 2 else part for number, part in enumerate(parts))


def _contents(headings: list[tuple[int, str, int]], face: Typeface) -> list[Any]:
    """Lines that fill one page, or less where they would stand too far apart."""
    needed = sum(_CONTENTS_HEIGHTS[level] for level, _, _ in headings)
    stretch = min(1.3, (HEIGHT - 60 * mm) / max(needed, 1))
    return [_ContentsLine(level, text, page, face, stretch) for level, text, page in headings]


def _title_story(head: markup.Head, styles: dict[str, ParagraphStyle], face: Typeface) -> list[Any]:
    facts = zip(head.labels, (head.number, f"{head.revision}, {head.date}", head.serials), strict=True)
    table = platypus.Table(
        [[_Text(name, styles["cell"]), _Text(value, styles["cell"])] for name, value in facts],
        colWidths=[38 * mm, TEXT_WIDTH - 38 * mm],
        style=[("LINEBELOW", (0, 0), (-1, -1), 0.5, RULE), ("LEFTPADDING", (0, 0), (0, -1), 0)],
    )
    return [
        platypus.Spacer(1, 14 * mm),
        _Text(head.product, styles["product"], face.thicken),
        _Text(head.title, styles["title"]),
        _Text(head.subtitle, styles["subtitle"]),
        platypus.Spacer(1, 46 * mm),
        _Text(head.maker, styles["h2"], face.thicken),
        platypus.Spacer(1, 3 * mm),
        table,
        platypus.Spacer(1, 8 * mm),
        _Text(_inline(head.front), styles["body"]),
        platypus.Spacer(1, 62 * mm),
        _Text(head.disclaimer, styles["small"]),
    ]


def _body_story(blocks: list[markup.Block], styles: dict[str, ParagraphStyle], face: Typeface) -> list[Any]:
    story: list[Any] = []
    for block in blocks:
        match block:
            case markup.Heading(level, text):
                if level == 1:
                    story.append(platypus.PageBreak())
                made = _Text(text, styles[f"h{level}"], face.thicken)
                made.heading = block
                story.append(made)
            case markup.Para(text):
                story.append(_Text(_inline(text), styles["body"]))
            case markup.Item(mark, text):
                bullet = f"<bullet>{mark or '•'}</bullet>"
                story.append(_Text(bullet + _inline(text), styles["item"]))
            case markup.Admonition():
                story.append(_box(block, styles, face))
            case markup.Table(caption):
                story.append(_Text(caption, styles["caption"]))
                story.append(_table(block, styles, face))
            case markup.PageBreak():
                story.append(platypus.PageBreak())
    return story


def build(head: markup.Head, blocks: list[markup.Block], face: Typeface) -> bytes:
    """The PDF as bytes, the same for the same input.

    Contents and "page x of y" need the outcome of a layout, so passes repeat until one confirms the last.
    """
    styles = _styles(face)
    headings: list[tuple[int, str, int]] = []
    total = 0
    while True:
        out = io.BytesIO()
        manual = _Manual(out, head, face, total)
        story = _title_story(head, styles, face)
        story += [platypus.NextPageTemplate("page"), platypus.PageBreak()]
        story.append(_Text(head.contents, styles["h1"], face.thicken))
        story += _contents(headings, face)
        story += _body_story(blocks, styles, face)
        manual.build(story)
        if (manual.headings, manual.page) == (headings, total):
            return out.getvalue()
        headings, total = manual.headings, manual.page
