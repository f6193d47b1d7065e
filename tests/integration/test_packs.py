"""The pocket pack as it is really made: the right files, the right vectors, understood by the real runtimes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from appliance.packs import EmbedderSpec, PackStore, ResolvedPack, load_manifest
from appliance.packs.recipes.bench_gguf import LLAMA_3B, bench_gguf
from tests.conftest import shared_models_dir

ENGLISH = [
    "Tighten the four bolts of the pump housing to 25 newton metres in a crosswise sequence.",
    "Replace the oil filter every 500 operating hours or once a year.",
    "Bananas are picked green and ripen on the way to the shop.",
]
CHINESE = [
    "按对角顺序将泵壳的四个螺栓拧紧至25牛·米。",
    "每运行500小时或每年更换一次机油滤清器。",
    "香蕉在青的时候采摘，在运输途中成熟。",
]
QUESTIONS = {
    "What torque do the pump housing bolts need?": 0,
    "How often is the oil filter changed?": 1,
    "泵壳螺栓的拧紧力矩是多少？": 0,
    "机油滤清器多久更换一次？": 1,
}


def embed(spec: EmbedderSpec, texts: list[str]) -> np.ndarray:
    tokenizer = Tokenizer.from_file(str(spec.tokenizer_path))
    tokenizer.enable_truncation(spec.max_tokens)
    tokenizer.enable_padding(pad_id=spec.pad_id)
    found = tokenizer.encode_batch(texts)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(spec.path), options, providers=["CPUExecutionProvider"])
    ids = np.array([encoding.ids for encoding in found], dtype=np.int64)
    mask = np.array([encoding.attention_mask for encoding in found], dtype=np.int64)
    return np.asarray(session.run(None, {"input_ids": ids, "attention_mask": mask})[0])


def test_the_pack_is_whole_and_in_the_declared_languages(pocket: ResolvedPack) -> None:
    assert pocket.generator.languages == ("en",)
    assert pocket.embedder.languages == ("en", "zh")
    assert (pocket.embedder.dim, pocket.embedder.pooled, pocket.embedder.pad_id) == (384, True, 1)
    assert {file.state for file in PackStore(shared_models_dir(), load_manifest()).verify("pocket")} == {"ok"}


def test_a_question_finds_its_passage_within_and_across_the_languages(pocket: ResolvedPack) -> None:
    spec = pocket.embedder
    questions = embed(spec, [spec.query_prefix + question for question in QUESTIONS])
    np.testing.assert_allclose(np.linalg.norm(questions, axis=1), 1, atol=1e-5)
    for passages in (ENGLISH, CHINESE):
        vectors = embed(spec, [spec.passage_prefix + passage for passage in passages])
        assert (questions @ vectors.T).argmax(1).tolist() == list(QUESTIONS.values())


def test_the_tokenizer_loses_nothing_of_either_language(pocket: ResolvedPack) -> None:
    tokenizer = Tokenizer.from_file(str(pocket.embedder.tokenizer_path))
    unknown = tokenizer.token_to_id("<unk>")
    for text in [*ENGLISH, *CHINESE, "HX-200/77-1203, Ø 25 mm ±0.1 µm, Größe naïve, 壹貳參 ＡＢＣ"]:
        assert unknown not in tokenizer.encode(text).ids, text
    assert tokenizer.encode("ＡＢＣ　１２３").ids == tokenizer.encode("ABC 123").ids
    assert tokenizer.encode("query: x").ids[0] == 0 and tokenizer.encode("query: x").ids[-1] == 2


def test_llama_loads_a_synthetic_model_with_the_pocket_tokenizer(pocket: ResolvedPack, tmp_path: Path) -> None:
    import llama_cpp

    shape = msgspec.structs.replace(
        LLAMA_3B, layers=1, hidden=256, feed_forward=512, heads=4, kv_heads=2, head_size=64, vocabulary=50_000
    )
    with (tmp_path / "tiny.gguf").open("wb") as file:
        file.writelines(bench_gguf(pocket.generator.path, shape))
    model = llama_cpp.Llama(str(tmp_path / "tiny.gguf"), n_ctx=128, n_threads=1, verbose=False)
    real = llama_cpp.Llama(str(pocket.generator.path), n_ctx=128, n_threads=1, verbose=False, vocab_only=True)
    try:
        assert model.n_vocab() == 50_000
        prompt = model.tokenize(b"What torque?")
        assert prompt == real.tokenize(b"What torque?")
        first = [token for token, _ in zip(model.generate(prompt, temp=0.0), range(8), strict=False)]
        assert first == [token for token, _ in zip(model.generate(prompt, temp=0.0), range(8), strict=False)]
        assert max(first) < real.n_vocab()  # unused tokens are never written
    finally:
        model.close()
        real.close()


@pytest.mark.slow
def test_the_pull_builds_the_very_files_that_the_manifest_names(pocket: ResolvedPack, tmp_path: Path) -> None:
    """From the registry again, into an empty folder: the sums of what is built are in the manifest."""
    store = PackStore(tmp_path, load_manifest())
    store.pull("pocket", print)
    assert store.resolve("pocket").fingerprint == pocket.fingerprint
