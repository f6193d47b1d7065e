"""GGUF heads read back, and the synthetic model is the same bytes every time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ModelCorrupt
from appliance.packs.recipes import gguf
from appliance.packs.recipes.bench_gguf import LLAMA_3B, bench_gguf
from appliance.packs.recipes.gguf import TensorInfo, Value

TINY = msgspec.structs.replace(
    LLAMA_3B, layers=2, hidden=64, feed_forward=96, heads=2, kv_heads=1, head_size=32, vocabulary=300
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.one_of(
    st.builds(Value, st.just(gguf.STRING), texts),
    st.builds(Value, st.just(gguf.UINT32), st.integers(0, 2**32 - 1)),
    st.builds(Value, st.just(gguf.FLOAT32), st.floats(width=32, allow_nan=False)),
    st.builds(Value, st.just(7), st.booleans()),
    st.builds(Value, st.just(gguf.STRING), st.lists(texts, max_size=5)),
    st.builds(Value, st.just(gguf.INT32), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)),
)


@given(st.dictionaries(texts, values, max_size=6))
def test_values_read_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, written: dict[str, Value]
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "head"
    head = gguf.head(written, [TensorInfo("t", (32, 3), gguf.Q8_0)])
    path.write_bytes(head)
    assert len(head) % gguf.ALIGNMENT == 0
    assert gguf.read_values(path) == written


@pytest.mark.parametrize(
    "content", [b"", b"GGU", b"XXXX" + bytes(40), b"GGUF" + bytes(40), b"GGUF\3\0\0\0" + b"\1" * 40]
)
def test_what_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ModelCorrupt, match="model is not a whole GGUF file"):
        gguf.read_values(tmp_path / "model")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A GGUF file of nothing but a tokenizer."""
    values = {
        "general.name": Value(gguf.STRING, "other"),
        "tokenizer.ggml.model": Value(gguf.STRING, "gpt2"),
        "tokenizer.ggml.tokens": Value(gguf.STRING, [f"t{i}" for i in range(200)]),
        "tokenizer.ggml.token_type": Value(gguf.INT32, [1] * 200),
    }
    (tmp_path / "tokenizer.gguf").write_bytes(gguf.head(values, []))
    return tmp_path / "tokenizer.gguf"


def test_the_synthetic_model_is_whole_and_the_same_every_time(tokenizer: Path, tmp_path: Path) -> None:
    pieces = list(bench_gguf(tokenizer, TINY))
    model = b"".join(pieces)
    assert hashlib.sha256(model).digest() == hashlib.sha256(b"".join(bench_gguf(tokenizer, TINY))).digest()
    (tmp_path / "model").write_bytes(model)
    values = gguf.read_values(tmp_path / "model")
    tokens = values["tokenizer.ggml.tokens"].content
    assert isinstance(tokens, list) and len(tokens) == 300 and tokens[0] == "t0" and tokens[200] == "<|unused_200|>"
    assert values["general.name"].content == "bench-3b (random weights)"
    assert values["tokenizer.ggml.model"].content == "gpt2"
    per_layer = 64 * 64 * 2 + 64 * 32 * 2 + 64 * 96 * 3
    weights = (300 * 64 + 2 * per_layer) // 32 * 34 + 5 * 64 * 4
    assert len(model) == len(pieces[0]) + weights + len(gguf.padding(300 * 64 // 32 * 34))


def test_memory_stays_bounded_whatever_the_size(tokenizer: Path) -> None:
    big = msgspec.structs.replace(TINY, layers=1, hidden=4096, vocabulary=20_000)
    assert max(map(len, bench_gguf(tokenizer, big))) < 5 << 20


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(gguf.head({}, []))
    with pytest.raises(ModelCorrupt, match="model holds no tokenizer"):
        list(bench_gguf(tmp_path / "model", TINY))
