"""Text in the encodings that files are found in: real sentences of each language come back as they were."""

from __future__ import annotations

import codecs
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.documents.decode import decode
from appliance.errors import UnreadableDocument
from tests.unit.documents.real_sentences import LANGUAGES

PAIRS = [(language, encoding) for language, (_, encodings) in LANGUAGES.items() for encoding in encodings]
UNICODE = ("utf-8", "utf-16-le", "utf-16-be")
MARKS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
# Four sentences; in a script of its own one is enough.
SCRIPTS = {"simplified Chinese", "traditional Chinese", "Japanese", "Korean", "Russian", "Greek", "Hebrew", "Arabic"}


def writable(language: str, encoding: str) -> list[str]:
    found = []
    for sentence in LANGUAGES[language][0]:
        try:
            sentence.encode(encoding)
        except UnicodeEncodeError:
            continue
        if not sentence.isascii():
            found.append(sentence)
    return found


@pytest.mark.parametrize(("language", "encoding"), PAIRS)
@settings(max_examples=25)
@given(data=st.data())
def test_any_few_sentences_come_back(language: str, encoding: str, data: st.DataObject) -> None:
    least = 1 if language in SCRIPTS else 4
    drawn = st.lists(st.sampled_from(writable(language, encoding)), min_size=least, unique=True)
    text = data.draw(st.sampled_from(["\n", "\r\n", " "])).join(data.draw(drawn))
    got, named, losses = decode(text.encode(encoding))
    assert (got, losses) == (text, [])
    assert text.encode(encoding).decode(named) == text


@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=10)
@given(data=st.data())
def test_unicode_comes_back_with_a_mark_and_without(language: str, data: st.DataObject) -> None:
    text = "\n".join(data.draw(st.lists(st.sampled_from(LANGUAGES[language][0]), min_size=1, unique=True)))
    for encoding, mark in MARKS.items():
        assert decode(mark + text.encode(encoding)) == (text, encoding, [])
    for encoding in UNICODE:
        assert decode(text.encode(encoding)) == (text, encoding, [])


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("扭矩", "gb18030"),
        ("扭矩 25 Nm", "gb18030"),
        ("压力 0.3 MPa，温度 5 ℃", "gb18030"),
        ("25 °C", "cp1252"),
        ("Ø 12 mm ± 0,5", "cp1252"),
        ("12 µm", "cp1252"),
        ("§ 4 “quoted” word", "cp1252"),
        ("naïve", "cp1252"),
        ("Straße", "cp1252"),
        ("name;price\nCafé;5 €\nMüller;3 £", "cp1252"),
        ("The pump’s torque is 25 Nm.", "cp1252"),
        ("¡Atención! Los operarios deberán llevar guantes.", "cp1252"),
        ("名前：ポンプ", "iso2022_jp"),
    ],
)
def test_a_word_or_two(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == (text, encoding, [])


@pytest.mark.parametrize(("language", "encoding"), [("simplified Chinese", "gb18030"), ("Russian", "cp1251")])
def test_the_text_may_begin_late(language: str, encoding: str) -> None:
    text = "2026-12-03 12:00:00 ready\n" * 40_000 + "\n".join(LANGUAGES[language][0]) + "\nthe end\n" * 100_000
    assert decode(text.encode(encoding))[:2] == (text, encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "big5", "cp932", "cp949", "utf-16-le"])
@settings(max_examples=15)
@given(data=st.data())
def test_a_byte_that_is_damaged_costs_a_character_or_two(encoding: str, data: st.DataObject) -> None:
    language = {"big5": "traditional Chinese", "cp932": "Japanese", "cp949": "Korean"}.get(
        encoding, "simplified Chinese"
    )
    text = "\n".join(LANGUAGES[language][0])
    whole = text.encode(encoding)
    place = data.draw(st.integers(1, len(whole) - 2))
    damaged = data.draw(st.sampled_from([whole[:place] + b"\xff" + whole[place + 1 :], whole[:-1]]))
    got, _, _ = decode(damaged)
    assert len(set(got.split("\n")) & set(text.split("\n"))) >= 8


def test_a_file_in_utf8_with_one_bad_byte_is_still_utf8() -> None:
    text, encoding, losses = decode("扭矩是二十五牛米。".encode() * 20 + b"\xe4")
    assert encoding == "utf-8" and text.startswith("扭矩是") and losses[0].kind == "characters_replaced"


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32), size=st.integers(64, 5000), zeros=st.booleans())
def test_random_bytes_are_no_text(seed: int, size: int, zeros: bool) -> None:
    data = random.Random(seed).randbytes(size)
    with pytest.raises(UnreadableDocument):
        decode(data if zeros else data.replace(b"\x00", b"\x01"))


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_any_bytes_are_text_or_refused(data: bytes) -> None:
    try:
        text, encoding, losses = decode(data)
    except UnreadableDocument:
        return
    codecs.lookup(encoding)
    assert ("\ufffd" in text) == bool(losses) or "\ufffd".encode() in data
