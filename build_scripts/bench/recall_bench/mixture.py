"""Owns the made vectors: a mixture of clusters with the shape of real embeddings, the same for the same seed.

Must not know indexes, files or what is measured.

    passage = unit( mean + language + .6 topic + .6 document + .53 own ),  question = unit( ... + .5 + .5 + .71 own )

Each component is Gaussian with one spectrum in one random rotation. Mean, language axis and spectrum are those of
multilingual-e5-small over 1,664 passages in English and Chinese (seven training sets): mean of length .864, pairs of
cosine .747 ± .046, the first two of the eigenvalues .144 and .042 of their sum, the first 32 .43, the first 128 .73.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

DIM = 384
VERSION = 1  # grows when the vectors change
_SEED = 20261201
_BLOCK = 50_000
_MEAN = 0.864
_FIRST_EIGENVALUES = (0.144, 0.042)
_TAIL = (8.0, 0.85)  # the other eigenvalues are as (i + 8) ** -.85
_PASSAGES_PER_DOCUMENT = 20  # on average
_DOCUMENTS_PER_TOPIC = 50
_PASSAGE_SHARES = (0.36, 0.36, 0.28)  # of the variance: topic, document, own
_QUESTION_SHARES = (0.25, 0.25, 0.50)
_SECOND_LANGUAGE = 0.4  # share of documents


class Mixture:
    """The distribution from which `n` passages and their questions are drawn."""

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng([_SEED, n])
        self._n = n
        rotation, _ = np.linalg.qr(rng.standard_normal((DIM, DIM)))
        scale = np.sqrt(_spectrum() * (1 - _MEAN**2))
        self._mean = (rotation[:, 0] * scale[0], _MEAN * _direction(rng))
        self._shape = (rotation[:, 1:] * scale[1:]).T.astype(np.float32)  # from unit Gaussians to one component
        documents = max(1, n // _PASSAGES_PER_DOCUMENT)
        topics = max(1, documents // _DOCUMENTS_PER_TOPIC)
        self._topic = self._gaussian(rng, topics)
        self._topic_of = np.minimum((topics * rng.random(documents) ** 1.5).astype(np.int64), topics - 1)
        self._document = self._gaussian(rng, documents)
        self._language = np.where(rng.random(documents) < _SECOND_LANGUAGE, 1.22, -0.82).astype(np.float32)
        self._cumulative = np.cumsum(rng.exponential(size=documents))

    def passages(self) -> Iterator[Floats]:
        """All passages, in blocks `(up to 50,000, 384)` of unit vectors."""
        for begin in range(0, self._n, _BLOCK):
            rng = np.random.default_rng([_SEED, self._n, 1, begin])
            yield self._draw(rng, min(_BLOCK, self._n - begin), _PASSAGE_SHARES)

    def questions(self, count: int, *, kind: int) -> Floats:
        """Unit vectors `(count, 384)` that are no passages; another `kind` gives others."""
        return self._draw(np.random.default_rng([_SEED, self._n, 2, kind]), count, _QUESTION_SHARES)

    def _draw(self, rng: np.random.Generator, count: int, shares: tuple[float, float, float]) -> Floats:
        place = np.searchsorted(self._cumulative, rng.random(count) * self._cumulative[-1])
        topic, document, own = np.sqrt(np.asarray(shares, np.float32))
        vectors = own * self._gaussian(rng, count)
        vectors += document * self._document[place]
        vectors += topic * self._topic[self._topic_of[place]]
        language, mean = self._mean
        vectors += self._language[place, None] * language.astype(np.float32)
        vectors += mean.astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors, np.float32)

    def _gaussian(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.standard_normal((count, DIM - 1), np.float32) @ self._shape


def _spectrum() -> npt.NDArray[np.float64]:
    first = np.array(_FIRST_EIGENVALUES)
    shift, power = _TAIL
    tail = (np.arange(1, DIM - len(first) + 1) + len(first) + shift) ** -power
    return np.concatenate([first, tail * (1 - first.sum()) / tail.sum()])


def _direction(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    direction = rng.standard_normal(DIM)
    return np.asarray(direction / np.linalg.norm(direction))
