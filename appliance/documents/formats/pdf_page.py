"""Owns what is read off a PDF page: its words and ruled lines, with their places. Thin over pdfium.

Must not know what a heading, a table or a paragraph is.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

from appliance.documents.model import REPLACEMENT
from appliance.documents.ocr import Picture, Unrecognised

# A gap between two characters of a line that is wider than this share of the line's height parts two words
# that a space would not have parted so far: two cells or two columns.
WIDE_GAP = 0.9
_SAME_LINE = 0.35  # of the height: how far the foot of a character may be off
_PATHS_MOST = 4000  # a page with more is a drawing, not a table
_RULE_SHORTEST = 5.0  # points
_POINTS = 72  # to an inch
_PICTURE_DPI, _PICTURE_PIXELS_MOST = 300, 25_000_000  # an A3 page is less
# Codes of ligatures in TeX's two font encodings, where a file does not say what they mean.
_TEX_LIGATURES = {11: "ff", 12: "fi", 14: "ffi", 15: "ffl", 27: "ff", 28: "fi", 29: "fl", 30: "ffi", 31: "ffl"}
_MONO_NAMES = (b"mono", b"courier", b"typewriter", b"cmtt", b"consol", b"menlo")
HYPHEN = "\ufffe"  # pdfium's mark for the hyphen of a word that goes on in the next line


@dataclass(slots=True)
class Word:
    """A run of characters without a space; `y` grows upwards, in points, on the page as it is read."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    first: int  # index of its first character on the page, for `Page.font`
    breaks: bool = False  # a line of the source begins here

    @property
    def height(self) -> float:
        """Height of the font's box: its size, about."""
        return self.y1 - self.y0


@dataclass(slots=True, frozen=True)
class Rule:
    """A straight line along an axis: from `start` to `end` at `at` across."""

    at: float
    start: float
    end: float


@dataclass(slots=True, frozen=True)
class Font:
    """What a font's name, flags and matrix say."""

    size: float  # points, on the page
    mono: bool
    bold: bool


