"""Owns the reading of XML that has no reader of its own: its text, with the names of the elements around it.

Must not know vocabularies, nor how records are laid out: `formats.records` does that. It fetches nothing and
expands no entities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.documents.formats.package import local, xml
from appliance.documents.formats.records import Value, blocks_of
from appliance.documents.model import Parsed, one_line
from appliance.store.records import Loss

if TYPE_CHECKING:
    from lxml.etree import _Element


def parse(data: bytes, stem: str) -> Parsed:
    """Read XML; the title is its first `title` element.

    Raises:
        UnreadableDocument: it is damaged, or its entities would grow without bounds.
    """
    root = xml(data)
    from lxml import etree

    entities = sum(1 for _ in root.iter(etree.Entity))
    losses = [Loss("entity_skipped", f"{entities} entities that the file defines itself")] if entities else []
    title = next((one_line("".join(map(str, e.itertext()))) for e in root.iter("{*}title") if e.text), "")
    blocks = tuple(blocks_of(_value(root), local(root)))
    encoding = root.getroottree().docinfo.encoding
    return Parsed(
        title or stem, "application/xml", blocks, encoding=encoding and encoding.lower(), losses=tuple(losses)
    )


def _value(element: _Element) -> Value:
    attributes = [(str(name).rpartition("}")[2], str(text)) for name, text in element.attrib.items()]
    children = [child for child in element if _is_element(child)]
    mixed = (element.text or "").strip() or any((child.tail or "").strip() for child in element)
    if children and not mixed:
        return (*attributes, *((local(child), _value(child)) for child in children))
    text = _text(element)
    return (*attributes, ("", text)) if attributes else text


def _text(element: _Element) -> str:
    """With that of marks inside it; without comments, and without what entities stand for."""
    parts = [element.text or ""]
    for child in element:
        if _is_element(child):
            parts.append(_text(child))
        parts.append(child.tail or "")
    return "".join(parts)


def _is_element(node: Any) -> bool:
    """Whether it is no comment, instruction or entity."""
    return isinstance(node.tag, str)
