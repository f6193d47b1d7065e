"""The chunker: lossless, bounded, by structure, linear."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.documents.chunk import chunks_of, embed_text, extracted_text
from appliance.documents.model import Block, Kind, table_blocks
from appliance.sentences import grapheme_border, sentences, windows
from appliance.store.records import NewChunk


def count_tokens(texts: Sequence[str]) -> list[int]:
    """A CJK character is a token; elsewhere four characters are one."""
    return [sum(4 if c > "\u2e7f" else 1 for c in text) // 4 + bool(text) for text in texts]


def cut(blocks: Sequence[Block], size: int = 64, overlap: int = 16) -> list[NewChunk]:
    return chunks_of(blocks, count_tokens, chunk_tokens=size, overlap_tokens=overlap)


TEXTS = st.text(st.sampled_from("ab \n.。！，安全 X1\u0301\u200d👩🇩🇪-|"), min_size=1, max_size=400) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200
)
BLOCKS = st.lists(
    st.builds(
        Block,
        st.sampled_from(["heading", "paragraph", "list_item", "table_row", "code"]),
        TEXTS,
        st.integers(1, 4),
        st.none() | st.integers(1, 5),
        st.sampled_from(["", "Part | Number"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(BLOCKS, st.integers(32, 200), st.integers(0, 40))
@example([Block("heading", "1", 1), Block("paragraph", "1"), Block("heading", "1", 1), Block("paragraph", " ")], 32, 0)
@settings(max_examples=150, deadline=None)
def test_spans_tile_the_text_and_nothing_is_lost(blocks: list[Block], size: int, overlap: int) -> None:
    chunks = cut(blocks, size, overlap)
    text, starts = extracted_text(blocks)
    assert "".join(text[chunk.start : chunk.end] for chunk in chunks) == text
    bodies = [
        start for block, start in zip(blocks, starts, strict=True) if block.kind != "heading" and block.text.strip()
    ]
    for chunk in chunks:
        # What a span holds below its headings is in the chunk's own text; headings alone are its text.
        opens_section = any(start == chunk.start for start in starts)
        below = [start for start in bodies if chunk.start <= start < chunk.end]
        begin = below[0] if opens_section and below else chunk.start
        assert chunk.text.endswith(text[begin : chunk.end].strip())


@given(st.lists(TEXTS, min_size=1, max_size=10), st.integers(64, 200))
@settings(max_examples=100, deadline=None)
def test_chunks_are_bounded(texts: list[str], size: int) -> None:
    for chunk in cut([Block("paragraph", text) for text in texts], size):
        assert count_tokens([embed_text(chunk)])[0] <= size + 8  # counted in pieces, each rounded up


def test_a_heading_path_goes_with_each_chunk_and_chunks_keep_to_their_section() -> None:
    blocks = [
        Block("heading", "Pump", 1),
        Block("heading", "Safety", 2),
        Block("paragraph", "Switch off. " * 30),
        Block("heading", "Parts", 2),
        Block("paragraph", "See the list."),
        Block("heading", "End", 1),
    ]
    chunks = cut(blocks)
    assert {chunk.heading for chunk in chunks} == {"Pump › Safety", "Pump › Parts", "End"}
    assert [c.text for c in chunks if c.heading == "Pump › Parts"] == ["See the list."]
    assert chunks[-1].text == "End"
    assert all("See" not in c.text for c in chunks if c.heading == "Pump › Safety")
    assert embed_text(chunks[0]).startswith("Pump › Safety\nSwitch off.")


def test_whole_sentences_overlap() -> None:
    sentences_in = [f"This is sentence number {i} of the text." for i in range(20)]
    chunks = cut([Block("paragraph", " ".join(sentences_in))], 64, 16)
    assert len(chunks) > 2
    for before, after in pairwise(chunks):
        assert after.text.startswith("This is") and after.text.endswith("text.")
        assert after.text.split(".")[0] in before.text  # the last sentence of the one before
    assert cut([Block("paragraph", " ".join(sentences_in))], 64, 0)[1].text.split(".")[0] not in chunks[0].text


def test_rows_stay_whole_and_the_header_is_repeated() -> None:
    rows = table_blocks([["Part", "Number"], *[[f"Seal kit {i}", f"HX-{i:05}"] for i in range(60)]], page=7)
    chunks = cut([Block("paragraph", "Spare parts:", page=7), *rows], 64)
    assert len(chunks) > 3
    assert chunks[0].text.startswith("Spare parts:\n\nPart | Number\nSeal kit 0 | HX-00000")
    for chunk in chunks[1:]:
        assert chunk.text.startswith("Part | Number\nSeal kit ")
        assert all(line.count(" | ") == 1 for line in chunk.text.splitlines())
    assert sum(chunk.text.count("HX-00017") for chunk in chunks) == 1


def test_each_chunk_names_its_pages_and_no_more() -> None:
    blocks = [Block("paragraph", f"Page {page} says a thing. " * 12, page=page) for page in (1, 2, 3)]
    for chunk in cut(blocks, 200):
        assert chunk.page_first == chunk.page_last
        assert set(chunk.text.split()) & {"1", "2", "3"} == {str(chunk.page_first)}


def test_a_sentence_over_a_page_break_is_whole_and_on_both_pages() -> None:
    blocks = [
        Block("paragraph", "First thing. " * 10 + "The torque of the casing", page=4),
        Block("paragraph", "bolts is 65 Nm. " + "Other thing. " * 10, page=5, joined=True),
    ]
    whole = [chunk for chunk in cut(blocks) if "torque of the casing bolts is 65 Nm." in chunk.text]
    assert [(chunk.page_first, chunk.page_last) for chunk in whole] == [(4, 5)]


def test_chinese_is_cut_at_its_sentence_ends() -> None:
    text = "打开泵壳之前必须切断电源。扭矩为二十五牛米！真的吗？" * 20
    chunks = cut([Block("paragraph", text)], 64)
    assert len(chunks) > 5
    assert all(chunk.text[-1] in "。！？" for chunk in chunks)


def test_abbreviations_and_decimals_end_no_sentence() -> None:
    text = "See Fig. 3 and No. 7 of the list, e.g. the seal (max. 0.5 mm). Then stop. Use 2.5 bar."
    parts = [text[a:b].strip() for a, b in sentences(text)]
    assert parts == [
        "See Fig. 3 and No. 7 of the list, e.g. the seal (max. 0.5 mm).",
        "Then stop.",
        "Use 2.5 bar.",
    ]


@given(TEXTS, st.integers(64, 90))
def test_windows_tile_and_are_bounded(text: str, size: int) -> None:
    spans = windows(text * 5, 0, len(text) * 5, size)
    assert [a for a, _ in spans] == [0, *[b for _, b in spans[:-1]]]
    assert spans[-1][1] == len(text) * 5
    assert all(0 < b - a <= size for a, b in spans)


@pytest.mark.parametrize("cluster", ["e\u0301", "👩\u200d🔧", "🇩🇪", "👍\U0001f3fd", "각", "ก็", "✈\ufe0f"])
def test_no_cut_inside_a_character(cluster: str) -> None:
    text = cluster * 100
    for place in range(40, len(text)):
        assert grapheme_border(text, place) % len(cluster) == 0


@given(BLOCKS, st.integers(32, 200), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_no_chunk_begins_inside_a_character(blocks: list[Block], size: int, overlap: int) -> None:
    text, starts = extracted_text(blocks)
    for chunk in cut(blocks, size, overlap):
        # A block that begins with a mark has nothing else to begin with; nobody reads clusters of 32 marks.
        if chunk.start not in starts and longest_cluster(text[max(0, chunk.start - 40) : chunk.start + 40]) < 32:
            assert grapheme_border(text, chunk.start, max(s for s in starts if s <= chunk.start)) == chunk.start


def longest_cluster(text: str) -> int:
    return max(len(run) for run in re.split(r"[^\u0300-\u036f\u200d👩🇩🇪\ufe0f\u1100-\u11ff]", text))


@pytest.mark.parametrize("text", ["Stop.\u0301 Go on. ", "停。\u0301走。", "A. \u0301b C. "])
def test_a_sentence_does_not_end_inside_a_character(text: str) -> None:
    assert all(text[begin] != "\u0301" for begin, _ in sentences(text))


def test_a_row_longer_than_a_chunk_is_cut_between_cells() -> None:
    rows = table_blocks([["Part", "Text"], [f"cell {i} of, the row" for i in range(200)]])
    chunks = [chunk for chunk in cut(rows, 64) if "cell" in chunk.text]
    assert len(chunks) > 5
    for chunk in chunks:
        own = chunk.text.splitlines()[-1].strip(" |")
        assert own.startswith("cell ") and own.endswith("row")


HARD_TEXTS = {
    "line": "x" * 5_000_000,
    "hanzi": "安" * 2_000_000,
    "space-then-run": "a " + "x" * 5_000 + " 320",
    "dots": "." * 2_000_000,
    "spaces": " " * 2_000_000 + "x",
    "closing": ".)" * 1_000_000,
    "marks": "e\u0301" * 1_000_000,
    "stops-with-marks": ".\u0301 " * 500_000,
    "flags": "🇩" * 300_000,
    "breaks": "\n" * 1_000_000 + "x",
    "no-tokens": ("x\n" + "\u3000\n" * 50) * 2_000,
    "words": "a.b " * 500_000,
}


@pytest.mark.parametrize("name", HARD_TEXTS)
def test_any_text_is_cut_to_bounded_chunks(name: str) -> None:
    text = HARD_TEXTS[name]
    chunks = cut([Block("paragraph", text)], 200, 320 if name == "space-then-run" else 30)
    assert "".join(text[c.start : c.end] for c in chunks) == text
    assert max(chunk.tokens for chunk in chunks) <= 210


def work_of(blocks: Sequence[Block]) -> tuple[int, int]:
    """What cutting takes, in calls of functions and in characters that were given to the tokenizer."""
    calls = characters = 0

    def counted(texts: Sequence[str]) -> list[int]:
        nonlocal characters
        characters += sum(map(len, texts))
        return [len(text.split()) for text in texts]  # white space is no token

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        chunks_of(blocks, counted, chunk_tokens=100, overlap_tokens=30)
    finally:
        sys.setprofile(None)
    return calls, characters


@pytest.mark.parametrize("name", HARD_TEXTS)
def test_work_is_linear(name: str) -> None:
    begin, half = HARD_TEXTS[name][:20_000], HARD_TEXTS[name][:10_000]
    small, large = work_of([Block("paragraph", half)]), work_of([Block("paragraph", begin)])
    assert large[0] <= 2.2 * small[0] + 500
    assert large[1] <= 2.2 * small[1] + 10_000
    assert large[1] <= 10 * len(begin)


@pytest.mark.parametrize("kind", ["paragraph", "list_item", "table_row", "heading", "code"])
def test_work_is_linear_in_blocks(kind: Kind) -> None:
    blocks = [Block(kind, f"item {i}.", level=i % 6 + 1, page=i // 50, header="a | b") for i in range(2_000)]
    small, large = work_of(blocks[:1_000]), work_of(blocks)
    assert large[0] <= 2.2 * small[0]
    assert large[1] <= 2.2 * small[1]
