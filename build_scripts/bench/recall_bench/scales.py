"""Owns the sizes of what is measured.

Must not know what is done with them.
"""

from __future__ import annotations

from typing import NamedTuple


class Scale(NamedTuple):
    """Sizes of one run."""

    name: str
    vectors: int
    questions: int  # of a round of vector searches
    whole_questions: int  # of a round of whole searches, in each mode
    live_seconds: float  # of each turn beside writes


SCALES = {
    one.name: one
    for one in (
        Scale("tiny", 10_000, 300, 100, 1.0),
        Scale("100k", 100_000, 2_000, 500, 10.0),
        Scale("300k", 300_000, 2_000, 500, 10.0),
        Scale("1m", 1_000_000, 2_000, 500, 10.0),
    )
}
