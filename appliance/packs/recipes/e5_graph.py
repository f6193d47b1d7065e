"""Owns the ONNX graphs of the rebuilt e5: the embedder, and the cross-encoder that shares its lower layers.

Must not know tokenizers or files.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from appliance.packs.recipes.e5_weights import E5Weights, Float32, Quantized
from appliance.packs.recipes.graph import CONTRIB, GraphWriter

MASKED = -1e4  # added to attention scores of what must not be seen
Half = npt.NDArray[np.float16]
SPLIT_LAYERS = 8  # layers of the cross-encoder that see question and passage apart: those of the embedder


def embedder_onnx(weights: E5Weights, keep: npt.NDArray[np.int64]) -> bytes:
    """Token ids `(b, t)` and mask `(b, t)` → `embedding` `(b, hidden)`: mean over the mask, L2 norm 1."""
    build = _Builder(weights)
    graph = build.graph
    positions = graph.node("Slice", build.place_table(), *build.token_range())
    x = build.embed(weights.matrices["emb.word"].rows(keep), positions)
    padding = graph.node("Cast", "attention_mask", to=6)
    for layer in range(weights.layers):
        x = build.base_layer(layer, x, padding=padding)
    build.unit(build.masked_sum(x, graph.node("Cast", "attention_mask", to=1)), output="embedding")
    return graph.serialize("e5-embedder", ("input_ids", "attention_mask"), "embedding", weights.hidden)


def reranker_onnx(
    weights: E5Weights, keep: npt.NDArray[np.int64], delta: Mapping[str, npt.NDArray[np.float16]]
) -> bytes:
    """Ids, mask and types `(b, t)` of pairs → `logits` `(b, 1)`.

    Lower layers and embeddings are the embedder's; question (type 0) and passage (type 1) do not see each
    other there and positions start anew with the passage. The upper layers, a learned bias per head for
    looking across, and the head over both means come from `delta`.
    """
    build = _Builder(weights)
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
        x = build.base_layer(layer, x, bias=apart)
    for layer in range(SPLIT_LAYERS, weights.layers):
        lean = delta["cross"][layer - SPLIT_LAYERS].astype(np.float32).reshape(1, weights.heads, 1, 1)
        crossing = graph.node("Mul", across, graph.constant(f"cross.{layer}", lean))
        x = build.delta_layer(layer, x, graph.node("Add", hidden_keys, crossing), delta)
    build.pair_head(x, question, passage, delta)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    return graph.serialize("e5-reranker", inputs, "logits", 1)


class _Builder:
    def __init__(self, weights: E5Weights) -> None:
        self.graph = GraphWriter()
        self.weights = weights

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

    def base_layer(self, layer: int, x: str, *, padding: str = "", bias: str = "") -> str:
        """One transformer layer (norm after each half) with the 4-bit weights of the file."""
        graph, at = self.graph, f"l{layer}."
        vectors, matrices = self.weights.vectors, self.weights.matrices
        parts = [matrices[f"{at}{part}.w"] for part in "qkv"]
        joined = Quantized(np.concatenate([p.levels for p in parts]), np.concatenate([p.scales for p in parts]))
        seen = self.attend(
            at,
            graph.linear_blocks(f"{at}qkv", joined, x),
            np.concatenate([vectors[f"{at}{part}.b"] for part in "qkv"]),
            padding,
            bias,
        )
        seen = graph.linear_blocks(f"{at}ao", matrices[f"{at}ao.w"], seen)
        x = self.add_and_norm(f"{at}aln", seen, x, vectors[f"{at}aln.w"], vectors[f"{at}aln.b"], vectors[f"{at}ao.b"])
        inner = self.gelu(f"{at}fi.b", graph.linear_blocks(f"{at}fi", matrices[f"{at}fi.w"], x), vectors[f"{at}fi.b"])
        inner = graph.linear_blocks(f"{at}fo", matrices[f"{at}fo.w"], inner)
        return self.add_and_norm(
            f"{at}oln", inner, x, vectors[f"{at}oln.w"], vectors[f"{at}oln.b"], vectors[f"{at}fo.b"]
        )

    def delta_layer(self, layer: int, x: str, bias: str, delta: Mapping[str, Half]) -> str:
        """One transformer layer with the trained float16 weights."""
        graph, at = self.graph, f"layers.{layer}."

        def wide(name: str) -> Float32:
            return delta[at + name].astype(np.float32)

        joined = np.concatenate([delta[f"{at}{part}.weight"] for part in "qkv"])
        joined_bias = np.concatenate([wide(f"{part}.bias") for part in "qkv"])
        seen = self.attend(at, graph.linear_half(f"{at}qkv", joined, x), joined_bias, "", bias)
        seen = graph.linear_half(f"{at}o", delta[f"{at}o.weight"], seen)
        x = self.add_and_norm(f"{at}ln1", seen, x, wide("ln1.weight"), wide("ln1.bias"), wide("o.bias"))
        inner = self.gelu(f"{at}f1.b", graph.linear_half(f"{at}f1", delta[f"{at}f1.weight"], x), wide("f1.bias"))
        inner = graph.linear_half(f"{at}f2", delta[f"{at}f2.weight"], inner)
        return self.add_and_norm(f"{at}ln2", inner, x, wide("ln2.weight"), wide("ln2.bias"), wide("f2.bias"))

    def attend(self, at: str, joined: str, joined_bias: Float32, padding: str, bias: str) -> str:
        graph, hidden = self.graph, self.weights.hidden
        query, key, value = graph.nodes("Split", joined, graph.integers(hidden, hidden, hidden), outputs=3, axis=-1)
        inputs = [query, key, value, graph.constant(f"{at}qkv.bias", joined_bias), padding]
        inputs += [bias] if bias else []
        return graph.node("MultiHeadAttention", *inputs, domain=CONTRIB, num_heads=self.weights.heads)

    def add_and_norm(self, name: str, new: str, old: str, scale: Float32, shift: Float32, bias: Float32) -> str:
        graph = self.graph
        constants = [graph.constant(f"{name}.{part}", v) for part, v in (("w", scale), ("b", shift), ("bias", bias))]
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
