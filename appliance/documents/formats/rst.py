"""Owns the reading of reStructuredText, by docutils with all that reaches outside the file switched off.

Must not know the directives of one program: those that docutils does not know are kept as text, and told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from appliance.documents.decode import decode
from appliance.documents.formats.text import paragraphs
from appliance.documents.losses import image_skipped
from appliance.documents.model import Block, Kind, Parsed, clean, join_lines, table_blocks
from appliance.store.records import Loss

if TYPE_CHECKING:
    from docutils import nodes

_SETTINGS = {
    "_disable_config": True,  # no docutils.conf of whoever starts the program
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "report_level": 2,  # from here on a message holds the text that was not understood; at 5 it would be dropped
    "halt_level": 5,
    "warning_stream": False,
    "syntax_highlight": "none",
    "line_length_limit": 1 << 30,  # it refuses the whole file otherwise
}
_ROLE = re.compile(r":[\w:+.-]+:`([^`<]*?)(?:\s*<[^>`]*>)?`")
_DIRECTIVE = re.compile(r"\.\. +([\w:+.-]+)::[ \t]*(.*)")
_OPTION = re.compile(r"\s*:[\w-]+:(?:\s|$)")
_SKIPPED = frozenset(
    ("comment", "substitution_definition", "target", "raw", "pending", "meta", "docinfo", "decoration")
)
_CODE = frozenset(("literal_block", "doctest_block", "math_block"))
_ADMONITION_NAMES = "attention caution danger error hint important note tip warning"
_ADMONITIONS = frozenset(_ADMONITION_NAMES.split())


def parse(data: bytes, stem: str) -> Parsed:
    """Read reStructuredText; the title is its first heading.

    Raises:
        UnreadableDocument: it is not text.
    """
    from docutils.core import publish_doctree

    text, encoding, losses = decode(data)
    # docutils' stubs and tables want every character one wide; what `clean` removes has no width.
    tree = publish_doctree(clean(text), settings_overrides=dict(_SETTINGS))
    reader = _Reader()
    blocks = [block for block in reader.read(tree, 0) if block.text.strip()]
    losses += image_skipped(reader.images)
    losses += [
        Loss("directive_unread", f"{count} × {name}: not carried out; its text is kept")
        for name, count in sorted(reader.unread.items())
    ]
    title = next((block.text for block in blocks if block.kind == "heading"), stem)
    return Parsed(title, "text/x-rst", tuple(blocks), encoding=encoding, losses=tuple(losses))


class _Reader:
    def __init__(self) -> None:
        self.images = 0
        self.unread: Counter[str] = Counter()

    def read(self, node: nodes.Element, level: int, kind: Kind = "paragraph") -> Iterator[Block]:
        """The blocks of a node's children; `level` is that of the headings around them."""
        from docutils import nodes

        first = kind
        for child in node.children:
            if not isinstance(child, nodes.Element) or child.tagname in _SKIPPED:
                continue
            name = child.tagname
            if name in ("title", "subtitle"):
                yield Block("heading", _inline(child), level=max(level, 1) + (name == "subtitle"))
            elif name == "section":
                yield from self.read(child, level + 1)
            elif name in ("paragraph", "term", "rubric", "caption", "attribution", "field_name", "line"):
                yield Block(first, self._text(child))
                first = "paragraph"
            elif name in _CODE:
                yield Block("code", child.astext())
            elif name in ("list_item", "definition_list_item", "field"):
                yield from self.read(child, level, "list_item")
            elif name == "table":
                yield from self._table(child)
            elif name == "image":
                self.images += 1
                yield Block("paragraph", child.get("alt", ""))
            elif name == "system_message":
                yield from self._message(child)
            elif name == "topic" and "contents" in child["classes"]:
                continue
            elif name in _ADMONITIONS:
                inner = list(self.read(child, level))
                if inner and inner[0].kind == "paragraph":
                    inner[0] = Block("paragraph", f"{name.capitalize()}: {inner[0].text}")
                yield from inner
            else:  # lists, quotes, figures, footnotes and whatever else holds blocks
                yield from self.read(child, level, first)

    def _text(self, node: nodes.Element) -> str:
        self.images += len([child for child in node.children if _is_named(child, "image")])
        return _inline(node)

    def _table(self, table: nodes.Element) -> Iterator[Block]:
        from docutils import nodes

        yield from (Block("paragraph", _inline(child)) for child in table.children if isinstance(child, nodes.title))
        rows: list[list[str]] = []
        spanning: dict[int, tuple[int, str]] = {}  # by column: rows that are left, text
        for row in table.findall(nodes.row):
            texts: list[str] = []
            for entry in row.findall(nodes.entry):
                _spanned(texts, spanning)
                text = " ".join(block.text for block in self.read(entry, 0))
                if entry.get("morerows"):
                    spanning[len(texts)] = (int(entry["morerows"]), text)
                texts += [text, *[""] * int(entry.get("morecols", 0))]
            _spanned(texts, spanning)
            rows.append(texts)
        yield from table_blocks(rows)

    def _message(self, message: nodes.Element) -> Iterator[Block]:
        """What was not understood: a directive that is not known or not allowed is kept as text."""
        for child in message.children:
            if not _is_named(child, "literal_block"):
                continue
            source = child.astext()
            found = _DIRECTIVE.match(source)
            if not found:
                self.unread["markup"] += 1
                yield Block("code", source)
                continue
            name, argument = found.groups()
            self.unread[f".. {name}::"] += 1
            lines = [line for line in source[found.end() :].removeprefix("\n").split("\n") if not _OPTION.match(line)]
            for text in paragraphs(_roles("\n".join([argument, *(line.strip() for line in lines)]))):
                yield Block("paragraph", join_lines(text.split("\n")))


def _spanned(texts: list[str], spanning: dict[int, tuple[int, str]]) -> None:
    """Add the cells of rows above that reach down to the columns that follow."""
    while len(texts) in spanning:
        left, text = spanning.pop(len(texts))
        if left > 1:
            spanning[len(texts)] = (left - 1, text)
        texts.append(text)


def _is_named(node: object, name: str) -> bool:
    return str(getattr(node, "tagname", "")) == name


def _inline(node: nodes.Element) -> str:
    return _roles(join_lines(line.strip() for line in node.astext().split("\n")))


def _roles(text: str) -> str:
    """The text of roles that are not known, such as Sphinx's references."""
    return _ROLE.sub(r"\1", text)
