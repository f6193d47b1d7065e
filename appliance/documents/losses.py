"""Owns the kinds of loss that reading a document may report, the same for every format.

Must not know formats, or who shows the report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from appliance.documents.model import REPLACEMENT, Block
from appliance.store.records import Loss

KINDS = {
    "attachment_unread": "an attachment of a message, or a part of it, that cannot be read",
    "chapter_unreadable": "a chapter of a book that is damaged or missing",
    "characters_replaced": "characters that have no readable code, or are not valid in the text's encoding",
    "chart_skipped": "charts; what is in cells or saved with them is read",
    "contents_list_removed": "a list of contents, which a search would find instead of what it points to",
    "deleted_text_skipped": "text that is marked as deleted",
    "directive_unread": "instructions of a markup language that are unknown, or would read other files",
    "drawing_skipped": "diagrams and objects of other programs",
    "entity_skipped": "entities that an XML file defines itself",
    "front_matter_skipped": "the header of a Markdown file",
    "image_skipped": "images; their descriptions are kept",
    "ligatures_guessed": "broken ligatures that were made whole by a guess",
    "navigation_skipped": "menus of a web page",
    "page_unreadable": "a damaged page",
    "page_without_text": "a page that is empty or an image",
    "record_unreadable": "a record that is not valid JSON; it is read as plain text",
    "rows_guessed": "rows of a table that do not fit its form; nothing of them is left out",
    "running_header_removed": "headers and footers that repeat from page to page",
    "text_doubtful": "a page whose text was recognised with little confidence",
    "text_recognised": "pages that are images and were read by text recognition, which makes mistakes",
    "table_flattened": "a table inside a table, or one that lays out a page",
}
_MOST = 50  # of one kind; the rest is counted
_PRIVATE = range(0xE000, 0xF900)


def image_skipped(count: int) -> list[Loss]:
    """The loss of so many images; none for 0."""
    return [Loss("image_skipped", f"{count} images; only their descriptions are kept")] if count else []


def inside(name: str, losses: Iterable[Loss]) -> list[Loss]:
    """Losses of a file that is part of another, with its name."""
    return [Loss(loss.kind, f"{name}: {loss.detail}", loss.page) for loss in losses]


def characters_replaced(blocks: Iterable[Block], known: Iterable[Loss]) -> list[Loss]:
    """Unreadable characters in `blocks` that `known` does not tell of: replaced ones, and those of private fonts."""
    private = sum(ord(c) in _PRIVATE for block in blocks for c in block.text if c >= "\ue000")
    losses = [Loss("characters_replaced", f"{private} characters mean something in their own font alone")]
    losses = losses if private else []
    if all(loss.kind != "characters_replaced" for loss in known) and (
        count := sum(block.text.count(REPLACEMENT) for block in blocks)
    ):
        losses.append(Loss("characters_replaced", f"{count} characters have no readable code"))
    return losses


def bounded(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """`losses` by kind, each once, at most `_MOST` of a kind and one that counts the rest."""
    by_kind: dict[str, dict[Loss, None]] = defaultdict(dict)
    for loss in losses:
        by_kind[loss.kind][loss] = None
    kept: list[Loss] = []
    for kind, found in by_kind.items():
        kept += list(found)[:_MOST]
        if len(found) > _MOST:
            kept.append(Loss(kind, f"and {len(found) - _MOST} more"))
    return tuple(kept)
