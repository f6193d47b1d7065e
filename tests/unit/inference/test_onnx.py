"""Which execution provider is chosen, and what a file that is no model gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.config import ModelSettings
from appliance.errors import BadSetting, ModelCorrupt, ModelMissing
from appliance.inference.onnx import CPU, CUDA, OnnxModel, choose_provider
from appliance.inference.tokens import load_tokenizer
from tests.unit.inference.tiny import embedder_spec


@pytest.mark.parametrize(
    ("device", "available", "expected"),
    [
        ("auto", [CPU], CPU),
        ("auto", [CUDA, CPU], CUDA),
        ("cpu", [CUDA, CPU], CPU),
        ("gpu", [CUDA, CPU], CUDA),
    ],
)
def test_provider(device: str, available: list[str], expected: str) -> None:
    assert choose_provider(device, available) == expected


@pytest.mark.parametrize(("device", "word"), [("gpu", "has no CUDA"), ("tpu", "'tpu'")])
def test_a_device_that_cannot_be_had_is_a_clear_error(device: str, word: str) -> None:
    with pytest.raises(BadSetting, match=word) as caught:
        choose_provider(device, [CPU])
    assert caught.value.param == "models.device"
    assert caught.value.remedy


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelCorrupt, match=r"model\.onnx"):
        OnnxModel(tmp_path / "model.onnx", ModelSettings())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(ModelMissing, match=r"absent\.json"):
        load_tokenizer(tmp_path / "absent.json")


def test_a_batch_is_padded_and_masked(tmp_path: Path) -> None:
    model = OnnxModel(embedder_spec(tmp_path).path, ModelSettings(onnx_threads=1))
    assert model.provider == CPU
    output, mask = model.run([[6], [6, 7, 8]], [[0], [0, 0, 0]], pad_id=1)
    assert output.shape == (2, 3, 4)
    assert mask.tolist() == [[1, 0, 0], [1, 1, 1]]


def test_importing_inference_and_retrieval_loads_no_runtime() -> None:
    code = (
        "import sys, appliance.inference.embedder, appliance.inference.reranker, appliance.retrieval.search;"
        "print({'onnxruntime', 'tokenizers', 'tantivy', 'hnswlib', 'rjieba'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
