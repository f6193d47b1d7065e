"""Owns `OnnxEmbedder`: texts to unit vectors with a tokenizer file and an ONNX encoder.

Must not know what the texts are or where the vectors go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from appliance.config import ModelSettings
from appliance.errors import BadRequest, ModelCorrupt
from appliance.inference.encoder import Encoder
from appliance.inference.protocols import Embeddings
from appliance.inference.tokens import CHARACTERS_PER_TOKEN, cut
from appliance.packs.specs import EmbedderSpec

_BATCH_TEXTS = 32
_BATCH_TOKENS = 4096  # padded, so that a batch's memory is bounded whatever the texts


class OnnxEmbedder:
    """An `Embedder`, verified and loaded at first need. Threads may use one object at the same time."""

    def __init__(self, spec: EmbedderSpec, settings: ModelSettings) -> None:
        self._spec = spec
        self._encoder = Encoder(spec, settings)

    def load(self) -> None:
        """Verify and load it now; raises as `Encoder.load` does, and so do the other calls if it was not loaded."""
        self._encoder.load()

    @property
    def dim(self) -> int:
        return self._spec.dim

    @property
    def max_tokens(self) -> int:
        return self._spec.max_tokens

    @property
    def provider(self) -> str:
        """The execution provider that runs the graph."""
        return self._encoder.model.provider

    @property
    def fingerprint(self) -> str:
        spec = self._spec
        rules = (spec.sha256, spec.dim, spec.max_tokens, spec.passage_prefix, spec.pooled, spec.pooling)
        return hashlib.sha256(repr(rules).encode()).hexdigest()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(row.ids) for row in self._encoder.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def texts_of(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts that rows of token ids stand for.

        Raises:
            BadRequest: the vocabulary has no such id.
        """
        tokenizer = self._encoder.tokenizer
        most = tokenizer.get_vocab_size() - 1
        over = next((i for row in rows for i in row if i > most), None)
        if over is not None:
            raise BadRequest(
                f"The embedder has no token {over}; its ids go to {most}.",
                remedy="Send texts: ids of another model's tokenizer mean something else here.",
                param="input",
            )
        return [tokenizer.decode(list(row), skip_special_tokens=True) for row in rows]

    def embed_queries(self, texts: Sequence[str]) -> Embeddings:
        return self._embed(texts, self._spec.query_prefix)

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        return self._embed(texts, self._spec.passage_prefix)

    def _embed(self, texts: Sequence[str], prefix: str) -> Embeddings:
        if any(not text.strip() for text in texts):
            raise BadRequest("An empty text cannot be embedded.")
        longest = self._spec.max_tokens * CHARACTERS_PER_TOKEN
        rows = self._encoder.tokenizer.encode_batch([prefix + text[:longest] for text in texts])
        ids = [cut(row.ids, self._spec.max_tokens) for row in rows]
        vectors = np.empty((len(texts), self._spec.dim), np.float32)
        for places in batches([len(row) for row in ids]):
            batch = [ids[place] for place in places]
            output, mask = self._encoder.model.run(batch, [[0] * len(row) for row in batch], self._spec.pad_id)
            vectors[places] = self._pool(output, mask.astype(np.float32))
        return vectors

    def _pool(self, output: Embeddings, mask: Embeddings) -> Embeddings:
        if not self._spec.pooled:
            if self._spec.pooling == "cls":
                output = output[:, 0]
            else:
                output = (output * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        norms = np.linalg.norm(output, axis=1, keepdims=True)
        if output.shape[1:] != (self._spec.dim,) or not np.isfinite(norms).all() or not norms.all():
            raise ModelCorrupt(
                f"The embedder {self._spec.name} did not give vectors of {self._spec.dim} numbers.",
                remedy="`appliance models verify` says which file is at fault.",
            )
        return np.asarray(output / norms, np.float32)


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of texts in batches: sorted by length, each batch bounded in texts and in padded tokens."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        if batch and (len(batch) == _BATCH_TEXTS or lengths[place] * (len(batch) + 1) > _BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
