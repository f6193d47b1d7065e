"""Owns the ONNX graphs of the rebuilt e5: the embedder, and the cross-encoder that shares its lower layers.

Must not know tokenizers or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from appliance.packs.recipes.e5_weights import E5Weights, Float32, Quantized
from appliance.packs.recipes.graph import CONTRIB, GraphWriter

MASKED = -1e4  # added to attention scores of what must not be seen
Half = npt.NDArray[np.float16]
Layers = Literal["int8", "exact", "float32"]  # how the layers' matrices are held and multiplied
SPLIT_LAYERS = 8  # layers of the cross-encoder that see question and passage apart: those of the embedder


def embedder_onnx(weights: E5Weights, keep: npt.NDArray[np.int64]) -> bytes:
    """Token ids `(b, t)` and mask `(b, t)` → `embedding` `(b, hidden)`: mean over the mask, L2 norm 1."""
    build = _Builder(weights, "exact")
    graph = build.graph
    positions = graph.node("Slice", build.place_table(), *build.token_range())
    x = build.embed(weights.matrices["emb.word"].rows(keep), positions)
    padding = graph.node("Cast", "attention_mask", to=6)
    for layer in range(weights.layers):
        x = build.layer(f"l{layer}.", _base_layer(weights, layer), x, padding=padding)
    build.unit(build.masked_sum(x, graph.node("Cast", "attention_mask", to=1)), output="embedding")
    return graph.serialize("e5-embedder", ("input_ids", "attention_mask"), "embedding", weights.hidden)


def reranker_onnx(
    weights: E5Weights, keep: npt.NDArray[np.int64], delta: Mapping[str, Half], layers: Layers = "int8"
) -> bytes:
    """Ids, mask and types `(b, t)` of pairs → `logits` `(b, 1)`.

    Lower layers and embeddings are the embedder's; question (type 0) and passage (type 1) do not see each
    other there and positions start anew with the passage. The upper layers, a learned bias per head for
    looking across, and the head over both means come from `delta`.

    The layers multiply in 8-bit integers, the fastest on a processor, or with their "exact" weights, 4-bit blocks
    and float16, which graphics processors can do too; "float32" has those weights widened, to compare with.
    """
    build = _Builder(weights, layers)
    graph = build.graph
    valid = graph.node("Cast", "attention_mask", to=1)
    side = graph.node("Cast", "token_type_ids", to=1)
    one = graph.number(1.0)
    question = graph.node("Mul", valid, graph.node("Sub", one, side))
    passage = graph.node("Mul", valid, side)
    x = build.embed(weights.matrices["emb.word"].rows(keep), build.pair_positions(question))
    hidden_keys = graph.node("Mul", graph.node("Sub", one, valid), graph.number(MASKED))
    hidden_keys = graph.node("Unsqueeze", hidden_keys, graph.integers(1, 2))  # (b, 1, 1, t)
    across = graph.node(
        "Abs",
        graph.node(
            "Sub",
            graph.node("Unsqueeze", side, graph.integers(1, 3)),
            graph.node("Unsqueeze", side, graph.integers(1, 2)),
        ),
    )  # (b, 1, t, t): 1 where question meets passage
    apart = graph.node("Add", hidden_keys, graph.node("Mul", across, graph.number(MASKED)))
    for layer in range(SPLIT_LAYERS):
        x = build.layer(f"l{layer}.", _base_layer(weights, layer), x, bias=apart)
    for layer in range(SPLIT_LAYERS, weights.layers):
        lean = delta["cross"][layer - SPLIT_LAYERS].astype(np.float32).reshape(1, weights.heads, 1, 1)
        crossing = graph.node("Mul", across, graph.constant(f"cross.{layer}", lean))
        bias = graph.node("Add", hidden_keys, crossing)
        x = build.layer(f"l{layer}.", _delta_layer(delta, layer), x, bias=bias)
    build.pair_head(x, question, passage, delta)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    return graph.serialize("e5-reranker", inputs, "logits", 1)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer layer: matrices `(out, in)`, and vectors by the names that `_Builder.layer` uses."""

    qkv: Quantized | Half
    out: Quantized | Half
    inner: Quantized | Half
    outer: Quantized | Half
    vectors: dict[str, Float32]


