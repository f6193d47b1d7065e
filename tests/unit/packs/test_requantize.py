"""A model's 4-bit blocks come out as 8-bit ones that say the same, and the rest of the file as it was."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from appliance.errors import ModelCorrupt
from appliance.packs.recipes import gguf
from appliance.packs.recipes.gguf import F32, Q4_1, Q8_0, STRING, UINT32, TensorInfo, Value
from appliance.packs.recipes.requantize import q8_0_gguf, quantize_q8_0

ROWS = 3
BLOCKS = np.dtype([("scale", "<f2"), ("least", "<f2"), ("nibbles", "u1", 16)])


def q4_1(seed: int) -> tuple[bytes, npt.NDArray[np.float32]]:
    """Random blocks and what they mean, computed one number at a time."""
    random = np.random.default_rng(seed)
    blocks = np.zeros(ROWS * 2, BLOCKS)
    blocks["scale"] = random.uniform(0.001, 0.1, len(blocks))
    blocks["least"] = random.uniform(-1, 0, len(blocks))
    blocks["nibbles"] = random.integers(0, 256, (len(blocks), 16))
    meant = np.empty((len(blocks), 32), np.float32)
    for row, block in enumerate(blocks):
        for place in range(32):
            nibble = block["nibbles"][place % 16]
            step = nibble >> 4 if place >= 16 else nibble & 15
            meant[row, place] = float(block["scale"]) * int(step) + float(block["least"])
    return blocks.tobytes(), meant


def dequantized(data: bytes) -> npt.NDArray[np.float32]:
    blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("levels", "i1", 32)]))
    return blocks["scale"].astype(np.float32)[:, None] * blocks["levels"].astype(np.float32)


def write_model(path: Path, kind: int = Q4_1) -> npt.NDArray[np.float32]:
    tensors = [TensorInfo("norm", (64,), F32), TensorInfo("w", (64, ROWS), kind), TensorInfo("e", (32, 1), Q8_0)]
    values = {"general.name": Value(STRING, "泵"), "general.file_type": Value(UINT32, 3)}
    data, meant = q4_1(1)
    parts = [np.arange(64, dtype="<f4").tobytes(), data, b"\x01" * 34]
    path.write_bytes(gguf.head(values, tensors) + b"".join(part + gguf.padding(len(part)) for part in parts))
    return meant


def test_blocks_mean_the_same_and_the_rest_is_untouched(tmp_path: Path) -> None:
    meant = write_model(tmp_path / "in.gguf")
    (tmp_path / "out.gguf").write_bytes(b"".join(q8_0_gguf(tmp_path / "in.gguf")))
    values, tensors, data = gguf.read_head(tmp_path / "out.gguf")
    assert values == {"general.name": Value(STRING, "泵"), "general.file_type": Value(UINT32, 7)}
    assert [(tensor.name, tensor.kind) for tensor, _ in tensors] == [("norm", F32), ("w", Q8_0), ("e", Q8_0)]
    raw = (tmp_path / "out.gguf").read_bytes()[data:]
    found = [raw[offset : offset + tensor.size_bytes] for tensor, offset in tensors]
    assert found[0] == np.arange(64, dtype="<f4").tobytes() and found[2] == b"\x01" * 34
    assert len(raw) == tensors[2][1] + 34 + len(gguf.padding(34))
    bound = np.abs(meant).max(axis=1, keepdims=True) / 127 * 0.55  # half a level, and the scale's own rounding
    assert (np.abs(dequantized(found[1]) - meant) <= bound).all()


@given(arrays(np.float32, (2, 32), elements=st.floats(-1000, 1000, width=32)))
def test_a_block_is_within_half_a_level(weights: npt.NDArray[np.float32]) -> None:
    largest = np.abs(weights).max(axis=1, keepdims=True)
    assert (np.abs(dequantized(quantize_q8_0(weights)) - weights) <= largest / 127 * 0.57 + 1e-5).all()


def test_what_it_cannot_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "in.gguf"
    write_model(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelCorrupt, match="ends within"):
        list(q8_0_gguf(path))
    path.write_bytes(whole[:40])
    with pytest.raises(ModelCorrupt, match="not a whole GGUF"):
        list(q8_0_gguf(path))
    head = gguf.head({}, [TensorInfo("w", (32,), Q8_0)]).replace(
        struct.pack("<QI", 32, Q8_0), struct.pack("<QI", 32, 1)
    )
    path.write_bytes(head + bytes(64))
    with pytest.raises(ModelCorrupt, match=r"types \[1\]"):
        list(q8_0_gguf(path))
