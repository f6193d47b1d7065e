"""Owns the speed of one matrix product in the forms that layers may have: what integers can gain on a processor.

Must not know the model, but for the sizes of its largest layer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from appliance.packs.recipes.e5_weights import BLOCK, Quantized
from appliance.packs.recipes.graph import GraphWriter

_TOKENS, _COLUMNS, _ROWS = 222, 384, 1536
_REPEATS = 8
_EXTENSIONS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8")


def sides() -> dict[str, Callable[[], float]]:
    """By form, a measurement of it on one thread: billions of multiplications and additions a second."""
    weights = np.random.default_rng(1).standard_normal((_ROWS, _COLUMNS)).astype(np.float32)
    levels = np.random.default_rng(2).integers(0, 16, (_ROWS, _COLUMNS)).astype(np.uint8)
    blocks = Quantized(levels, np.full((_ROWS, _COLUMNS // BLOCK), 0.01, np.float16))
    return {
        "int8": _side(lambda graph, x: graph.linear_int8("m", weights, x)),
        "float32": _side(lambda graph, x: graph.linear_float32("m", weights, x)),
        "4-bit blocks": _side(lambda graph, x: graph.linear_blocks("m", blocks, x)),
    }


def extensions() -> str:
    """Those of the processor that such products could use."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    return ", ".join(f"{name} {'yes' if name in flags else 'no'}" for name in _EXTENSIONS)


def _side(linear: Callable[[GraphWriter, str], str]) -> Callable[[], float]:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    graph = GraphWriter()
    graph.node("Identity", linear(graph, graph.node("Cast", "input_ids", to=1)), output="products")
    model = graph.serialize("product", ("input_ids",), "products", _ROWS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    values = np.random.default_rng(3).integers(-100, 100, (_TOKENS, _COLUMNS))

    def measure() -> float:
        session.run(None, {"input_ids": values})
        began = time.perf_counter()
        for _ in range(_REPEATS):
            session.run(None, {"input_ids": values})
        return _REPEATS * _TOKENS * _COLUMNS * _ROWS / (time.perf_counter() - began) / 1e9

    return measure
