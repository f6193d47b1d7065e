"""Owns the reading of spreadsheets (XLSX, XLSM, XLSB, XLS, ODS): every sheet, its cells as people see them.

Must not know what makes a table of rows (`formats.grid`). Formulas count by the value that was saved with them.
"""

from __future__ import annotations

import datetime
import io
import re
from typing import TYPE_CHECKING, Any

from appliance.documents.formats.grid import grid_blocks
from appliance.documents.formats.package import ZIP, open_zip
from appliance.documents.losses import image_skipped
from appliance.documents.model import Block, Parsed, one_line
from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

if TYPE_CHECKING:
    import zipfile

    from python_calamine import CalamineSheet, CalamineWorkbook

_XLS = "application/vnd.ms-excel"
# Parts of an archive by which its kind is known, and the kind.
MARKS = {
    "xl/workbook.xml": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xl/workbook.bin": "application/vnd.ms-excel.sheet.binary.macroEnabled.12",
    "content.xml": "application/vnd.oasis.opendocument.spreadsheet",
}
_IMAGES = re.compile(r"(?:xl/media|Pictures)/.")
_CHARTS = re.compile(r"xl/charts/chart\d|Object \d+/content\.xml")
_DIGITS = ".15g"  # what a spreadsheet keeps of a number


def parse(data: bytes, stem: str) -> Parsed:
    """Read a workbook; the title is the file's name, each sheet a section.

    Raises:
        UnreadableDocument: it is damaged, encrypted, or unpacks to too much.
    """
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError

    media_type, losses = _XLS, []
    if data.startswith(ZIP):
        with open_zip(data, "spreadsheet") as archive:
            media_type = _media_type(archive)
            losses = _skipped(archive)
    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(data))
        blocks = [block for name in _sheets(book) for block in _sheet(book.get_sheet_by_name(name), name)]
    except PasswordError as error:
        raise UnreadableDocument("It is encrypted with a password; remove the password first.") from error
    except (CalamineError, ValueError) as error:
        raise UnreadableDocument(f"It is damaged: {one_line(str(error))}.") from error
    return Parsed(stem, media_type, tuple(blocks), losses=tuple(losses))


def _media_type(archive: zipfile.ZipFile) -> str:
    names = set(archive.namelist())
    for mark, media_type in MARKS.items():
        if mark in names:
            return media_type
    raise UnreadableDocument("It is a ZIP file, but not a spreadsheet.")


def _skipped(archive: zipfile.ZipFile) -> list[Loss]:
    names = archive.namelist()
    losses = image_skipped(sum(1 for name in names if _IMAGES.match(name)))
    if charts := sum(1 for name in names if _CHARTS.match(name)):
        losses.append(Loss("chart_skipped", f"{charts} charts; the cells that they show are read"))
    return losses


def _sheets(book: CalamineWorkbook) -> list[str]:
    from python_calamine import SheetTypeEnum

    return [sheet.name for sheet in book.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]


def _sheet(sheet: CalamineSheet, name: str) -> list[Block]:
    rows = [[_text(cell) for cell in row] for row in sheet.to_python(skip_empty_area=False)]
    spanned: set[int] = set()
    for (top, left), (bottom, right) in sheet.merged_cell_ranges or ():
        if top >= len(rows) or left >= len(rows[top]):
            continue
        for row in range(top, min(bottom + 1, len(rows))):
            rows[row][left : right + 1] = [rows[top][left]] * len(rows[row][left : right + 1])
            if right > left and rows[top][left]:
                spanned.add(row)
    blocks = grid_blocks(rows, spanned)
    return [Block("heading", one_line(name) or "Sheet", level=1), *blocks] if blocks else []


def _text(cell: Any) -> str:
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float):
        return format(cell, _DIGITS)
    if isinstance(cell, datetime.datetime):
        return cell.date().isoformat() if cell.time() == datetime.time() else cell.isoformat(" ", "seconds")
    if isinstance(cell, datetime.time):
        return cell.isoformat("seconds")
    return str(cell)
