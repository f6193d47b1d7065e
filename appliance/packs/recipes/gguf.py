"""Owns reading the key-value part of a GGUF file and writing a GGUF head (format: ggml's docs/gguf.md, version 3).

Must not know any model.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from appliance.errors import ModelCorrupt

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
F32, Q4_1, Q8_0 = 0, 3, 8  # tensor types
BLOCK_BYTES = {Q4_1: 20, Q8_0: 34}  # of 32 weights
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9  # value types
LONGEST_STRING = 16 << 20  # bytes; more is taken for damage, not allocated
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Scalar = int | float | bool | str


class Value(msgspec.Struct, frozen=True):
    """A typed value; `kind` is GGUF's number of its type, or of its elements' type if `content` is a list."""

    kind: int
    content: Scalar | list[Scalar]


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor as the head lists it; `shape` in GGUF's order: the contiguous dimension first."""

    name: str
    shape: tuple[int, ...]
    kind: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its data."""
        count = 1
        for length in self.shape:
            count *= length
        return count * 4 if self.kind == F32 else count // 32 * BLOCK_BYTES[self.kind]


def padding(position: int) -> bytes:
    """Zeros from `position` to the next place where a tensor may start."""
    return bytes(-position % ALIGNMENT)


def read_values(path: Path) -> dict[str, Value]:
    """The key-value part of a GGUF file.

    Raises:
        ModelCorrupt: it is no GGUF file of version 2 or 3, or ends early.
    """
    with _told(path), path.open("rb") as file:
        return _read_values(file)[0]


def read_head(path: Path) -> tuple[dict[str, Value], list[tuple[TensorInfo, int]], int]:
    """Everything before the data: the values, each tensor with its offset in the data, where the data begins.

    Raises:
        ModelCorrupt: it is no GGUF file of version 2 or 3, or ends early.
    """
    with _told(path), path.open("rb") as file:
        values, count = _read_values(file)
        if values.get("general.alignment", Value(UINT32, ALIGNMENT)).content != ALIGNMENT:
            raise ValueError("another alignment than 32")
        tensors = []
        for _ in range(count):
            name = _string(file)
            (dimensions,) = _take(file, "I")
            shape = _take(file, f"{dimensions}Q")
            kind, offset = _take(file, "IQ")
            tensors.append((TensorInfo(name, shape, kind), offset))
        return values, tensors, file.tell() + len(padding(file.tell()))


def head(values: Mapping[str, Value], tensors: Sequence[TensorInfo]) -> bytes:
    """Everything before the first tensor's data, padded; tensors follow in this order, each padded."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(values))]
    for key, value in values.items():
        parts += [_packed(key), _packed_value(value)]
    offset = 0
    for tensor in tensors:
        parts += [_packed(tensor.name), struct.pack("<I", len(tensor.shape))]
        parts += [struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape, tensor.kind, offset)]
        offset += tensor.size_bytes + len(padding(tensor.size_bytes))
    written = b"".join(parts)
    return written + padding(len(written))


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (struct.error, ValueError, KeyError) as error:
        raise ModelCorrupt(f"{path.name} is not a whole GGUF file: {error}.") from error


def _read_values(file: BinaryIO) -> tuple[dict[str, Value], int]:
    """The values, and how many tensors follow."""
    if file.read(4) != MAGIC:
        raise ValueError("wrong magic")
    version, tensors, count = _take(file, "IQQ")
    if version not in (2, VERSION):
        raise ValueError(f"version {version}")
    return {_string(file): _value(file) for _ in range(count)}, tensors


def _take(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack("<" + layout, file.read(struct.calcsize("<" + layout)))


def _string(file: BinaryIO) -> str:
    (length,) = _take(file, "Q")
    if length > LONGEST_STRING:
        raise ValueError(f"a text of {length} bytes")
    raw = file.read(length)
    if len(raw) != length:
        raise ValueError("it ends early")
    return raw.decode("utf-8")


def _value(file: BinaryIO) -> Value:
    (kind,) = _take(file, "I")
    if kind != ARRAY:
        return Value(kind, _element(file, kind))
    kind, count = _take(file, "IQ")
    return Value(kind, [_element(file, kind) for _ in range(count)])


def _element(file: BinaryIO, kind: int) -> Scalar:
    return _string(file) if kind == STRING else _take(file, SCALARS[kind])[0]


def _packed(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _packed_value(value: Value) -> bytes:
    if isinstance(value.content, list):
        start = struct.pack("<IIQ", ARRAY, value.kind, len(value.content))
        return start + b"".join(_packed_element(value.kind, element) for element in value.content)
    return struct.pack("<I", value.kind) + _packed_element(value.kind, value.content)


def _packed_element(kind: int, element: Scalar) -> bytes:
    return _packed(element) if isinstance(element, str) else struct.pack("<" + SCALARS[kind], element)