def _base_layer(weights: E5Weights, layer: int) -> LayerWeights:
    vectors, matrices, at = weights.vectors, weights.matrices, f"l{layer}."
    parts = [matrices[f"{at}{part}.w"] for part in "qkv"]
    qkv = Quantized(np.concatenate([p.levels for p in parts]), np.concatenate([p.scales for p in parts]))
    biases = {"qkv": np.concatenate([vectors[f"{at}{part}.b"] for part in "qkv"])}
    biases |= {"out": vectors[f"{at}ao.b"], "inner": vectors[f"{at}fi.b"], "outer": vectors[f"{at}fo.b"]}
    norms = {
        f"{name}.{part}": vectors[f"{at}{own}.{letter}"]
        for name, own in (("norm1", "aln"), ("norm2", "oln"))
        for part, letter in (("scale", "w"), ("shift", "b"))
    }
    out, inner, outer = (matrices[f"{at}{part}.w"] for part in ("ao", "fi", "fo"))
    return LayerWeights(qkv, out, inner, outer, biases | norms)


def _delta_layer(delta: Mapping[str, Half], layer: int) -> LayerWeights:
    at = f"layers.{layer}."
    biases = {"qkv": np.concatenate([delta[f"{at}{part}.bias"] for part in "qkv"])}
    biases |= {name: delta[f"{at}{own}.bias"] for name, own in (("out", "o"), ("inner", "f1"), ("outer", "f2"))}
    norms = {
        f"{name}.{part}": delta[f"{at}{own}.{kind}"]
        for name, own in (("norm1", "ln1"), ("norm2", "ln2"))
        for part, kind in (("scale", "weight"), ("shift", "bias"))
    }
    qkv = np.concatenate([delta[f"{at}{part}.weight"] for part in "qkv"])
    out, inner, outer = (delta[f"{at}{part}.weight"] for part in ("o", "f1", "f2"))
    vectors = {name: values.astype(np.float32) for name, values in (biases | norms).items()}
    return LayerWeights(qkv, out, inner, outer, vectors)