class Page:
    """One page, open until `close`."""

    def __init__(self, document: Any, index: int) -> None:
        import pypdfium2.raw as raw

        self._raw = raw
        self._page = document[index]
        self._text = self._page.get_textpage()
        self._turn = self._quarter_turns()
        width, height = self._page.get_size()  # turned by the page's own rotation
        if raw.FPDFPage_GetRotation(self._page) % 2:
            width, height = height, width
        self._own_width, self._own_height = float(width), float(height)
        if self._turn % 2:
            width, height = height, width
        self.width, self.height = float(width), float(height)
        self._fonts: dict[int, Font] = {}

    def close(self) -> None:
        """Free the page."""
        self._text.close()
        self._page.close()

    def words(self) -> list[Word]:
        """The words in the order in which the page draws them."""
        raw, text = self._raw, self._text.raw
        count = raw.FPDFText_CountChars(text)
        loose, box = raw.FS_RECTF(), [ctypes.c_double() for _ in range(4)]
        words: list[Word] = []
        letters: list[str] = []
        place = (0.0, 0.0, 0.0, 0.0)
        first, fresh, spaced = 0, True, False

        def end() -> None:
            nonlocal fresh
            if letters:
                words.append(Word("".join(letters), *place, first, fresh))
                letters.clear()
                fresh = False

        for i in range(count):
            code = raw.FPDFText_GetUnicode(text, i)
            if code in (10, 13):
                end()
                fresh = True
                continue
            if code in (32, 9, 0xA0, 0x3000):
                spaced = True
                continue
            if self._turn == 0 and raw.FPDFText_GetLooseCharBox(text, i, loose) and loose.top > loose.bottom:
                x0, y0, x1, y1 = loose.left, loose.bottom, loose.right, loose.top
            elif raw.FPDFText_GetCharBox(text, i, box[0], box[1], box[2], box[3]):
                x0, y0, x1, y1 = self._shown(box[0].value, box[2].value, box[1].value, box[3].value)
            else:
                continue
            height = max(y1 - y0, place[3] - place[1], 1.0)
            same_line = abs(y0 - place[1]) < _SAME_LINE * height or (self._turn and y0 < place[3] and y1 > place[1])
            if letters and (spaced or not same_line or x0 - place[2] > WIDE_GAP * height or x1 < place[0]):
                end()
                fresh = fresh or not same_line
            character = _TEX_LIGATURES.get(code) or (chr(code) if code else REPLACEMENT)
            if letters:
                place = (place[0], min(place[1], y0), max(place[2], x1), max(place[3], y1))
            else:
                place, first = (x0, y0, x1, y1), i
            letters.append(HYPHEN if code in (2, 0xFFFE) else character)
            spaced = False
        end()
        return words

    def font(self, word: Word) -> Font:
        """The font that a word begins in."""
        if word.first not in self._fonts:
            flags, name = ctypes.c_int(), ctypes.create_string_buffer(128)
            self._raw.FPDFText_GetFontInfo(self._text.raw, word.first, name, 128, flags)
            lower = name.value.lower()
            mono = bool(flags.value & 1) or any(part in lower for part in _MONO_NAMES)
            weight = self._raw.FPDFText_GetFontWeight(self._text.raw, word.first)
            bold = weight >= 600 or bool(flags.value & 1 << 18) or b"bold" in lower or b"black" in lower
            # Producers put the size into the font, the matrix or both.
            matrix = self._raw.FS_MATRIX(1, 0, 0, 1, 0, 0)
            self._raw.FPDFText_GetMatrix(self._text.raw, word.first, matrix)
            em = self._raw.FPDFText_GetFontSize(self._text.raw, word.first) * math.hypot(matrix.c, matrix.d)
            self._fonts[word.first] = Font(round(em * 2) / 2, mono, bold)
        return self._fonts[word.first]

    def rules(self) -> tuple[list[Rule], list[Rule]]:
        """Horizontal and vertical straight lines, borders of boxes among them."""
        raw = self._raw
        horizontal: list[Rule] = []
        vertical: list[Rule] = []
        paths = self._page.get_objects(filter=(raw.FPDF_PAGEOBJ_PATH,), max_depth=4)
        for place, item in enumerate(paths):
            if place >= _PATHS_MOST:
                return [], []
            matrix = item.get_matrix()
            before: tuple[float, float] | None = None
            for i in range(min(raw.FPDFPath_CountSegments(item), 1000)):
                segment = raw.FPDFPath_GetPathSegment(item, i)
                x, y = ctypes.c_float(), ctypes.c_float()
                raw.FPDFPathSegment_GetPoint(segment, x, y)
                px, py = matrix.on_point(x.value, y.value)
                point = self._shown(px, py, px, py)[:2]
                if before and raw.FPDFPathSegment_GetType(segment) == raw.FPDF_SEGMENT_LINETO:
                    _add_rule(before, point, horizontal, vertical)
                before = point
        return horizontal, vertical

    def shows_anything(self) -> bool:
        """Whether there is anything on it: images or lines, such as letters that were drawn."""
        kinds = (self._raw.FPDF_PAGEOBJ_IMAGE, self._raw.FPDF_PAGEOBJ_PATH, self._raw.FPDF_PAGEOBJ_SHADING)
        return next(iter(self._page.get_objects(filter=kinds, max_depth=4)), None) is not None

    def image_share(self) -> float:
        """The share of the page that its images cover, which may be the strips of one."""
        boxes = (i.get_bounds() for i in self._page.get_objects(filter=(self._raw.FPDF_PAGEOBJ_IMAGE,), max_depth=4))
        area: float = sum(abs((x1 - x0) * (y1 - y0)) for x0, y0, x1, y1 in boxes)
        return area / max(self.width * self.height, 1.0)

    def picture(self) -> Picture:
        """The page as it is shown, in grey. Raises `Unrecognised` where it cannot be drawn."""
        import pypdfium2 as pdfium

        scale = min(_PICTURE_DPI / _POINTS, math.sqrt(_PICTURE_PIXELS_MOST / max(self.width * self.height, 1.0)))
        try:
            bitmap = self._page.render(scale=scale, grayscale=True)
        except pdfium.PdfiumError as error:
            raise Unrecognised("The page is damaged, and cannot be drawn.") from error
        try:
            stride, rows = bitmap.stride, memoryview(bitmap.buffer)
            pixels = b"".join(rows[y * stride : y * stride + bitmap.width] for y in range(bitmap.height))
            return Picture(bitmap.width, bitmap.height, pixels, round(scale * _POINTS))
        finally:
            bitmap.close()

    def _quarter_turns(self) -> int:
        """Clockwise quarter turns that make most of the text upright.

        The page's own rotation does not matter: a page that is shown turned has its text drawn turned the
        other way, unless the text is a landscape table on an upright page.
        """
        count = self._raw.FPDFText_CountChars(self._text.raw)
        quarters = [0, 0, 0, 0]
        for i in range(0, count, max(1, count // 50)):
            angle = self._raw.FPDFText_GetCharAngle(self._text.raw, i)  # radians, clockwise
            if angle >= 0:
                quarters[-round(angle / (math.pi / 2)) % 4] += 1
        return max(range(4), key=quarters.__getitem__) if any(quarters) else 0

    def _shown(self, x0: float, y0: float, x1: float, y1: float) -> tuple[float, float, float, float]:
        """A box of the page's own space, on the page turned so that it can be read."""
        w, h = self._own_width, self._own_height
        if self._turn == 1:
            return y0, w - x1, y1, w - x0
        if self._turn == 2:
            return w - x1, h - y1, w - x0, h - y0
        if self._turn == 3:
            return h - y1, x0, h - y0, x1
        return x0, y0, x1, y1


def _add_rule(a: tuple[float, float], b: tuple[float, float], horizontal: list[Rule], vertical: list[Rule]) -> None:
    if abs(a[1] - b[1]) < 0.5 and abs(a[0] - b[0]) > _RULE_SHORTEST:
        horizontal.append(Rule(a[1], min(a[0], b[0]), max(a[0], b[0])))
    elif abs(a[0] - b[0]) < 0.5 and abs(a[1] - b[1]) > _RULE_SHORTEST:
        vertical.append(Rule(a[0], min(a[1], b[1]), max(a[1], b[1])))
