"""Owns the ways to run a reranker that are compared.

Must not know what is measured with them.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from appliance.config import ModelSettings
from appliance.inference.onnx import OnnxModel
from appliance.inference.reranker import OnnxReranker
from appliance.inference.schedule import Limits
from appliance.inference.shared import SharedRuns
from appliance.packs.files import sha256_of
from appliance.packs.specs import RerankerSpec

Row: TypeAlias = tuple[Sequence[int], Sequence[int]]  # token ids and types of a pair


def ours(spec: RerankerSpec, threads: int, model: Path | None = None) -> OnnxReranker:
    """The appliance's reranker; with another form of the model, if one is named."""
    if model is not None:
        spec = msgspec.structs.replace(spec, path=model, sha256=sha256_of(model))
    reranker = OnnxReranker(spec, ModelSettings(device="cpu", onnx_threads=threads))
    reranker.load()
    return reranker


class FlashRank:
    """FlashRank's own ranker over a form of the model: the runtime's settings, all pairs in one run."""

    def __init__(self, model: Path, spec: RerankerSpec) -> None:
        # In a folder of its own that the command puts into the path.
        from flashrank import Ranker, RerankRequest  # type: ignore[import-not-found]
        from flashrank.Config import model_file_map  # type: ignore[import-not-found]

        name = "ms-marco-MiniLM-L-12-v2"  # it takes the names of its own models alone
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / name
            place.mkdir()
            (place / model_file_map[name]).symlink_to(model)
            (place / "tokenizer.json").symlink_to(spec.tokenizer_path)
            for file, content in (
                ("config.json", {"pad_token_id": spec.pad_id}),
                ("tokenizer_config.json", {"model_max_length": spec.max_tokens, "pad_token": "<pad>"}),
                ("special_tokens_map.json", {}),
            ):
                (place / file).write_bytes(msgspec.json.encode(content))
            self._ranker = Ranker(name, cache_dir=folder, max_length=spec.max_tokens, log_level="ERROR")
        self._request = RerankRequest

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """The probability of each pair."""
        asked = [{"place": place, "text": passage} for place, passage in enumerate(passages)]
        found = self._ranker.rerank(self._request(query=query, passages=asked))
        return [float(one["score"]) for one in sorted(found, key=lambda one: int(one["place"]))]


class Batched:
    """Tokenized pairs through shared batches of other limits than the appliance's."""

    def __init__(self, spec: RerankerSpec, limits: Limits, threads: int, *, side_by_side: bool) -> None:
        settings = ModelSettings(device="cpu", onnx_threads=threads)
        self._model = OnnxModel(spec.path, spec.sha256, settings, side_by_side=side_by_side)
        self._pad_id = spec.pad_id
        self._runs = SharedRuns(self._run, limits, threads=self._model.runs_at_once, name="bench")
        self._free = threading.Semaphore(self._model.runs_at_once)

    def score(self, rows: Sequence[Row]) -> Sequence[float | None]:
        """The logit of each pair."""
        return self._runs.ask(rows, [len(ids) for ids, _ in rows])

    def alone(self, rows: Sequence[Row]) -> Sequence[float]:
        """The same in one batch that is shared with nobody; as many at the same time as threads are used."""
        with self._free:
            return self._run(rows)

    def close(self) -> None:
        """End its threads."""
        self._runs.close()

    def _run(self, rows: Sequence[Row]) -> list[float]:
        logits, _ = self._model.run([ids for ids, _ in rows], [types for _, types in rows], self._pad_id)
        return [float(logit) for logit in logits.reshape(-1)]
