"""Owns what an embedder and a cross-encoder have in common: a tokenizer and a graph, verified and loaded once.

Must not know what is encoded, nor what for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.config import ModelSettings
from appliance.inference.once import Once
from appliance.inference.onnx import OnnxModel
from appliance.inference.tokens import load_tokenizer
from appliance.packs.specs import EmbedderSpec, RerankerSpec

if TYPE_CHECKING:
    import tokenizers


class Encoder:
    """Both parts of a model, each loaded at first need; threads may ask at the same time."""

    def __init__(
        self, spec: EmbedderSpec | RerankerSpec, settings: ModelSettings, *, side_by_side: bool = False
    ) -> None:
        """`side_by_side`: see `OnnxModel`."""
        self._tokenizer = Once(lambda: load_tokenizer(spec.tokenizer_path, spec.tokenizer_sha256))
        self._model = Once(lambda: OnnxModel(spec.path, spec.sha256, settings, side_by_side=side_by_side))

    def load(self) -> None:
        """Verify and load both now.

        Raises:
            ModelMissing, ModelCorrupt, BadSetting: one cannot be; so do the properties, if it was not loaded before.
        """
        self._tokenizer.get()
        self._model.get()

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer, truncation and padding off."""
        return self._tokenizer.get()

    @property
    def model(self) -> OnnxModel:
        """The graph."""
        return self._model.get()
