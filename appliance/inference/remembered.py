"""Owns vectors of questions that were asked before: a question is embedded once while it is remembered.

Must not know what vectors are used for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from appliance.cache.memory import MemoryBytes
from appliance.inference.protocols import Embedder, Embeddings

MEMORY_BYTES: Final = 8 << 20  # about 4,000 questions


class RememberedQueries:
    """An embedder whose `embed_queries` remembers. For any thread."""

    def __init__(self, embedder: Embedder, memory_bytes: int = MEMORY_BYTES) -> None:
        self._embedder = embedder
        self._known = MemoryBytes(memory_bytes)

    @property
    def dim(self) -> int:
        """See `Embedder`."""
        return self._embedder.dim

    @property
    def fingerprint(self) -> str:
        """See `Embedder`."""
        return self._embedder.fingerprint

    @property
    def max_tokens(self) -> int:
        """See `Embedder`."""
        return self._embedder.max_tokens

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """See `Embedder`."""
        return self._embedder.count_tokens(texts)

    def embed_queries(self, texts: Sequence[str]) -> Embeddings:
        """See `Embedder`; of texts that are remembered without the model."""
        keys = [text.encode("utf-8", "surrogatepass") for text in texts]
        found = [self._known.get(key) for key in keys]
        missing = [place for place, data in enumerate(found) if data is None]
        vectors = np.empty((len(texts), self.dim), np.float32)
        for place, data in enumerate(found):
            if data is not None:
                vectors[place] = np.frombuffer(data, np.float32)
        if missing:
            vectors[missing] = self._embedder.embed_queries([texts[place] for place in missing])
            for place in missing:
                self._known.set(keys[place], vectors[place].tobytes(), tag="")
        return vectors

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        """See `Embedder`; each is embedded once anyway, when it is stored."""
        return self._embedder.embed_passages(texts)