class _Builder:
    def __init__(self, weights: E5Weights, layers: Layers) -> None:
        self.graph = GraphWriter()
        self.weights = weights
        self.layers = layers

    def token_range(self) -> tuple[str, str, str]:
        """Start, end and axis of a slice of as many rows as there are tokens."""
        shape = self.graph.node("Shape", "input_ids")
        tokens = self.graph.node("Slice", shape, self.graph.integers(1), self.graph.integers(2))
        return self.graph.integers(0), tokens, self.graph.integers(0)

    def place_table(self) -> str:
        weights = self.weights
        table = weights.vectors["emb.pos"].reshape(weights.positions, weights.hidden)
        # Type 0 everywhere: the model was trained with it alone.
        return self.graph.constant("places", table + weights.vectors["emb.type"][: weights.hidden])

    def pair_positions(self, question: str) -> str:
        """Rows of the place table, counted from 0 in question and passage, `(b, t, hidden)`."""
        graph = self.graph
        asked = graph.node("ReduceSum", question, graph.integers(1), keepdims=1)
        asked = graph.node("Mul", graph.node("Cast", asked, to=7), "token_type_ids")
        count = graph.constant("count", np.arange(self.weights.positions, dtype=np.int64))
        places = graph.node("Sub", graph.node("Slice", count, *self.token_range()), asked)
        low, high = np.array(0, dtype=np.int64), np.array(self.weights.positions - 1, dtype=np.int64)
        places = graph.node("Clip", places, graph.constant("low", low), graph.constant("high", high))
        return graph.node("Gather", self.place_table(), places)

    def embed(self, table: Quantized, positions: str) -> str:
        words = self.graph.gather_blocks("words", table, "input_ids")
        vectors = self.weights.vectors
        return self.graph.node(
            "LayerNormalization",
            self.graph.node("Add", words, positions),
            self.graph.constant("emb.ln.w", vectors["emb.ln.w"]),
            self.graph.constant("emb.ln.b", vectors["emb.ln.b"]),
            axis=-1,
            epsilon=self.weights.epsilon,
        )

    def layer(self, at: str, layer: LayerWeights, x: str, *, padding: str = "", bias: str = "") -> str:
        """One transformer layer, its norms after each half."""
        seen = self.linear(f"{at}qkv", layer.qkv, x)
        seen = self.attend(at, seen, layer.vectors["qkv"], padding, bias)
        seen = self.linear(f"{at}out", layer.out, seen)
        x = self.add_and_norm(f"{at}norm1", seen, x, layer, "norm1", "out")
        inner = self.gelu(f"{at}inner.bias", self.linear(f"{at}inner", layer.inner, x), layer.vectors["inner"])
        inner = self.linear(f"{at}outer", layer.outer, inner, after_gelu=True)
        return self.add_and_norm(f"{at}norm2", inner, x, layer, "norm2", "outer")

    def linear(self, name: str, weights: Quantized | Half, x: str, *, after_gelu: bool = False) -> str:
        if self.layers == "exact":
            if isinstance(weights, Quantized):
                return self.graph.linear_blocks(name, weights, x)
            return self.graph.linear_half(name, weights, x)
        dense = weights.dense() if isinstance(weights, Quantized) else weights.astype(np.float32)
        if self.layers == "float32":
            return self.graph.linear_float32(name, dense, x)
        return self.graph.linear_int8(name, dense, x, after_gelu=after_gelu)

    def attend(self, at: str, joined: str, joined_bias: Float32, padding: str, bias: str) -> str:
        graph, hidden = self.graph, self.weights.hidden
        query, key, value = graph.nodes("Split", joined, graph.integers(hidden, hidden, hidden), outputs=3, axis=-1)
        inputs = [query, key, value, graph.constant(f"{at}qkv.bias", joined_bias), padding]
        inputs += [bias] if bias else []
        return graph.node("MultiHeadAttention", *inputs, domain=CONTRIB, num_heads=self.weights.heads)

    def add_and_norm(self, name: str, new: str, old: str, layer: LayerWeights, norm: str, bias: str) -> str:
        graph, vectors = self.graph, layer.vectors
        parts = {"scale": vectors[f"{norm}.scale"], "shift": vectors[f"{norm}.shift"], "bias": vectors[bias]}
        constants = [graph.constant(f"{name}.{part}", values) for part, values in parts.items()]
        return graph.node("SkipLayerNormalization", new, old, *constants, domain=CONTRIB, epsilon=self.weights.epsilon)

    def gelu(self, name: str, x: str, bias: Float32) -> str:
        return self.graph.node("BiasGelu", x, self.graph.constant(name, bias), domain=CONTRIB)

    def masked_sum(self, x: str, mask: str) -> str:
        """Sum over the tokens of mask 1, `(b, hidden)`."""
        graph = self.graph
        kept = graph.node("Mul", x, graph.node("Unsqueeze", mask, graph.integers(2)))
        return graph.node("ReduceSum", kept, graph.integers(1), keepdims=0)

    def unit(self, x: str, output: str = "") -> str:
        graph = self.graph
        length = graph.node("ReduceL2", x, axes=[1], keepdims=1)
        return graph.node("Div", x, graph.node("Max", length, graph.number(1e-6)), output=output)

    def pair_head(self, x: str, question: str, passage: str, delta: Mapping[str, Half]) -> None:
        graph = self.graph

        def mean(mask: str) -> str:
            count = graph.node("ReduceSum", mask, graph.integers(1), keepdims=1)
            return graph.node("Div", self.masked_sum(x, mask), graph.node("Max", count, graph.number(1.0)))

        mean_passage = mean(passage)
        unit_question, unit_passage = self.unit(mean(question)), self.unit(mean_passage)
        both = graph.node("Mul", unit_question, unit_passage)
        cosine = graph.node("ReduceSum", both, graph.integers(1), keepdims=1)
        first = graph.node("Gather", x, graph.constant("first", np.array(0, dtype=np.int64)), axis=1)
        apart = graph.node("Mul", graph.node("Abs", graph.node("Sub", unit_question, unit_passage)), graph.number(5.0))
        features = graph.node("Concat", first, graph.node("Mul", both, graph.number(20.0)), apart, mean_passage, axis=1)
        inner = graph.linear_half("head1", delta["head1.weight"], features)
        inner = self.gelu("head1.b", inner, delta["head1.bias"].astype(np.float32))
        judged = graph.node(
            "Add",
            graph.linear_half("head2", delta["head2.weight"], inner),
            graph.constant("head2.b", delta["head2.bias"].astype(np.float32)),
        )
        scaled = graph.node("Mul", cosine, graph.constant("scale", delta["scale"].astype(np.float32)))
        shifted = graph.node("Add", scaled, graph.constant("bias", delta["bias"].astype(np.float32)))
        graph.node("Add", shifted, judged, output="logits")
