"""Owns a small writer of ONNX graphs whose bytes depend on nothing but what is put in.

Must not know any particular model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from appliance.packs.recipes.e5_weights import BLOCK, Float32, Quantized

OPSET = 17
CONTRIB = "com.microsoft"
IR_VERSION = 8
# The instruction that processors without VNNI multiply with adds two products in 16 bits. Levels of weights up to 80
# and of activations up to 200 cannot exceed them; full ones of 127 and 255 would.
WEIGHT_LEVEL = 80
ACTIVATION_LEVEL = 100  # on each side of zero
GELU_LEAST = -0.17


class GraphWriter:
    """Collects nodes and initializers in the order of the calls; names come from the caller or that order."""

    def __init__(self) -> None:
        from onnx import NodeProto, TensorProto

        self._nodes: list[NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._names: set[str] = set()

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        """Put an initializer in, once per name; returns the name."""
        from onnx import numpy_helper

        if name not in self._names:
            self._names.add(name)
            self._initializers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def integers(self, *values: int) -> str:
        """An int64 vector constant."""
        return self.constant("int_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def number(self, value: float) -> str:
        """A float32 scalar constant."""
        return self.constant(f"float_{value!r}", np.array(value, dtype=np.float32))

    def node(self, kind: str, *inputs: str, domain: str = "", output: str = "", **attributes: Any) -> str:
        """Add a node of one output; returns that output's name."""
        return self.nodes(kind, *inputs, domain=domain, outputs=[output] if output else 1, **attributes)[0]

    def nodes(
        self, kind: str, *inputs: str, domain: str = "", outputs: int | Sequence[str] = 1, **attributes: Any
    ) -> list[str]:
        """Add a node; `outputs` is their number or their names."""
        from onnx import helper

        stem = f"{kind}_{len(self._nodes)}"
        names = [f"{stem}.{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=stem, domain=domain, **attributes))
        return names

    def gather_blocks(self, name: str, table: Quantized, ids: str) -> str:
        """Rows of a 4-bit table, as float32 `(…, columns)`."""
        packed = table.levels[:, 0::2] | (table.levels[:, 1::2] << 4)
        rows = self.node(
            "GatherBlockQuantized",
            self.constant(f"{name}.levels", packed),
            ids,
            self.constant(f"{name}.scales", table.scales),
            domain=CONTRIB,
            gather_axis=0,
            quantize_axis=1,
            block_size=BLOCK,
            bits=4,
        )
        return self.node("Cast", rows, to=1)

    def linear_blocks(self, name: str, weights: Quantized, x: str) -> str:
        """`x @ weights.T` with the 4-bit blocks held as they are, `(…, columns)` → `(…, rows)`."""
        rows, columns = weights.levels.shape
        packed = (weights.levels[:, 0::2] | (weights.levels[:, 1::2] << 4)).reshape(rows, columns // BLOCK, BLOCK // 2)
        return self.node(
            "MatMulNBits",
            x,
            self.constant(f"{name}.levels", packed),
            self.constant(f"{name}.scales", weights.scales.astype(np.float32)),
            domain=CONTRIB,
            K=columns,
            N=rows,
            bits=4,
            block_size=BLOCK,
            accuracy_level=4,
        )

    def linear_int8(self, name: str, weights: Float32, x: str, *, after_gelu: bool = False) -> str:
        """`x @ weights.T` in 8-bit integers: activations scaled per token, weights per row.

        A token's scale is that of its own values, so that what it becomes depends on no other token. `after_gelu`
        says that `x` has no values below GELU's least, which saves most of the levels below zero.
        """
        scales = np.maximum(np.abs(weights).max(axis=1), np.float32(1e-12)) / np.float32(WEIGHT_LEVEL)
        levels = np.rint(weights / scales[:, None]).astype(np.int8)
        if after_gelu:
            zero, peak = 20, self.node("ReduceMax", x, axes=[-1], keepdims=1)
            span = 2 * ACTIVATION_LEVEL - zero
            floor = -GELU_LEAST * span / zero
        else:
            zero, peak = ACTIVATION_LEVEL, self.node("ReduceMax", self.node("Abs", x), axes=[-1], keepdims=1)
            span, floor = ACTIVATION_LEVEL, 1e-6
        peak = self.node("Max", peak, self.number(floor))
        step = self.number(1.0 / span)
        zero_level = self.constant(f"level_{zero}", np.array(zero, dtype=np.uint8))
        product = self.node(
            "MatMulIntegerToFloat",
            self.node("QuantizeLinear", self.node("Div", x, peak), step, zero_level),
            self.constant(f"{name}.levels", levels.T),
            step,
            self.constant(f"{name}.scales", scales),
            zero_level,
            self.constant(f"{name}.zeros", np.zeros(len(levels), dtype=np.int8)),
            domain=CONTRIB,
        )
        return self.node("Mul", product, peak)

    def linear_float32(self, name: str, weights: Float32, x: str) -> str:
        """`x @ weights.T` in float32."""
        return self.node("MatMul", x, self.constant(name, weights.T))

    def linear_half(self, name: str, weights: npt.NDArray[np.float16], x: str) -> str:
        """`x @ weights.T` with float16 weights that the session widens once when it loads."""
        widened = self.node("Cast", self.constant(name, weights.T), to=1)
        return self.node("MatMul", x, widened)

    def serialize(self, name: str, inputs: Sequence[str], output: str, width: int) -> bytes:
        """The model's bytes: int64 `(batch, tokens)` inputs, one float32 `(batch, width)` output."""
        from onnx import TensorProto, helper

        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(i, TensorProto.INT64, ["batch", "tokens"]) for i in inputs],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", width])],
            self._initializers,
        )
        model = helper.make_model(
            graph,
            producer_name="appliance",
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)],
            ir_version=IR_VERSION,
        )
        return bytes(model.SerializeToString(deterministic=True))
