"""Owns bytes to text: which encoding a text is in, or that it is no text at all.

Must not know file names or formats.
"""

from __future__ import annotations

import codecs
import re

from appliance.errors import UnreadableDocument
from appliance.store.records import Loss

_BOMS = (
    # UTF-32's little-endian mark begins with UTF-16's.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE_BYTES = 256 << 10
_HIGH = re.compile(rb"[\x80-\xff]+")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# The most frequent hanzi: about half of any Chinese text, a few percent of Chinese read in a wrong encoding.
_FREQUENT = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里"
    "用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实"
    "日军者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政"
    "美相见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员"
    "解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结反受目太量再感建务做接必场件"
    "计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放强即像难且权思王象"
)
# What statistics choose from: the encodings of files that are found. With all that exist, Russian becomes
# an old Macintosh's.
_GUESSED = [
    "big5", "cp932", "euc_jp", "iso2022_jp", "cp949", "gb18030", "cp1250", "cp1251", "koi8_r", "cp1253",
    "cp1254", "cp1255", "cp1256", "cp1257", "cp1252",
]  # fmt: skip
_WESTERN = re.compile(
    "[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff\u0152\u0153\u0160\u0161\u0178\u017d\u017e"
    "\u2018\u2019\u201a\u201c\u201d\u201e\u2013\u2014\u2020\u2022\u2026\u2039\u203a\u20ac\u2122"
    "\u00a0\u00a1\u00a3\u00a7\u00a9\u00ab\u00ae\u00b0-\u00b5\u00b7\u00bb-\u00bf\u00d7\u00f7]"
)


def decode(data: bytes) -> tuple[str, str, list[Loss]]:
    """Decode `data`; strict decoders are asked first, statistics only when none is sure.

    Returns:
        The text, the encoding's name, and the losses (characters that could not be decoded).

    Raises:
        UnreadableDocument: it is not text.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return _lenient(data[len(mark) :], encoding)
    maybe_wide = b"\x00" in data[:_SAMPLE_BYTES] or not _is_utf8(data[:_SAMPLE_BYTES])
    if maybe_wide and (wide := _utf16_without_mark(data)):
        return _lenient(data, wide)
    if b"\x00" in data:
        raise UnreadableDocument("It is not text: it holds binary data.")
    try:
        return _not_binary(data.decode("utf-8")), "utf-8", []
    except UnicodeDecodeError:
        pass
    if _is_chinese(data):
        return _lenient(data, "gb18030")
    if _is_western(data):
        return _lenient(data, "cp1252")
    return _lenient(data, _guess(data))


def _not_binary(text: str) -> str:
    sample = text[:_SAMPLE_BYTES]
    if len(_CONTROLS.findall(sample)) > len(sample) * 0.005 + 1:
        raise UnreadableDocument("It is not text: it holds binary data.")
    return text


def _lenient(data: bytes, encoding: str) -> tuple[str, str, list[Loss]]:
    try:
        return _not_binary(data.decode(encoding)), encoding, []
    except UnicodeDecodeError:
        text = _not_binary(data.decode(encoding, "replace"))
    count = text.count("\ufffd")
    if count > len(text) * 0.1:
        raise UnreadableDocument("It is not text, or its encoding is not known.")
    return text, encoding, [Loss("characters_replaced", f"{count} characters are not valid {encoding}")]


def _is_utf8(sample: bytes) -> bool:
    try:
        # Incremental: a sample may end inside a character.
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return True


def _utf16_without_mark(data: bytes) -> str | None:
    if len(data) % 2 or len(data) < 4:
        return None
    sample = data[: _SAMPLE_BYTES // 2 * 2]
    best, best_share = None, 0.0
    for encoding in ("utf-16-le", "utf-16-be"):
        text = sample.decode(encoding, "replace")
        frequent = sum(c in _FREQUENT or c in "，。、：；（）" or " " <= c <= "~" or c in "\r\n\t" for c in text)
        share = frequent / len(text)
        if share > best_share:
            best, best_share = encoding, share
    # Words in a wrong byte order or encoding fall all over the table: hardly any of them is frequent.
    return best if best_share > 0.3 else None


def _is_chinese(data: bytes) -> bool:
    sample = data[:_SAMPLE_BYTES]
    runs = _HIGH.findall(sample)
    high = sum(map(len, runs))
    # Hanzi of GB2312 are two high bytes, mostly in runs; letters with accents stand alone among ASCII.
    if sum(len(run) for run in runs if len(run) >= 4) < high * 0.5:
        return False
    text = sample.decode("gb18030", "ignore")
    if len(data) <= _SAMPLE_BYTES:
        try:
            data.decode("gb18030")
        except UnicodeDecodeError:
            return False
    hanzi = [c for c in text if "\u4e00" <= c <= "\u9fff"]
    foreign = sum(c > "\x7f" for c in text)
    if len(hanzi) < foreign * 0.6:
        return False
    return len(hanzi) < 20 or sum(c in _FREQUENT for c in hanzi) > len(hanzi) * 0.1


def _is_western(data: bytes) -> bool:
    sample = data[:_SAMPLE_BYTES]
    try:
        text = sample.decode("cp1252")
    except UnicodeDecodeError:
        return False
    foreign = [c for c in text if c > "\x7f"]
    # Letters with accents stand alone among ASCII; whole words of high bytes are of another alphabet.
    if len(foreign) > 1.8 * len(_HIGH.findall(sample)) or len(foreign) > len(text) * 0.35:
        return False
    return sum(bool(_WESTERN.match(c)) for c in foreign) > len(foreign) * 0.95


def _guess(data: bytes) -> str:
    from charset_normalizer import from_bytes

    best = from_bytes(data[:_SAMPLE_BYTES], cp_isolation=_GUESSED).best()
    if best is None:
        raise UnreadableDocument("It is not text, or its encoding is not known.")
    return best.encoding.replace("_", "-")
