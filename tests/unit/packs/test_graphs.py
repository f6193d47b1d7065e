"""The ONNX graphs compute what the definition says, whatever the padding, and are the same bytes every time."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

from appliance.packs.recipes.e5_graph import Layers, embedder_onnx, reranker_onnx
from appliance.packs.recipes.e5_weights import E5Weights
from appliance.packs.recipes.graph import GraphWriter
from tests.unit.packs.e5_reference import PIECES, POSITIONS, embed, random_delta, random_weights, rerank

ALL = np.arange(PIECES, dtype=np.int64)
PAD = 1


def session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def padded(rows: list[list[int]], fill: int) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([row + [fill] * (width - len(row)) for row in rows], dtype=np.int64)


@pytest.fixture(scope="module")
def weights() -> E5Weights:
    return random_weights(1)


@pytest.mark.parametrize("lengths", [[1], [3, 17, 8], [POSITIONS, 2]])
def test_the_embedder_is_the_definitions(weights: E5Weights, lengths: list[int]) -> None:
    rng = np.random.default_rng(len(lengths))
    texts = [rng.integers(4, PIECES, length).tolist() for length in lengths]
    mask = padded([[1] * length for length in lengths], 0)
    (found,) = session(embedder_onnx(weights, ALL)).run(None, {"input_ids": padded(texts, PAD), "attention_mask": mask})
    wanted = np.stack([embed(weights, text) for text in texts])
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    # Activations are rounded to 8 bits per block of 32: close, not equal.
    assert (found * wanted).sum(1).min() > 0.999


def test_the_vocabulary_cut_moves_rows_and_changes_no_vector(weights: E5Weights) -> None:
    keep = np.array([0, 1, 2, 3, 10, 20, 30, 59], dtype=np.int64)
    cut = session(embedder_onnx(weights, keep))
    whole = session(embedder_onnx(weights, ALL))
    ids = np.array([[0, 4, 7, 5, 2]], dtype=np.int64)
    mask = np.ones_like(ids)
    (found,) = cut.run(None, {"input_ids": ids, "attention_mask": mask})
    (wanted,) = whole.run(None, {"input_ids": keep[ids], "attention_mask": mask})
    np.testing.assert_array_equal(found, wanted)


def test_a_texts_vector_does_not_depend_on_its_batch(weights: E5Weights) -> None:
    model = session(embedder_onnx(weights, ALL))
    texts = [[5, 6, 7], [8] * 30, [9, 10] * 10]
    mask = padded([[1] * len(text) for text in texts], 0)
    (together,) = model.run(None, {"input_ids": padded(texts, PAD), "attention_mask": mask})
    for text, row in zip(texts, together, strict=True):
        ids = np.array([text], dtype=np.int64)
        (alone,) = model.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        np.testing.assert_allclose(alone[0], row, atol=2e-5)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[list[int], list[int]]]:
    """Questions and passages of unlike lengths."""
    rng = np.random.default_rng(3)
    shapes = [(1, 2), (12, 1), (1, 40), *rng.integers(1, 20, (13, 2)).tolist()]
    return [
        ([0, *rng.integers(4, PIECES, question).tolist(), 2], [0, *rng.integers(4, PIECES, passage).tolist(), 2])
        for question, passage in shapes
    ]


def logits(model: bytes, pairs: list[tuple[list[int], list[int]]], *, pad_side: int = 0) -> np.ndarray:
    sides = padded([[0] * len(question) + [1] * len(passage) for question, passage in pairs], pad_side)
    mask = padded([[1] * len(question + passage) for question, passage in pairs], 0)
    ids = padded([question + passage for question, passage in pairs], PAD)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": sides}
    (found,) = session(model).run(None, feeds)
    assert found.shape == (len(pairs), 1)
    return np.asarray(found[:, 0])


def test_the_reranker_is_the_definitions(weights: E5Weights, pairs: list[tuple[list[int], list[int]]]) -> None:
    delta = random_delta(2)
    wanted = np.array([rerank(weights, delta, question, passage) for question, passage in pairs])
    float32 = reranker_onnx(weights, ALL, delta, "float32")
    exact = reranker_onnx(weights, ALL, delta, "exact")
    for pad_side in (0, 1):
        np.testing.assert_allclose(logits(float32, pairs, pad_side=pad_side), wanted, atol=1e-3)
        np.testing.assert_allclose(logits(exact, pairs, pad_side=pad_side), wanted, atol=wanted.std() / 10)
    shipped = logits(reranker_onnx(weights, ALL, delta), pairs)
    assert np.corrcoef(shipped, wanted)[0, 1] > 0.97
    assert (shipped - wanted).std() < wanted.std() / 4


@pytest.mark.parametrize("layers", ["int8", "exact", "float32"])
def test_a_pairs_logit_does_not_depend_on_its_batch(
    weights: E5Weights, pairs: list[tuple[list[int], list[int]]], layers: Layers
) -> None:
    """Callers share batches: nobody's scores may follow from what somebody else asks."""
    model = reranker_onnx(weights, ALL, random_delta(2), layers)
    together = logits(model, pairs)
    alone = np.concatenate([logits(model, [pair]) for pair in pairs])
    np.testing.assert_allclose(together, alone, atol=1e-3)


