"""Which execution provider is chosen, and what a file that is no model gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.config import ModelSettings
from appliance.errors import BadSetting, ModelCorrupt, ModelMissing
from appliance.inference.embedder import OnnxEmbedder
from appliance.inference.onnx import CPU, CUDA, TENSORRT, OnnxModel, choose_providers
from appliance.inference.tokens import load_tokenizer
from tests.unit.inference.tiny import embedder_spec, sum_of


@pytest.mark.parametrize(
    ("device", "available", "expected"),
    [
        ("auto", [CPU], (CPU,)),
        ("auto", [CUDA, CPU], (CUDA, CPU)),
        ("auto", [CPU, CUDA, TENSORRT], (TENSORRT, CUDA, CPU)),
        ("cpu", [TENSORRT, CUDA, CPU], (CPU,)),
        ("gpu", [CUDA, CPU], (CUDA,)),
        ("gpu", [TENSORRT, CUDA, CPU], (TENSORRT, CUDA)),
        ("auto", ["AzureExecutionProvider", CPU], (CPU,)),
    ],
)
def test_providers(device: str, available: list[str], expected: tuple[str, ...]) -> None:
    assert choose_providers(device, available) == expected


@pytest.mark.parametrize(("device", "word"), [("gpu", "has no CUDA"), ("tpu", "'tpu'")])
def test_a_device_that_cannot_be_had_is_a_clear_error(device: str, word: str) -> None:
    with pytest.raises(BadSetting, match=word) as caught:
        choose_providers(device, [CPU])
    assert caught.value.param == "models.device"
    assert caught.value.remedy


def test_a_provider_whose_libraries_are_not_there_is_named_and_the_next_one_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This build has neither of the two: what they then do is what they do where a library is missing."""
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    spec = embedder_spec(tmp_path)
    model = OnnxModel(spec.path, spec.sha256, ModelSettings(onnx_threads=1))
    assert model.provider == CPU
    assert model.run([[6]], [[0]], pad_id=1)[0].shape == (1, 1, 4)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [TENSORRT in told[0], CUDA in told[0], CUDA in told[1], CPU in told[1]] == [True] * 4
    with pytest.raises(ModelCorrupt, match=CUDA):
        OnnxModel(spec.path, spec.sha256, ModelSettings(device="gpu"))


def test_runs_side_by_side_use_a_thread_each(tmp_path: Path) -> None:
    spec = embedder_spec(tmp_path)
    assert OnnxModel(spec.path, spec.sha256, ModelSettings(onnx_threads=3), side_by_side=True).runs_at_once == 3
    assert OnnxModel(spec.path, spec.sha256, ModelSettings(onnx_threads=3)).runs_at_once == 1


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelCorrupt, match=r"cannot load the model .*model\.onnx"):
        OnnxModel(tmp_path / "model.onnx", sum_of(tmp_path / "model.onnx"), ModelSettings())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path / "tokenizer.json", sum_of(tmp_path / "tokenizer.json"))


def test_a_file_that_is_not_the_manifests_is_never_loaded(tmp_path: Path) -> None:
    spec = embedder_spec(tmp_path)
    with pytest.raises(ModelCorrupt, match=r"e\.onnx is damaged.*`appliance models pull`"):
        OnnxModel(spec.path, "0" * 64, ModelSettings())
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.json is damaged"):
        load_tokenizer(spec.tokenizer_path, "0" * 64)
    with pytest.raises(ModelMissing, match=r"absent\.json"):
        load_tokenizer(tmp_path / "absent.json", "0" * 64)
    embedder = OnnxEmbedder(spec, ModelSettings(onnx_threads=1))
    good = spec.path.read_bytes()
    spec.path.write_bytes(good[:-1] + b"X")
    for _ in range(2):
        with pytest.raises(ModelCorrupt, match="damaged"):
            embedder.embed_queries(["oil"])
    spec.path.write_bytes(good)  # mended: the next use takes it, without a restart
    assert embedder.embed_queries(["oil"]).shape == (1, 4)


def test_a_batch_is_padded_and_masked(tmp_path: Path) -> None:
    spec = embedder_spec(tmp_path)
    model = OnnxModel(spec.path, spec.sha256, ModelSettings(onnx_threads=1))
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
