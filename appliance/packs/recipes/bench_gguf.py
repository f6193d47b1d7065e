"""Owns the synthetic benchmark model: random Q8_0 weights in the shape of a real model, to measure speed with.

Must not know packs. What the model writes means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from appliance.errors import ModelCorrupt
from appliance.packs.recipes import gguf
from appliance.packs.recipes.gguf import F32, FLOAT32, INT32, Q8_0, STRING, UINT32, TensorInfo, Value

SEED = 20
BLOCK = 32
PIECE_BLOCKS = 1 << 17  # 4.3 MiB of weights at a time
UNUSED_TOKEN = 5  # GGUF's token type
MOSTLY_Q8_0 = 7  # GGUF's file type
LEVEL_DEVIATION = 73.3  # standard deviation of an integer drawn evenly from -127..127


class BenchShape(msgspec.Struct, frozen=True):
    """The sizes of a Llama-like model; a vocabulary smaller than the tokenizer's is raised to that."""

    name: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    rope_base: float


LLAMA_3B = BenchShape("bench-3b", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000.0)


def bench_gguf(tokenizer_from: Path, shape: BenchShape) -> Iterator[bytes]:
    """The pieces of a GGUF file that llama.cpp loads, in order; a few MiB in memory at a time.

    The same bytes on every machine: the numbers are PCG64's raw output.

    Args:
        tokenizer_from: a GGUF file whose tokenizer and chat template are taken over; unused tokens fill the vocabulary.
        shape: sizes.

    Raises:
        ModelCorrupt: `tokenizer_from` is no GGUF file or has no tokenizer.
    """
    tokenizer = {key: value for key, value in gguf.read_values(tokenizer_from).items() if key.startswith("tokenizer.")}
    if "tokenizer.ggml.tokens" not in tokenizer or "tokenizer.ggml.token_type" not in tokenizer:
        raise ModelCorrupt(f"{tokenizer_from.name} holds no tokenizer.")
    tokens = tokenizer["tokenizer.ggml.tokens"].content
    kinds = tokenizer["tokenizer.ggml.token_type"].content
    assert isinstance(tokens, list) and isinstance(kinds, list)  # noqa: S101
    used = len(tokens)
    vocabulary = max(shape.vocabulary, used)
    tokenizer["tokenizer.ggml.tokens"] = Value(STRING, [*tokens, *(f"<|unused_{i}|>" for i in range(used, vocabulary))])
    tokenizer["tokenizer.ggml.token_type"] = Value(INT32, [*kinds, *[UNUSED_TOKEN] * (vocabulary - used)])
    tensors = _tensors(shape, vocabulary)
    yield gguf.head({**_values(shape, vocabulary), **tokenizer}, tensors)
    random = np.random.PCG64(SEED)
    for tensor in tensors:
        if tensor.kind == F32:
            yield np.ones(tensor.shape, dtype="<f4").tobytes()
        else:
            # Unused tokens get rows of zeros, so that the model writes tokens that can be read.
            rows = used if tensor.name == "token_embd.weight" else tensor.shape[1]
            yield from _random_rows(random, tensor.shape[0], rows)
            yield from _zero_blocks((tensor.shape[1] - rows) * tensor.shape[0] // BLOCK)
        yield gguf.padding(tensor.size_bytes)


def _random_rows(random: np.random.PCG64, columns: int, rows: int) -> Iterator[bytes]:
    # Weights of variance 1/columns keep activations of size 1 through any number of layers.
    scale = np.float16(1 / (LEVEL_DEVIATION * columns**0.5))
    left = rows * columns // BLOCK
    while left:
        count = min(left, PIECE_BLOCKS)
        levels = random.random_raw(count * BLOCK // 8).astype("<u8").view(np.int8)
        blocks = np.empty(count, dtype=[("scale", "<f2"), ("levels", "i1", BLOCK)])
        blocks["scale"] = scale
        blocks["levels"] = np.maximum(levels, -127).reshape(count, BLOCK)
        yield blocks.tobytes()
        left -= count


def _zero_blocks(left: int) -> Iterator[bytes]:
    while left:
        count = min(left, PIECE_BLOCKS)
        yield bytes(34 * count)
        left -= count


def _tensors(shape: BenchShape, vocabulary: int) -> list[TensorInfo]:
    hidden, wide = shape.hidden, shape.heads * shape.head_size
    narrow = shape.kv_heads * shape.head_size
    found = [TensorInfo("token_embd.weight", (hidden, vocabulary), Q8_0)]
    for layer in range(shape.layers):
        found += [
            TensorInfo(f"blk.{layer}.attn_norm.weight", (hidden,), F32),
            TensorInfo(f"blk.{layer}.attn_q.weight", (hidden, wide), Q8_0),
            TensorInfo(f"blk.{layer}.attn_k.weight", (hidden, narrow), Q8_0),
            TensorInfo(f"blk.{layer}.attn_v.weight", (hidden, narrow), Q8_0),
            TensorInfo(f"blk.{layer}.attn_output.weight", (wide, hidden), Q8_0),
            TensorInfo(f"blk.{layer}.ffn_norm.weight", (hidden,), F32),
            TensorInfo(f"blk.{layer}.ffn_gate.weight", (hidden, shape.feed_forward), Q8_0),
            TensorInfo(f"blk.{layer}.ffn_up.weight", (hidden, shape.feed_forward), Q8_0),
            TensorInfo(f"blk.{layer}.ffn_down.weight", (shape.feed_forward, hidden), Q8_0),
        ]
    return [*found, TensorInfo("output_norm.weight", (hidden,), F32)]


def _values(shape: BenchShape, vocabulary: int) -> dict[str, Value]:
    whole = {
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.feed_forward,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_size,
        "llama.attention.value_length": shape.head_size,
        "llama.rope.dimension_count": shape.head_size,
        "llama.vocab_size": vocabulary,
        "general.file_type": MOSTLY_Q8_0,
    }
    return {
        "general.architecture": Value(STRING, "llama"),
        "general.name": Value(STRING, f"{shape.name} (random weights)"),
        **{key: Value(UINT32, number) for key, number in whole.items()},
        "llama.attention.layer_norm_rms_epsilon": Value(FLOAT32, 1e-5),
        "llama.rope.freq_base": Value(FLOAT32, shape.rope_base),
    }
