"""Owns the parts of the prefix cache: nodes of a radix tree over token ids, and where their KV is.

Must not know what is kept, shared or given up. All ranges are positions `[start, end)`; one token is one cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

NO_SEQUENCE = -1


class KV(Protocol):
    """Cells of one context, each with a position and the set of sequences that see it."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Have `target` see the cells of `source` in the range too."""

    def remove(self, sequence: int, start: int, end: int) -> None:
        """Take a range from a sequence; cells that no sequence sees are free."""

    def save(self, sequence: int) -> bytes:
        """All cells of a sequence as bytes."""

    def load(self, sequence: int, data: bytes) -> bool:
        """Put saved cells into an empty sequence; False, and nothing changed, where they do not fit this context."""


class Saved(Protocol):
    """KV of a range, outside the context."""

    @property
    def start(self) -> int:
        """First position."""

    @property
    def end(self) -> int:
        """Position after the last."""

    @property
    def size(self) -> int:
        """Bytes of memory that it takes; 0 if it lies on a disk."""

    def read(self) -> bytes | None:
        """The bytes; None if they are damaged or gone."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """A saved range in this process's memory."""

    start: int
    end: int
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self) -> bytes | None:
        return self.data


@dataclass(eq=False, slots=True)
class Node:
    """An edge of the tree: the tokens at positions `[start, end)` behind those of its parent."""

    parent: Node | None
    start: int
    tokens: list[int]
    children: dict[int, Node] = field(default_factory=dict)
    sequence: int = NO_SEQUENCE  # holds its cells; none: not in the context
    saved: Saved | None = None  # covers at least the node's range
    users: int = 0  # leases whose path goes through
    pinned: bool = False
    used: int = 0  # tick of the last use
    hits: int = 0  # leases that found it
    kept: bool = False  # was handed out to be written to a disk, or came from one
    doomed: bool = False  # to be forgotten as soon as nobody uses it

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def in_context(self) -> bool:
        return self.sequence != NO_SEQUENCE or self.parent is None

    def path(self) -> list[Node]:
        """From the root to this node, both included."""
        steps = [self]
        while (parent := steps[-1].parent) is not None:
            steps.append(parent)
        return steps[::-1]

    def below(self) -> Iterator[Node]:
        """This node, unless it is a root, and all under it, parents first."""
        stack = [self]
        while stack:
            step = stack.pop()
            if not step.is_root:
                yield step
            stack += step.children.values()

    def has_kept_children(self) -> bool:
        """Whether a child has KV anywhere."""
        return any(child.saved is not None or child.in_context for child in self.children.values())


def common_length(edge: Sequence[int], skip: int, tokens: Sequence[int], start: int, end: int) -> int:
    """How many tokens of `edge[skip:]` and `tokens[start:end]` are equal from their beginning."""
    most = min(len(edge) - skip, end - start)
    if edge[skip : skip + most] == tokens[start : start + most]:
        return most
    low, high = 0, most  # the first `low` are equal, the first `high` are not: slices compare faster than a loop
    while high - low > 1:
        middle = (low + high) // 2
        if edge[skip + low : skip + middle] == tokens[start + low : start + middle]:
            low = middle
        else:
            high = middle
    return low
