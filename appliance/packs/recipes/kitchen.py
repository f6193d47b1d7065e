"""Owns which recipe makes which file.

Must not know where inputs come from nor how outputs are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from appliance.errors import ModelCorrupt, ModelMissing
from appliance.packs.manifest import BuildSource
from appliance.packs.recipes.e5_weights import E5Weights, read_e5
from appliance.packs.registry import MissingExtra


class Kitchen:
    """Builds files; keeps the last model that it read, since a pack builds several files from one."""

    def __init__(self, manifest_folder: Path) -> None:
        """`manifest_folder` is where the trained deltas lie."""
        self._folder = manifest_folder
        self._read: tuple[Path, E5Weights] | None = None

    def build(self, source: BuildSource, ingredient: Path) -> Iterable[bytes]:
        """The pieces of the built file, in order; the same bytes for the same ingredient everywhere.

        Raises:
            ModelCorrupt: the ingredient or the delta is damaged.
            ModelMissing: the delta did not come with the program.
            MissingExtra: onnx, safetensors or sentencepiece is not installed.
        """
        if source.recipe == "bench-gguf":
            from appliance.packs.recipes.bench_gguf import LLAMA_3B, bench_gguf

            return bench_gguf(ingredient, LLAMA_3B)
        if source.recipe == "gguf-q8_0":
            from appliance.packs.recipes.requantize import q8_0_gguf

            return q8_0_gguf(ingredient)
        try:
            return [self._build_e5(source, ingredient)]
        except ImportError as error:
            raise MissingExtra(error) from error

    def _build_e5(self, source: BuildSource, ingredient: Path) -> bytes:
        from appliance.packs.recipes import e5_graph, e5_tokenizer

        weights = self._e5(ingredient)
        keep = e5_tokenizer.needed_pieces(weights.pieces)
        match source.recipe:
            case "e5-tokenizer" | "e5-pair-tokenizer":
                return e5_tokenizer.tokenizer_json(weights, keep, pairs=source.recipe == "e5-pair-tokenizer")
            case "e5-embedder":
                return e5_graph.embedder_onnx(weights, keep)
            case _:
                return self._reranker(weights, source)

    def _reranker(self, weights: E5Weights, source: BuildSource) -> bytes:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        from appliance.packs.recipes import e5_graph, e5_tokenizer

        path = self._folder / source.delta
        if not path.is_file():
            raise ModelMissing(f"{path} did not come with the program.", remedy="Install the program again.")
        try:
            return e5_graph.reranker_onnx(weights, e5_tokenizer.needed_pieces(weights.pieces), load_file(path))
        except (SafetensorError, KeyError, ValueError) as error:
            raise ModelCorrupt(f"{path} is damaged: {error}.", remedy="Install the program again.") from error

    def _e5(self, path: Path) -> E5Weights:
        if self._read is None or self._read[0] != path:
            self._read = (path, read_e5(path))
        return self._read[1]
