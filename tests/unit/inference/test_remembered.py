"""A question is embedded once while it is remembered, and gets the same vector each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from appliance.inference.protocols import Embeddings
from appliance.inference.remembered import RememberedQueries


class Numbers:
    """Embeds a text as its length and hash; counts what it is asked."""

    dim = 2
    fingerprint = "f"
    max_tokens = 9

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    def embed_queries(self, texts: Sequence[str]) -> Embeddings:
        self.embedded += texts
        return np.array([[len(text), hash(text) % 1000] for text in texts], np.float32).reshape(-1, 2)

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        return -self.embed_queries(texts)


@given(st.lists(st.lists(st.text(max_size=4), max_size=5), max_size=12))
def test_it_is_the_same_embedder_asked_less(calls: list[list[str]]) -> None:
    inner, plain = Numbers(), Numbers()
    remembered = RememberedQueries(inner)
    for texts in calls:
        assert np.array_equal(remembered.embed_queries(texts), plain.embed_queries(texts))
    once = {text for texts in calls for text in texts}
    assert set(inner.embedded) == once
    assert all(inner.embedded.count(text) <= max(texts.count(text) for texts in calls) for text in once)


def test_it_forgets_what_is_over_its_memory() -> None:
    inner = Numbers()
    remembered = RememberedQueries(inner, memory_bytes=1000)
    for number in range(50):
        remembered.embed_queries([str(number)])
    remembered.embed_queries(["0", "49"])
    assert inner.embedded[50:] == ["0"]


def test_passages_are_not_remembered() -> None:
    inner = Numbers()
    remembered = RememberedQueries(inner)
    assert np.array_equal(remembered.embed_passages(["a"]), -Numbers().embed_queries(["a"]))
    remembered.embed_passages(["a"])
    assert inner.embedded == ["a", "a"]