@pytest.mark.parametrize("after_gelu", [False, True])
@pytest.mark.parametrize("value", [1e-3, 1.0, 1e4])
def test_int8_products_are_right_at_the_extremes(after_gelu: bool, value: float) -> None:
    """Full 8-bit weights saturate here on processors without VNNI: two products of 255 and 127 exceed 16 bits."""
    graph = GraphWriter()
    rows = np.repeat(np.array([[1.0], [-1.0]], dtype=np.float32), 256, axis=1)
    scaled = graph.node("Mul", graph.node("Cast", "input_ids", to=1), graph.number(value))
    product = graph.linear_int8("m", rows, scaled, after_gelu=after_gelu)
    graph.node("Identity", product, output="products")
    model = session(graph.serialize("products", ("input_ids",), "products", 2))
    (found,) = model.run(None, {"input_ids": np.full((1, 256), 1, dtype=np.int64)})
    # Where GELU's least must be told from zero, the steps are no smaller than that asks for.
    step = 0.01 if after_gelu and value < 0.01 else 0.01 * value
    np.testing.assert_allclose(found, [[256 * value, -256 * value]], atol=256 * step)


def test_int8_products_tell_gelus_least_from_zero() -> None:
    graph = GraphWriter()
    rows = np.ones((1, 4), dtype=np.float32)
    values = graph.constant("x", np.array([[-0.17, 0.0, 0.0, 0.0], [-0.17, -0.17, 0.0, 9.0]], dtype=np.float32))
    product = graph.linear_int8("m", rows, values, after_gelu=True)
    ones = graph.node("Cast", graph.node("Slice", "input_ids", *[graph.integers(n) for n in (0, 1, 1)]), to=1)
    graph.node("Mul", product, ones, output="products")
    model = session(graph.serialize("products", ("input_ids",), "products", 1))
    (found,) = model.run(None, {"input_ids": np.ones((1, 1), dtype=np.int64)})
    np.testing.assert_allclose(found[:, 0], [-0.17, 8.66], atol=0.06)


def test_another_process_builds_the_same_bytes(weights: E5Weights) -> None:
    script = """
import hashlib, numpy, sys
from appliance.packs.recipes.e5_graph import embedder_onnx, reranker_onnx
from tests.unit.packs.e5_reference import PIECES, random_delta, random_weights
keep = numpy.arange(PIECES)
weights = random_weights(1)
for model in (embedder_onnx(weights, keep), reranker_onnx(weights, keep, random_delta(2))):
    print(hashlib.sha256(model).hexdigest())
"""
    ran = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert ran[0] == ran[1]
    assert len(set(ran[0].split())) == 2
