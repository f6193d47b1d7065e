"""Owns the statistics of figures: percentiles, spreads over rounds, ratios.

Must not know what the figures are of, or how they are shown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """A figure over rounds."""

    median: float
    least: float
    most: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0 to 1] of all values do not exceed; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """Median, least and most of those that are numbers; NaN where none is."""
    known = [value for value in values if not math.isnan(value)] or [math.nan]
    return Spread(statistics.median(known), min(known), max(known))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours to theirs, round by round: what slows both down for a while does not count."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])
