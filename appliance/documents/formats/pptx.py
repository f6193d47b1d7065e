"""Owns the reading of PPTX: slides in their order, with tables, the data of charts and the speaker's notes.

Must not know how a slide looks: shapes come in the order in which the file has them, its title first.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from appliance.documents.formats.package import DAMAGED, open_zip
from appliance.documents.losses import image_skipped
from appliance.documents.model import Block, Parsed, clean, one_line, table_blocks
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

if TYPE_CHECKING:
    from pptx.presentation import Presentation

MEDIA_TYPE = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
MARK = "ppt/presentation.xml"
_GROUPS_DEEPEST = 50


def parse(data: bytes, stem: str) -> Parsed:
    """Read PPTX; the title is that of its properties or of its first slide, a slide is a page.

    Raises:
        UnreadableDocument: it is damaged, encrypted, or unpacks to too much.
    """
    from lxml.etree import LxmlError

    document = _open(data)
    reader = _Reader()
    try:
        pages = len(document.slides)
        blocks = [block for number, slide in enumerate(document.slides, 1) for block in reader.slide(slide, number)]
        title = one_line(document.core_properties.title or "")
    except (KeyError, ValueError, AttributeError, TypeError, IndexError, LxmlError) as error:
        raise UnreadableDocument(f"It is damaged: {error}.") from error
    blocks = [block for block in blocks if block.text.strip()]
    if title in ("", "PowerPoint Presentation"):
        title = next((block.text for block in blocks if block.kind == "heading"), stem)
    return Parsed(title, MEDIA_TYPE, tuple(blocks), pages=pages, losses=tuple(reader.losses()))


def _open(data: bytes) -> Presentation:
    from lxml.etree import XMLSyntaxError
    from pptx import Presentation
    from pptx.exc import PythonPptxError

    with open_zip(data, "PPTX") as archive:
        if MARK not in archive.namelist():
            raise UnreadableDocument("It is a ZIP file, but not a presentation.")
    try:
        return Presentation(io.BytesIO(data))
    except (XMLSyntaxError, PythonPptxError, AttributeError, TypeError, IndexError, *DAMAGED) as error:
        raise UnreadableDocument(f"It is damaged: {error}.") from error


class _Reader:
    def __init__(self) -> None:
        self._images = 0
        self._charts = 0
        self._drawings = 0

    def losses(self) -> list[Loss]:
        """What was left out so far."""
        losses = image_skipped(self._images)
        if self._charts:
            losses.append(Loss("chart_skipped", f"{self._charts} charts whose data are not in the file"))
        if self._drawings:
            losses.append(Loss("drawing_skipped", f"{self._drawings} diagrams or embedded objects"))
        return losses

    def slide(self, slide: Any, page: int) -> Iterator[Block]:
        """The blocks of one slide."""
        title = slide.shapes.title
        if title is not None and (text := one_line(title.text_frame.text)):
            yield Block("heading", text, level=1, page=page)
        for shape in slide.shapes:
            if title is None or shape.shape_id != title.shape_id:
                yield from self._shape(shape, page, 0)
        if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame) is not None and frame.text.strip():
            yield Block("heading", "Notes", level=2, page=page)
            yield from _paragraphs(frame, page)

    def _shape(self, shape: Any, page: int, depth: int) -> Iterator[Block]:
        if hasattr(shape, "shapes"):
            for inner in shape.shapes if depth < _GROUPS_DEEPEST else ():
                yield from self._shape(inner, page, depth + 1)
        elif getattr(shape, "has_table", False):
            rows = ([_cell(cell) for cell in row.cells] for row in shape.table.rows)
            yield from table_blocks(rows, page)
        elif getattr(shape, "has_chart", False):
            yield from self._chart(shape, page)
        elif shape.has_text_frame:
            yield from _paragraphs(shape.text_frame, page)
        elif hasattr(shape, "image") or shape.element.tag.endswith("}pic"):
            self._images += 1
            properties = shape.element.xpath(".//p:cNvPr/@descr")
            yield Block("paragraph", one_line(str(properties[0])) if properties else "", page=page)
        elif shape.element.tag.endswith("}graphicFrame"):
            self._drawings += 1

    def _chart(self, shape: Any, page: int) -> Iterator[Block]:
        try:
            chart = shape.chart
            series = [(one.name or "", list(one.values)) for plot in chart.plots for one in plot.series]
            categories = [str(category) for category in chart.plots[0].categories]
            title = chart.chart_title.text_frame.text if chart.has_title and chart.chart_title.has_text_frame else ""
        except (KeyError, ValueError, AttributeError, IndexError, NotImplementedError):
            self._charts += 1
            return
        if not categories or not series:
            self._charts += 1
            return
        yield Block("paragraph", one_line(title), page=page)
        rows = [["", *(name for name, _ in series)]]
        for place, category in enumerate(categories):
            values = [values[place] if place < len(values) else None for _, values in series]
            rows.append([category, *("" if value is None else format(value, "g") for value in values)])
        yield from table_blocks(rows, page)


def _cell(cell: Any) -> str:
    if cell.is_spanned:
        return ""
    return str(clean(cell.text_frame.text).replace("\v", "\n"))


def _paragraphs(frame: Any, page: int) -> Iterator[Block]:
    for paragraph in frame.paragraphs:
        text = one_line(paragraph.text.replace("\v", "\n"))
        yield Block("list_item" if paragraph.level else "paragraph", text, page=page)
