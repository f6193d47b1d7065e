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
_MARKS = tuple(mark for mark, _ in _BOMS)
_SAMPLE_BYTES = 256 << 10
_HIGH = re.compile(rb"[\x80-\xff]+")
_HIGH_LINE = re.compile(rb"[^\n]*[\x80-\xff][^\n]*")
_COMMON_CHINESE = re.compile(rb"(?:[\x09-\x7e]|[\xb0-\xd7][\xa1-\xfe]|\xa1[\xa2-\xef]|\xa3[\xa1-\xfe])*")
_EASTERN = re.compile("[\u3001-\u3015\u3040-\u30ff\uff01-\uff1f]")
_LETTERS = re.compile("[\u00a0-\u06ff\u0900-\u0e7f\u1e00-\u1eff\u2010-\u2026\uac00-\ud7a3]")
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
# The same for traditional Chinese, where it is written otherwise.
_FREQUENT_TRADITIONAL = frozenset(
    "這個們來國說時會過發後裡樣對動麼經學現當沒還進從實軍無長關點業兩間問應戰將與產結區萬體開種機電氣設備檢"
    "壓請訂單車運轉熱線員門風義讓認處給見識類並聽總數處聯絡頭樓寶雙場難強緊東馬視規導師續"
)
_MULTIBYTE = ("gb18030", "big5hkscs", "cp932", "euc_jis_2004", "cp949")
# What statistics choose from: the encodings of files that are found. With all that exist, a few words of French
# become an old Macintosh's.
_GUESSED = (
    *_MULTIBYTE,
    *(f"cp{page}" for page in (874, 1250, 1251, 1252, 1253, 1254, 1255, 1256, 1257, 1258)),
    "iso8859-1", "iso8859-2", "koi8-r", "koi8-u",
)  # fmt: skip
# The plainer encoding, where it says the same.
_PLAINER = {"big5hkscs": "big5", "euc_jis_2004": "euc-jp", "koi8-u": "koi8-r", "iso8859-1": "latin-1"}
_SURE = 0.11  # confidence; a sentence has more, a word or two of another language than English less
_WIDE_LEAST = 4  # characters that are expected, of a text without a zero byte; one or two may be there by chance
_LONE = 1.8  # letters with accents stand alone among ASCII: bytes of a run of high ones, at most, on average
_DAMAGED_MOST = 0.01  # of the bytes: with more that do not fit an encoding, it is another one


# Programs read these labels as what they are used for: their supersets.
_SUPERSETS = {
    "gb2312": "gb18030", "gbk": "gb18030", "cp936": "gb18030", "iso-8859-1": "cp1252", "latin1": "cp1252",
    "latin-1": "cp1252", "shift_jis": "cp932", "euc-kr": "cp949", "ks_c_5601-1987": "cp949", "big5": "big5hkscs",
    "iso-8859-8-i": "iso-8859-8",
}  # fmt: skip


def decode_labelled(data: bytes, label: str) -> tuple[str, str, list[Loss]]:
    """Decode `data` as the encoding that its file names ("": none); wrong labels are common, then the bytes decide.

    Returns and raises what `decode` does.
    """
    name = label.strip().lower()
    name = _SUPERSETS.get(name, name)
    # What begins with a mark is as the mark says, and what was read up to its label is not of two bytes a character.
    if name and not name.startswith(("utf-16", "utf16", "utf-32", "utf32")) and not data.startswith(_MARKS):
        try:
            return data.decode(name), name, []
        except (LookupError, ValueError):  # an unknown label, a wrong one
            pass
    return decode(data)


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
    sample = data[:_SAMPLE_BYTES]
    maybe_wide = b"\x00" in sample or not _is_utf8(sample)
    if maybe_wide and (wide := _utf16_without_mark(sample)):
        return _lenient(data, wide)
    if b"\x00" in data:
        raise UnreadableDocument("It is not text: it holds binary data.")
    # Seven bits, so that every decoder takes it; its escapes are in no other text.
    for encoding in ("iso2022_jp", "utf-8") if b"\x1b$" in sample else ("utf-8",):
        try:
            return _not_binary(data.decode(encoding)), encoding, []
        except UnicodeDecodeError:
            pass
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


