"""Owns rewriting a GGUF model from 4-bit blocks with an offset (Q4_1) to 8-bit ones (Q8_0).

Must not know packs or which model it is. Q4_1 has no fast way through llama.cpp on processors without a GPU; Q8_0
has, and reads prompts in less than half the time (ARCHITECTURE has the figures). Nothing is gained in quality, and
next to nothing lost: 255 levels span what 16 did.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from appliance.errors import ModelCorrupt
from appliance.packs.recipes import gguf
from appliance.packs.recipes.gguf import F32, Q4_1, Q8_0, UINT32, TensorInfo, Value

BLOCK = 32
MOSTLY_Q8_0 = 7  # GGUF's file type
_Q4_1 = np.dtype([("scale", "<f2"), ("least", "<f2"), ("nibbles", "u1", BLOCK // 2)])
_Q8_0 = np.dtype([("scale", "<f2"), ("levels", "i1", BLOCK)])


def q8_0_gguf(source: Path) -> Iterator[bytes]:
    """The pieces of the file with every Q4_1 tensor as Q8_0; one tensor in memory at a time.

    The same bytes on every machine: each operation is a single one of IEEE 754 float32.

    Raises:
        ModelCorrupt: `source` is no whole GGUF file, or has tensors of other types than F32, Q4_1 and Q8_0.
    """
    values, tensors, data = gguf.read_head(source)
    other = {tensor.kind for tensor, _ in tensors} - {F32, Q4_1, Q8_0}
    if other:
        raise ModelCorrupt(f"{source.name} has tensors of types {sorted(other)}, which this recipe does not read.")
    written = [TensorInfo(t.name, t.shape, Q8_0 if t.kind == Q4_1 else t.kind) for t, _ in tensors]
    yield gguf.head({**values, "general.file_type": Value(UINT32, MOSTLY_Q8_0)}, written)
    with source.open("rb") as file:
        for (tensor, offset), target in zip(tensors, written, strict=True):
            file.seek(data + offset)
            raw = file.read(tensor.size_bytes)
            if len(raw) != tensor.size_bytes:
                raise ModelCorrupt(f"{source.name} ends within {tensor.name}.")
            yield _requantized(raw) if tensor.kind == Q4_1 else raw
            yield gguf.padding(target.size_bytes)


def _requantized(raw: bytes) -> bytes:
    blocks = np.frombuffer(raw, _Q4_1)
    low, high = blocks["nibbles"] & 15, blocks["nibbles"] >> 4
    steps = np.concatenate([low, high], axis=1).astype(np.float32)
    weights = steps * blocks["scale"].astype(np.float32)[:, None]
    weights += blocks["least"].astype(np.float32)[:, None]
    return quantize_q8_0(weights)


def quantize_q8_0(weights: npt.NDArray[np.float32]) -> bytes:
    """Blocks of 32 float32 `(blocks, 32)` as Q8_0: an f16 scale, and 32 integers -127..127 (ggml's rule)."""
    scale = np.abs(weights).max(axis=1) / np.float32(127)
    # A scale that has no inverse is 0 as an f16 anyway.
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > np.finfo(np.float32).tiny)
    written = np.empty(len(weights), _Q8_0)
    written["scale"] = scale
    written["levels"] = np.rint(weights * inverse[:, None])
    return written.tobytes()
