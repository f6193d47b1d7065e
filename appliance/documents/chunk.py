"""Owns the cutting of a document into chunks that fit the embedder and can stand alone in a prompt.

Must not know file formats, the store or how search ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from appliance.documents.model import Block, is_cjk
from appliance.sentences import sentences, windows
from appliance.store.records import HEADING_JOINER, NewChunk

CountTokens = Callable[[Sequence[str]], list[int]]  # tokens of each text

HEADING_TOKENS_MOST = 48  # of a heading path; outer headings are left out above it
_CHARACTERS_PER_TOKEN = 4  # a longer sentence is cut before it is counted; tokens are rarely longer
_WINDOW_SHORTEST = 64  # characters
_WORTH_A_CHUNK = 24  # tokens: with this much before it, a new page begins a new chunk
_HEADER_SHARE_MOST = 3  # a table header is repeated when it takes at most 1/3 of a chunk


class Contextual(Protocol):
    """What `embed_text` needs: new and stored chunks have both."""

    @property
    def text(self) -> str:
        """The chunk's own text."""

    @property
    def heading(self) -> str:
        """Its heading path."""


def embed_text(chunk: Contextual) -> str:
    """What is embedded and indexed of a chunk: its heading path, a line break, its text."""
    return f"{chunk.heading}\n{chunk.text}" if chunk.heading else chunk.text


@dataclass(slots=True)
class _Piece:
    """A sentence, a row or a window of one, up to the start of the next: never cut any more."""

    start: int
    end: int
    page_first: int | None
    page_last: int | None
    row: bool = False
    header: str = ""  # of a row
    tokens: int = 0


@dataclass(slots=True)
class _Section:
    """Text below one heading path. Its span begins with its headings; its blocks are what stands below."""

    start: int
    path: list[str]
    blocks: list[tuple[Block, int]] = field(default_factory=list)  # block, start of its text
    end: int = 0


def extracted_text(blocks: Sequence[Block]) -> tuple[str, list[int]]:
    """The document's text, and where each block starts in it, in code points."""
    parts: list[str] = []
    starts: list[int] = []
    place = 0
    before: Block | None = None
    for block in blocks:
        separator = _separator(before, block) if before is not None else ""
        place += len(separator)
        starts.append(place)
        parts += [separator, block.text]
        place += len(block.text)
        before = block
    return "".join(parts), starts


