"""Owns a small e5-like model with random weights and its forward pass in plain numpy, written from the definition.

Must not know ONNX.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from appliance.packs.recipes.e5_weights import E5Weights, Quantized

HIDDEN, LAYERS, HEADS, FEED_FORWARD, POSITIONS, PIECES = 64, 10, 2, 128, 48, 60
UPPER = LAYERS - 8
Array = npt.NDArray[np.float64]
Half = npt.NDArray[np.float16]


def random_weights(seed: int) -> E5Weights:
    """Weights of the real kind (4-bit blocks, float32 vectors) and a size that runs in milliseconds."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Quantized:
        levels = rng.integers(0, 16, (rows, columns), dtype=np.uint8)
        return Quantized(levels, rng.uniform(0.01, 0.05, (rows, columns // 32)).astype(np.float16))

    def vector(size: int, middle: float = 0.0) -> npt.NDArray[np.float32]:
        return (middle + rng.normal(0, 0.2, size)).astype(np.float32)

    matrices = {"emb.word": matrix(PIECES, HIDDEN)}
    vectors = {"emb.pos": vector(POSITIONS * HIDDEN), "emb.type": vector(2 * HIDDEN)}
    vectors |= {"emb.ln.w": vector(HIDDEN, 1), "emb.ln.b": vector(HIDDEN)}
    for layer in range(LAYERS):
        for part, rows, columns in (
            *((part, HIDDEN, HIDDEN) for part in ("q", "k", "v", "ao")),
            ("fi", FEED_FORWARD, HIDDEN),
            ("fo", HIDDEN, FEED_FORWARD),
        ):
            matrices[f"l{layer}.{part}.w"] = matrix(rows, columns)
            vectors[f"l{layer}.{part}.b"] = vector(rows)
        for norm in ("aln", "oln"):
            vectors[f"l{layer}.{norm}.w"], vectors[f"l{layer}.{norm}.b"] = vector(HIDDEN, 1), vector(HIDDEN)
    pieces = tuple(f"p{i}" for i in range(PIECES))
    scores = np.zeros(PIECES, dtype=np.float32)
    sizes = (HIDDEN, LAYERS, HEADS, FEED_FORWARD, POSITIONS, 1e-12)
    return E5Weights(*sizes, pieces, scores, 0, 2, 1, 3, matrices, vectors)


def random_delta(seed: int) -> dict[str, Half]:
    """A trained difference in the shipped format."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"cross": (UPPER, HEADS), "scale": (1,), "bias": (1,)}
    shapes |= {"head1.weight": (HIDDEN, 4 * HIDDEN), "head1.bias": (HIDDEN,)}
    shapes |= {"head2.weight": (1, HIDDEN), "head2.bias": (1,)}
    for layer in range(8, LAYERS):
        at = f"layers.{layer}."
        for part in ("q", "k", "v", "o"):
            shapes |= {f"{at}{part}.weight": (HIDDEN, HIDDEN), f"{at}{part}.bias": (HIDDEN,)}
        shapes |= {f"{at}f1.weight": (FEED_FORWARD, HIDDEN), f"{at}f1.bias": (FEED_FORWARD,)}
        shapes |= {f"{at}f2.weight": (HIDDEN, FEED_FORWARD), f"{at}f2.bias": (HIDDEN,)}
        shapes |= {f"{at}{norm}.{part}": (HIDDEN,) for norm in ("ln1", "ln2") for part in ("weight", "bias")}
    return {name: rng.normal(0, 0.15, shape).astype(np.float16) for name, shape in shapes.items()}


def linear(x: Array, weight: Array, bias: Array) -> Array:
    """`x @ weight.T + bias`."""
    return x @ weight.T + bias


def norm(x: Array, scale: Array, shift: Array) -> Array:
    """Layer normalisation over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * scale + shift)


def gelu(x: Array) -> Array:
    """The exact one, by the error function."""
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def layer(x: Array, w: dict[str, Array], bias: Array) -> Array:
    """One layer; `bias` `(heads or 1, t, t)` is added to the attention scores."""
    tokens = len(x)

    def heads(part: str) -> Array:
        return linear(x, w[f"{part}.w"], w[f"{part}.b"]).reshape(tokens, HEADS, -1).transpose(1, 0, 2)

    scores = heads("q") @ heads("k").transpose(0, 2, 1) / math.sqrt(HIDDEN // HEADS) + bias
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    seen = (shares @ heads("v")).transpose(1, 0, 2).reshape(tokens, HIDDEN)
    x = norm(x + linear(seen, w["o.w"], w["o.b"]), w["n1.w"], w["n1.b"])
    inner = gelu(linear(x, w["f1.w"], w["f1.b"]))
    return norm(x + linear(inner, w["f2.w"], w["f2.b"]), w["n2.w"], w["n2.b"])


def base_layer(weights: E5Weights, number: int) -> dict[str, Array]:
    """A layer of the 4-bit file, by this module's names."""
    names = {"q": "q", "k": "k", "v": "v", "o": "ao", "f1": "fi", "f2": "fo"}
    found = {f"{a}.w": weights.matrices[f"l{number}.{b}.w"].dense() for a, b in names.items()}
    found |= {f"{a}.b": weights.vectors[f"l{number}.{b}.b"] for a, b in names.items()}
    for a, b in (("n1", "aln"), ("n2", "oln")):
        found |= {f"{a}.{part}": weights.vectors[f"l{number}.{b}.{part}"] for part in "wb"}
    return {name: value.astype(np.float64) for name, value in found.items()}


def delta_layer(delta: dict[str, Half], number: int) -> dict[str, Array]:
    """A trained layer, by this module's names."""
    names = {"q": "q", "k": "k", "v": "v", "o": "o", "f1": "f1", "f2": "f2", "n1": "ln1", "n2": "ln2"}
    kinds = {"w": "weight", "b": "bias"}
    return {
        f"{a}.{k}": delta[f"layers.{number}.{b}.{kind}"].astype(np.float64)
        for a, b in names.items()
        for k, kind in kinds.items()
    }


def embedded(weights: E5Weights, ids: list[int], places: list[int]) -> Array:
    """Input of the first layer, `(t, hidden)`."""
    words = weights.matrices["emb.word"].dense().astype(np.float64)[ids]
    table = weights.vectors["emb.pos"].reshape(POSITIONS, HIDDEN).astype(np.float64)
    x = words + table[places] + weights.vectors["emb.type"][:HIDDEN]
    scale, shift = (weights.vectors[f"emb.ln.{part}"].astype(np.float64) for part in "wb")
    return norm(x, scale, shift)


def embed(weights: E5Weights, ids: list[int]) -> Array:
    """The unit vector of one text without padding."""
    x = embedded(weights, ids, list(range(len(ids))))
    for number in range(LAYERS):
        x = layer(x, base_layer(weights, number), np.zeros((1, len(ids), len(ids))))
    mean: Array = x.mean(0)
    return np.asarray(mean / np.linalg.norm(mean))


def rerank(weights: E5Weights, delta: dict[str, Half], question: list[int], passage: list[int]) -> float:
    """The logit of one pair without padding."""
    places = [*range(len(question)), *range(len(passage))]
    x = embedded(weights, question + passage, places)
    side = np.array([0] * len(question) + [1] * len(passage))
    across = (side[:, None] != side[None, :]).astype(np.float64)[None]
    for number in range(LAYERS):
        if number < 8:
            x = layer(x, base_layer(weights, number), across * -1e4)
        else:
            lean = delta["cross"][number - 8].astype(np.float64)[:, None, None]
            x = layer(x, delta_layer(delta, number), across * lean)
    means = [x[side == which].mean(0) for which in (0, 1)]
    q, p = (mean / np.linalg.norm(mean) for mean in means)
    wide = {name: value.astype(np.float64) for name, value in delta.items()}
    features = np.concatenate([x[0], q * p * 20, np.abs(q - p) * 5, means[1]])
    judged = linear(
        gelu(linear(features, wide["head1.weight"], wide["head1.bias"])), wide["head2.weight"], wide["head2.bias"]
    )
    return float(wide["scale"][0] * (q @ p) + wide["bias"][0] + judged[0])
