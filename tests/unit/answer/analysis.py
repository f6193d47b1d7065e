"""Owns the analyzer that the tests of this folder share, as recall has it.

Must not know any test.
"""

from __future__ import annotations

import functools

from appliance.retrieval.analyzer import Analyzer


@functools.cache
def _analyzer() -> Analyzer:
    return Analyzer()


def terms(text: str) -> frozenset[str]:
    """What a text is about."""
    return frozenset(_analyzer().terms(text))