def chunks_of(
    blocks: Sequence[Block], count_tokens: CountTokens, *, chunk_tokens: int, overlap_tokens: int
) -> list[NewChunk]:
    """Cut a document; time is linear in its length.

    Args:
        blocks: in reading order.
        count_tokens: of the embedder.
        chunk_tokens: wanted size of a chunk with its heading path and what it repeats.
        overlap_tokens: at most this much of the end of a chunk is repeated at the start of the next one,
            in whole sentences, and not over a page.

    Returns:
        Chunks in order. Their spans tile the extracted text. Their texts leave out the headings (those are
        in `heading`) and add what is repeated: the overlap, or the header row of a table that goes on.
    """
    text, starts = extracted_text(blocks)
    sections = _sections(blocks, starts, len(text))
    headings = _heading_paths(sections, count_tokens)
    largest = max(chunk_tokens - HEADING_TOKENS_MOST, chunk_tokens // 2)
    pieces = [list(_pieces(text, section, largest * _CHARACTERS_PER_TOKEN)) for section in sections]
    pieces = _counted(text, pieces, largest, count_tokens)
    headers = sorted({piece.header for own in pieces for piece in own if piece.header})
    header_tokens = dict(zip(headers, count_tokens(headers), strict=True))
    found: list[NewChunk] = []
    for section, heading, own in zip(sections, headings, pieces, strict=True):
        budget = chunk_tokens - heading.tokens
        groups = _groups(own, budget, overlap_tokens, header_tokens)
        for place, group in enumerate(groups):
            start = section.start if place == 0 else group.own[0].start
            chunk = _chunk(text, heading.text, group, start)
            if chunk.text or not found:
                found.append(chunk)
            else:  # white space alone goes to the chunk before it
                found[-1] = msgspec.structs.replace(found[-1], end=chunk.end)
    tokens = count_tokens([chunk.text for chunk in found])
    return [msgspec.structs.replace(c, tokens=count) for c, count in zip(found, tokens, strict=True)]


def _separator(before: Block, after: Block) -> str:
    if after.joined:
        together = before.text and after.text and is_cjk(before.text[-1]) and is_cjk(after.text[0])
        return "" if together else " "
    if before.kind == after.kind == "list_item" or (before.kind == "table_row" and after.header):
        return "\n"
    return "\n\n"


def _sections(blocks: Sequence[Block], starts: Sequence[int], end: int) -> list[_Section]:
    path: list[Block] = []
    sections: list[_Section] = []
    for block, start in zip(blocks, starts, strict=True):
        if block.kind != "heading":
            if not sections:
                sections.append(_Section(start, []))
            if block.text.strip() or not path:  # white space alone is nothing below a heading
                sections[-1].blocks.append((block, start))
            continue
        nested = bool(path) and bool(sections) and not sections[-1].blocks and path[-1].level < block.level
        if sections and not sections[-1].blocks and not nested:
            # A heading with nothing below it: its words must be found all the same.
            sections[-1].blocks.append((path[-1], sections[-1].start))
        path = [*(heading for heading in path if heading.level < block.level), block]
        texts = [heading.text for heading in path]
        if nested:
            sections[-1].path = texts
        else:
            sections.append(_Section(start, texts))
    if sections and not sections[-1].blocks:
        sections[-1].blocks.append((path[-1], sections[-1].start))
    for section, following in zip(sections, [*sections[1:], None], strict=True):
        section.end = following.start if following else end
    return sections


@dataclass(slots=True, frozen=True)
class _Heading:
    text: str
    tokens: int


def _heading_paths(sections: Sequence[_Section], count_tokens: CountTokens) -> list[_Heading]:
    """Each section's path, outer headings left out where it would be too long."""
    titles = sorted({title for section in sections for title in section.path})
    tokens = dict(zip(titles, count_tokens(titles), strict=True))
    paths: list[_Heading] = []
    for section in sections:
        kept: list[str] = []
        total = 0
        for title in reversed(section.path):
            cost = tokens[title] + 2  # the joiner
            if total + cost > HEADING_TOKENS_MOST:
                if not kept:
                    # A heading as long as a paragraph: its beginning has to do.
                    kept, total = [title[:HEADING_TOKENS_MOST]], HEADING_TOKENS_MOST
                break
            kept.insert(0, title)
            total += cost
        paths.append(_Heading(HEADING_JOINER.join(kept), total))
    return paths


def _pieces(text: str, section: _Section, longest: int) -> Iterator[_Piece]:
    """The section's pieces, not counted yet; they tile it from its first block on."""
    before: _Piece | None = None
    for place, (block, start) in enumerate(section.blocks):
        last = place == len(section.blocks) - 1
        end = section.end if last else section.blocks[place + 1][1]
        row = block.kind == "table_row"
        spans = [(start, end)] if row else sentences(text, start, end)
        if block.kind == "code":
            spans = _lines(text, start, end)
        for number, (begin, stop) in enumerate(spans):
            for first, final in windows(text, begin, stop, max(longest, _WINDOW_SHORTEST), row=row):
                piece = _Piece(first, final, block.page, block.page, row, block.header)
                if (
                    before is not None
                    and number == 0
                    and first == begin
                    and _one_sentence(block, before, piece, longest)
                ):
                    before.end, before.page_last = piece.end, piece.page_last
                    continue
                if before is not None:
                    yield before
                before = piece
    if before is not None:
        yield before


def _one_sentence(block: Block, before: _Piece, piece: _Piece, longest: int) -> bool:
    """Whether `piece` ends the sentence that `before` begins on the page before."""
    return block.joined and not before.row and piece.end - before.start <= longest


def _lines(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans = []
    while start < end:
        stop = text.find("\n", start, end) + 1 or end
        spans.append((start, stop))
        start = stop
    return spans


def _counted(text: str, pieces: list[list[_Piece]], largest: int, count_tokens: CountTokens) -> list[list[_Piece]]:
    """Count all pieces; those of more than `largest` tokens are cut smaller until they fit."""
    size = largest * _CHARACTERS_PER_TOKEN
    every = [piece for own in pieces for piece in own]
    while every:
        for piece, tokens in zip(every, count_tokens([text[p.start : p.end] for p in every]), strict=True):
            piece.tokens = tokens
        size //= 2
        if size < _WINDOW_SHORTEST:
            break
        every = []
        for number, own in enumerate(pieces):
            if any(piece.tokens > largest for piece in own):
                pieces[number] = [part for piece in own for part in _smaller(text, piece, largest, size)]
                every += [piece for piece in pieces[number] if not piece.tokens]
    return pieces


def _smaller(text: str, piece: _Piece, largest: int, size: int) -> list[_Piece]:
    if piece.tokens <= largest:
        return [piece]
    return [
        _Piece(start, end, piece.page_first, piece.page_last, piece.row, piece.header)
        for start, end in windows(text, piece.start, piece.end, size, row=piece.row)
    ]


@dataclass(slots=True)
class _Group:
    """The pieces of one chunk, and those of the chunk before that it repeats."""

    repeated: list[_Piece]
    own: list[_Piece]
    header: str  # row to repeat above; "" for none


def _groups(pieces: Sequence[_Piece], budget: int, overlap_tokens: int, header_tokens: dict[str, int]) -> list[_Group]:
    groups: list[_Group] = []
    group = _Group([], [], "")
    total = 0
    for piece in pieces:
        turned = bool(group.own) and piece.page_first != group.own[-1].page_last
        if group.own and (total + piece.tokens > budget or (turned and total >= _WORTH_A_CHUNK)):
            groups.append(group)
            header = piece.header if header_tokens.get(piece.header, budget) * _HEADER_SHARE_MOST <= budget else ""
            room = min(overlap_tokens, budget - piece.tokens)
            group = _Group([] if piece.row else _overlap(group.own, piece, room), [], header)
            total = sum(p.tokens for p in group.repeated) + header_tokens.get(header, 0)
        group.own.append(piece)
        total += piece.tokens
    return [*groups, group]


def _overlap(before: Sequence[_Piece], piece: _Piece, room: int) -> list[_Piece]:
    """The last whole sentences of the chunk before, as many as there is room for, of the same page."""
    kept: list[_Piece] = []
    for earlier in reversed(before):
        room -= earlier.tokens
        if room < 0 or earlier.row or earlier.page_first != piece.page_first:
            break
        kept.append(earlier)  # not at its beginning: there may be any number of pieces without a token
    return kept[::-1]


def _chunk(text: str, heading: str, group: _Group, start: int) -> NewChunk:
    every = [*group.repeated, *group.own]
    body = text[every[0].start : every[-1].end].strip()
    if group.header:
        body = f"{group.header}\n{body}"
    first = [piece.page_first for piece in every if piece.page_first is not None]
    last = [piece.page_last for piece in every if piece.page_last is not None]
    return NewChunk(body, heading, min(first, default=None), max(last, default=None), start, group.own[-1].end, 0)
