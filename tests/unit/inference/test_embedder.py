"""The embedder: prefix, cutting, pooling, batches, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config import ModelSettings
from appliance.errors import BadRequest, ModelCorrupt
from appliance.inference.embedder import OnnxEmbedder, batches
from appliance.inference.protocols import Embeddings
from tests.unit.inference.tiny import DIM, TABLE, WORDS, embedder_spec

SETTINGS = ModelSettings(onnx_threads=1)


def by_hand(words: str) -> Embeddings:
    mean = TABLE[[WORDS.index(word) for word in words.split()]].mean(axis=0)
    unit: Embeddings = mean / np.linalg.norm(mean)
    return unit


def test_prefix_specials_mean_and_unit_length(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(embedder_spec(tmp_path), SETTINGS)
    found = embedder.embed_passages(["pump seal", "oil"])
    assert found.dtype == np.float32
    assert found[0] == pytest.approx(by_hand("<s> passage: pump seal </s>"), abs=1e-6)
    assert found[1] == pytest.approx(by_hand("<s> passage: oil </s>"), abs=1e-6)  # padding does not count
    assert embedder.embed_queries(["oil"])[0] == pytest.approx(by_hand("<s> query: oil </s>"), abs=1e-6)


def test_cls_pooling_and_pooling_in_the_graph(tmp_path: Path) -> None:
    (tmp_path / "cls").mkdir()
    (tmp_path / "graph").mkdir()
    cls = OnnxEmbedder(embedder_spec(tmp_path / "cls", pooling="cls"), SETTINGS)
    assert cls.embed_passages(["oil"])[0] == pytest.approx(by_hand("<s>"), abs=1e-6)
    graph = OnnxEmbedder(embedder_spec(tmp_path / "graph", pooled=True), SETTINGS)
    assert graph.embed_passages(["oil"])[0] == pytest.approx(by_hand("<s> passage: oil </s>"), abs=1e-6)


def test_a_text_over_the_limit_is_cut_before_its_end_mark(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(embedder_spec(tmp_path, max_tokens=5), SETTINGS)
    found = embedder.embed_passages(["pump seal oil valve bolt", "pump " * 10_000])
    assert found[0] == pytest.approx(by_hand("<s> passage: pump seal </s>"), abs=1e-6)
    assert found[1] == pytest.approx(by_hand("<s> passage: pump pump </s>"), abs=1e-6)


def test_tokens_are_counted_without_prefix_specials_and_limit(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(embedder_spec(tmp_path), SETTINGS)
    assert embedder.count_tokens(["pump seal", "", "oil " * 100]) == [2, 0, 100]


def test_order_does_not_depend_on_batches(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(embedder_spec(tmp_path, max_tokens=512), SETTINGS)
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS[6:], rng.integers(1, 300))) for _ in range(100)]
    together = embedder.embed_passages(texts)
    alone = np.concatenate([embedder.embed_passages([text]) for text in texts])
    assert together == pytest.approx(alone, abs=1e-5)
    assert embedder.embed_passages([]).shape == (0, DIM)


@given(st.lists(st.integers(1, 512), max_size=200))
def test_batches_hold_every_text_once_and_are_bounded(lengths: list[int]) -> None:
    found = list(batches(lengths))
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) <= 32
        assert len(batch) * max(lengths[place] for place in batch) <= 4096
    inner = [lengths[place] for batch in found for place in batch]
    assert inner == sorted(lengths)


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_an_empty_text_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadRequest, match="empty"):
        OnnxEmbedder(embedder_spec(tmp_path), SETTINGS).embed_passages(["pump", text])


@pytest.mark.parametrize("spoiled", [np.nan, 0.0])
def test_a_vector_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: float) -> None:
    monkeypatch.setattr("tests.unit.inference.tiny.TABLE", np.full_like(TABLE, spoiled))
    with pytest.raises(ModelCorrupt, match="tiny"):
        OnnxEmbedder(embedder_spec(tmp_path), SETTINGS).embed_passages(["pump"])


def test_the_fingerprint_follows_what_changes_the_vectors(tmp_path: Path) -> None:
    spec = embedder_spec(tmp_path)
    first = OnnxEmbedder(spec, SETTINGS).fingerprint
    assert OnnxEmbedder(spec, ModelSettings(onnx_threads=2)).fingerprint == first
    assert OnnxEmbedder(embedder_spec(tmp_path, max_tokens=9), SETTINGS).fingerprint != first
    assert OnnxEmbedder(embedder_spec(tmp_path, pooling="cls"), SETTINGS).fingerprint != first


def test_threads_share_one_embedder(tmp_path: Path) -> None:
    embedder = OnnxEmbedder(embedder_spec(tmp_path), SETTINGS)
    expected = embedder.embed_passages(["pump seal", "oil"])
    found: list[bool] = []

    def embed() -> None:
        found.extend(np.allclose(embedder.embed_passages(["pump seal", "oil"]), expected) for _ in range(30))

    threads = [threading.Thread(target=embed) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 120
