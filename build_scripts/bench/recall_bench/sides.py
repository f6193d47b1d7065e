"""Owns the seam of a side: something that builds an index of vectors, opens it from the disk and searches it.

Must not know how it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .data import Floats, Ids

Search = Callable[[Floats], Ids]  # from a unit vector (dim,) to ids, best first


class Side(Protocol):
    """One way to search vectors. `effort` is what it trades time for recall with."""

    def resume(self, passages: Floats, folder: Path, threads: int) -> int:
        """Go on with what `save` left in `folder`, or begin; how many of `passages` `(n, dim)` are in it: the first."""

    def add(self, first: int, vectors: Floats) -> None:
        """Add the passages from number `first` on."""

    def finish(self) -> None:
        """Do what is left to do after the last passage."""

    def save(self, folder: Path) -> None:
        """Write what there is to `folder`: whole, or as it was before."""

    def open(self, folder: Path) -> None:
        """Open what a finished build saved."""

    def searcher(self, k: int, effort: float) -> Search:
        """A search for the `k` nearest with `effort`."""

    def close(self) -> None:
        """Let go of threads and files."""


@dataclass(frozen=True, slots=True)
class SideSpec:
    """What is known of a side without loading its library."""

    title: str
    make: Callable[[int, int], Side]  # from the number of vectors and their length
    modules: tuple[str, ...]  # that it loads, in the order that `appliance.native` tells
    version: Callable[[], str]  # of all that its files depend on beside the vectors
    parameters: str  # as they are told
    effort_name: str
    efforts: tuple[float, ...]  # from the least to the most: the least that reaches the wanted recall is taken

    def told(self, effort: float) -> str:
        """How it was set up, in words."""
        return f"{self.parameters}, {self.effort_name} {effort:g}"


def all_sides() -> Mapping[str, SideSpec]:
    """Every side by its key, ours first."""
    from . import faiss_sides, graphs, ours

    return {**ours.SIDES, **graphs.SIDES, **faiss_sides.SIDES}
