"""Owns what to do next with the parts of a tier: pure decisions over sizes.

Must not know vectors, graphs or files.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_FAN = 4  # so many segments of one size become one
_WORTH = 8  # a quiet time is used to rewrite at most so many vectors for each that comes to them


class Limits(msgspec.Struct, frozen=True):
    """Sizes in vectors."""

    exact: int = 2_000
    """Hot vectors that are scanned whole: up to here that takes about as long as the walk of a graph."""

    seal: int = 16_384
    """Hot vectors that become a cold segment: 12 s of one core, and some 40 MB of memory until then."""

    largest: int = 1_000_000
    """Segments are not merged into larger ones: 12 min of one core, and 0.6 GB of memory meanwhile."""


class SegmentSize(msgspec.Struct, frozen=True):
    """A segment as the policy sees it."""

    total: int
    alive: int


def segments_to_merge(segments: Sequence[SegmentSize], limits: Limits, *, quiet: bool = False) -> list[int]:
    """Places of the segments that should become one (or, if nothing in them is alive, none); empty: all is well.

    A segment is written anew when less than half of it is alive. Four segments of about the same size are merged,
    the smallest first, so that a vector is written about log₄(n / seal) times, and a search asks at most three
    segments of each size. When it is `quiet`, so that time costs nothing, all that is not too small beside the rest
    becomes one: each segment that a search asks costs it a walk.
    """
    half_dead = [place for place, one in enumerate(segments) if one.alive * 2 < one.total]
    if half_dead:
        return half_dead[:1]
    classes: dict[int, list[int]] = {}
    for place, one in enumerate(segments):
        classes.setdefault(_size_class(one.alive, limits.seal), []).append(place)
    for _, places in sorted(classes.items()):
        chosen = sorted(places, key=lambda place: segments[place].alive)[:_FAN]
        if len(chosen) == _FAN and sum(segments[place].alive for place in chosen) <= limits.largest:
            return sorted(chosen)
    return _all_in_one(segments, limits) if quiet else []


def _all_in_one(segments: Sequence[SegmentSize], limits: Limits) -> list[int]:
    places = sorted(range(len(segments)), key=lambda place: segments[place].alive)
    while len(places) > 1:
        sizes = [segments[place].alive for place in places]
        if sum(sizes) <= limits.largest and sum(sizes[:-1]) * _WORTH >= sizes[-1]:
            return sorted(places)
        places.pop()
    return []


def _size_class(alive: int, unit: int) -> int:
    size = 0
    while alive > unit * 2:  # classes are around unit, 4 unit, 16 unit
        alive //= _FAN
        size += 1
    return size