def _utf16_without_mark(sample: bytes) -> str | None:
    if len(sample) < 4:
        return None
    shares = {encoding: _share_expected(sample, encoding) for encoding in ("utf-16-le", "utf-16-be")}
    best = max(shares, key=shares.__getitem__)
    # Words in a wrong byte order or encoding fall all over the table: hardly any of them is expected.
    enough = b"\x00" in sample or shares[best] * len(sample) / 2 >= _WIDE_LEAST
    return best if enough and shares[best] > 0.3 else None


def _share_expected(sample: bytes, encoding: str) -> float:
    """Share of the characters that are frequent in a text, if the bytes are taken to be in that encoding."""
    text = sample[: len(sample) // 2 * 2].decode(encoding, "replace")
    ascii_ = sum(" " <= c <= "~" or c in "\r\n\t" for c in text)
    frequent = sum(c in _FREQUENT or c in _FREQUENT_TRADITIONAL or bool(_EASTERN.match(c)) for c in text)
    # Bytes of other encodings may look like letters of these blocks, but not like the spaces between their words:
    # these have a zero byte.
    letters = len(_LETTERS.findall(text)) if ascii_ > len(text) * 0.04 else 0
    return (ascii_ + frequent + letters) / len(text)


def _guess(data: bytes) -> str:
    """The encoding of a text that is not UTF-8, as far as its lines with characters beyond ASCII tell."""
    sample = _telling(data)
    runs = _HIGH.findall(sample)
    high = sum(map(len, runs))
    if _damage(sample, "utf-8") <= high * _DAMAGED_MOST:
        return "utf-8"
    lone = high <= _LONE * len(runs)
    encoding, confidence = _detected(sample)
    if confidence < _SURE and _is_common_chinese(sample):
        encoding = "gb18030"
    elif lone and _decodes(sample, "cp1252") and (confidence < _SURE or encoding in _MULTIBYTE):
        encoding = "cp1252"
    elif not lone and encoding not in _MULTIBYTE:
        encoding = _damaged_multibyte(sample, high) or encoding
    if encoding is None:
        raise UnreadableDocument("It is not text, or its encoding is not known.")
    plainer = _PLAINER.get(encoding, encoding)
    return plainer if _decodes(data, plainer) else encoding


def _telling(data: bytes) -> bytes:
    """The lines that are not ASCII, up to the sample's size; no character of any encoding here holds a line feed."""
    if len(data) <= _SAMPLE_BYTES:
        return data
    lines: list[bytes] = []
    size = 0
    for found in _HIGH_LINE.finditer(data):
        lines.append(found.group()[: _SAMPLE_BYTES - size])
        size += len(lines[-1]) + 1
        if size >= _SAMPLE_BYTES:
            break
    sample = b"\n".join(lines)
    # The last line may end inside a character.
    return sample[: sample.rfind(b"\n")] if size >= _SAMPLE_BYTES and b"\n" in sample else sample


def _detected(sample: bytes) -> tuple[str | None, float]:
    import chardet

    found = chardet.detect(
        sample, max_bytes=len(sample) + 1, include_encodings=_GUESSED, prefer_superset=True, compat_names=False
    )
    return found["encoding"], found["confidence"]


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_common_chinese(sample: bytes) -> bool:
    """Whether all of it is ASCII and hanzi of GB2312's first level: so few that statistics say nothing."""
    return _COMMON_CHINESE.fullmatch(sample) is not None


def _damage(sample: bytes, encoding: str) -> int:
    """How many bytes do not fit the encoding."""
    return len(sample) - len(sample.decode(encoding, "ignore").encode(encoding))


def _damaged_multibyte(sample: bytes, high: int) -> str | None:
    """The encoding that statistics name once the few bytes that do not fit it are left out."""
    for encoding in _MULTIBYTE:
        whole = sample.decode(encoding, "ignore").encode(encoding)
        if whole and 0 < len(sample) - len(whole) <= max(high * _DAMAGED_MOST, 2):
            found, confidence = _detected(whole)
            if found == encoding and confidence >= 2 * _SURE:
                return encoding
    return None
