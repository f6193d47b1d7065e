"""Owns what answers follow from beside the question: the documents, the models and the settings of this moment.

Must not know questions or caches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class Versions:
    """A version for each collection: another one whenever an answer from it may be another. For any thread.

    Args:
        fixed: what does not change while the service runs: the store's identity, checksums of models, settings.
        generations: of the collections that there are.
    """

    def __init__(self, fixed: Iterable[object], generations: Mapping[str, int]) -> None:
        self._fixed = msgspec.msgpack.encode(list(fixed), order="deterministic")
        self._generations = dict(generations)

    def changed(self, collection: str, generation: int) -> None:
        """A collection was changed."""
        self._generations[collection] = generation

    def of(self, collection: str | None) -> bytes:
        """The version of a collection; None: of answers without documents."""
        generation = -1 if collection is None else self._generations.get(collection, 0)
        return self._fixed + generation.to_bytes(8, "big", signed=True)
