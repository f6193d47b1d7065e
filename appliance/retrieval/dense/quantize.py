"""Owns 8-bit codes of vectors: where their middle lies, how large a step is, how much falls outside.

Must not know graphs or files.

Embeddings of one model share a direction: of multilingual-e5-small two texts have a cosine of .75 on average. Codes of
the vectors as they are spend most of their range on what all have in common (recall@10 of the walk .90). Codes of the
difference from the mean do not (.99). Distance between differences is distance between vectors, and for unit vectors
its order is that of the cosine.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.retrieval.dense.types import Floats
from appliance.retrieval.dense.vectors import Halves

Codes = npt.NDArray[np.int8]

_LEVELS = 127
_SAMPLE = 20_000
_SHARES_INSIDE = (0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1.0)


class Quantizer(msgspec.Struct, frozen=True):
    """`code = round((vector - centre) * scale)`, cut to ±127."""

    centre: tuple[float, ...]  # float32 values
    scale: float
    clipped: float  # share of the values of a sample that were cut

    @classmethod
    def fit(cls, vectors: Halves) -> Quantizer:
        """For `vectors` `(n, dim)`, n ≥ 1: the scale whose rounding and cutting together lose least (squared)."""
        step = max(1, len(vectors) // _SAMPLE)
        sample = vectors[::step].astype(np.float32)
        centre = sample.mean(axis=0)
        values = np.abs(sample - centre).ravel()
        limits = np.maximum(np.quantile(values, _SHARES_INSIDE), 1e-6)
        losses = [_loss(values, limit) for limit in limits]
        limit = float(limits[int(np.argmin(losses))])
        return cls(tuple(centre.tolist()), _LEVELS / limit, float(np.mean(values > limit)))

    def encoder(self) -> Encoder:
        """What encodes; keeps the centre as an array."""
        return Encoder(np.array(self.centre, np.float32), np.float32(self.scale))


class Encoder:
    """Encodes vectors of any number."""

    def __init__(self, centre: Floats, scale: np.float32) -> None:
        self._centre = centre
        self._scale = scale

    def __call__(self, vectors: Floats | Halves) -> Codes:
        """Codes of the shape of `vectors` `(..., dim)`."""
        scaled = vectors - self._centre
        scaled *= self._scale
        np.rint(scaled, out=scaled)
        np.minimum(scaled, _LEVELS, out=scaled)
        np.maximum(scaled, -_LEVELS, out=scaled)
        codes: Codes = scaled.astype(np.int8)
        return codes


def _loss(values: Floats, limit: float) -> float:
    inside = np.minimum(values, limit)
    step = limit / _LEVELS
    return float(np.mean((values - np.rint(inside / step) * step) ** 2))
