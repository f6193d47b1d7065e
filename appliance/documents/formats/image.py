"""Owns the reading of images (PNG, JPEG, TIFF): each picture of a file a page whose text is recognised.

Must not know how text is recognised.
"""

from __future__ import annotations

import io
import math
import struct
from typing import TYPE_CHECKING

from appliance.documents.model import Parsed, one_line
from appliance.documents.ocr import NoOcr, Ocr, Picture, Reading, Unrecognised
from appliance.errors import UnreadableDocument

if TYPE_CHECKING:
    from PIL.Image import Image

# What PIL raises for damaged files, beside what it documents.
_DAMAGED = (OSError, ValueError, SyntaxError, TypeError, LookupError, AttributeError, ArithmeticError, struct.error)
_KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "TIFF": "image/tiff"}
_PIXELS_MOST = 80_000_000  # A3 at 600 dots an inch, and more
_PIXELS_ENOUGH = 25_000_000  # larger ones are made smaller
_DPI = range(70, 1300)  # others are made up


def parse(data: bytes, stem: str, ocr: Ocr = NoOcr()) -> Parsed:  # noqa: B008 - has no state
    """Read an image; the title is the file's name.

    Raises:
        UnreadableDocument: it is damaged, too large, without text, or no text is recognised here.
    """
    from PIL import Image

    reading = Reading(ocr)
    try:
        with Image.open(io.BytesIO(data), formats=list(_KINDS)) as image:
            count = getattr(image, "n_frames", 1)
            blocks = []
            for number in range(count):
                image.seek(number)
                if image.width * image.height > _PIXELS_MOST:
                    raise UnreadableDocument(f"It has {image.width} × {image.height} pixels, too many to be read.")
                blocks += reading.page(lambda: _grey(image), number + 1)
            kind = _KINDS[image.format or ""]
    except (*_DAMAGED, Image.DecompressionBombError) as error:
        raise UnreadableDocument(f"It is damaged: {one_line(str(error))}.") from error
    if not blocks:
        raise UnreadableDocument(f"It is an image. {reading.hint}" if reading.hint else "No text was recognised in it.")
    return Parsed(stem, kind, tuple(blocks), pages=count, losses=(*reading.losses, *reading.summary()))


def _grey(image: Image) -> Picture:
    """The current picture of a file; raises `Unrecognised` where it is damaged."""
    try:
        return _upright(image)
    except _DAMAGED as error:
        raise Unrecognised(f"It is damaged: {one_line(str(error))}.") from error


def _upright(image: Image) -> Picture:
    """In grey, the right way up, without transparency."""
    from PIL import Image, ImageOps

    dpi = round(float(image.info.get("dpi", (0, 0))[0]))
    turned = ImageOps.exif_transpose(image)
    if turned.mode in ("RGBA", "LA", "PA") or "transparency" in turned.info:
        turned = turned.convert("RGBA")
        turned = Image.alpha_composite(Image.new("RGBA", turned.size, "white"), turned)
    plain = turned.convert("L")
    if (factor := math.ceil(math.sqrt(plain.width * plain.height / _PIXELS_ENOUGH))) > 1:
        plain, dpi = plain.reduce(factor), dpi // factor
    return Picture(plain.width, plain.height, plain.tobytes(), dpi if dpi in _DPI else 0)
