"""Owns the seam of vector search: what a set of vectors takes and gives, and the recall targets.

Must not know how any of it is searched.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Hits = tuple[Ids, Floats]  # best first, ties by id

TARGETS: Final = (0.90, 0.95, 0.99, 1.0)  # shares of the true nearest that a search must find; 1.0 is exact
DEFAULT_TARGET: Final = 0.95


class Asked(msgspec.Struct, frozen=True):
    """What one part of a tier did for a search, for `--explain`."""

    part: str  # "hot", or "cold" with the name of its segment
    vectors: int  # alive in it
    method: Literal["exact", "graph"]
    ef: int  # candidates that the graph walk kept; 0 when exact
    rescored: int  # candidates whose exact cosine was computed
    ms: float


class Sizes(msgspec.Struct, frozen=True):
    """How many vectors lie where."""

    hot: int
    cold: int
    pending: int  # still to be read from the store; searched all the same
    removed: int  # still take room in hot and cold parts
    segments: int


class DenseView(Protocol):
    """A set of vectors that can be searched, as it was at some moment: it never changes. For any thread."""

    def __len__(self) -> int:
        """Vectors that are alive."""

    def ids(self) -> Ids:
        """Ids that are alive, sorted."""

    def search(
        self,
        vector: Floats,
        k: int,
        *,
        target: float = DEFAULT_TARGET,
        within: Ids | None = None,
        notes: list[Asked] | None = None,
    ) -> Hits:
        """The `k` nearest by cosine to the unit `vector` `(dim,)`, fewer if there are not as many.

        Args:
            vector: float32, of unit length.
            k: how many.
            target: the share of the true nearest that must be found, one of `TARGETS`.
            within: only these ids, sorted ascending; a filter costs time, never recall.
            notes: what was asked is appended to it.
        """

    def cosines(self, vector: Floats, ids: Ids) -> Floats:
        """Exact cosine of each id `(n,)`, NaN where it is not there."""


class DenseTier(DenseView, Protocol):
    """A set of vectors that changes. Searches may run in many threads beside one writer; each sees one moment."""

    def add(self, ids: Ids, vectors: Floats) -> None:
        """Add unit `vectors` `(n, dim)` under new `ids` `(n,)`; searchable on return.

        Raises:
            ValueError: an id is there already, or a vector is not finite or not of unit length; nothing was added.
        """

    def remove(self, ids: Ids) -> None:
        """Remove ids; those that are not there are passed over."""

    def view(self) -> DenseView:
        """What is in it now, for as long as somebody looks at it."""
