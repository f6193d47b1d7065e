"""Owns what all tests share: the pocket model pack, prepared once, and the spans that a test makes.

Must not know any test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from appliance.packs import PackStore, ResolvedPack, load_manifest
from appliance.telemetry import Span
from appliance.telemetry.spans import send_spans_to

# How long an example takes says nothing on a machine that others use too.
hypothesis.settings.register_profile("appliance", deadline=None)
hypothesis.settings.load_profile("appliance")


def shared_models_dir() -> Path:
    """Where tests keep models between runs: `APPLIANCE_MODELS_DIR`, else a cache in the home folder."""
    named = os.environ.get("APPLIANCE_MODELS_DIR")
    return Path(named) if named else Path("~/.cache/appliance/models").expanduser()


@pytest.fixture(scope="session")
def pocket() -> ResolvedPack:
    """The pocket pack, every file verified; pulled at first use, by one process at a time."""
    store = PackStore(shared_models_dir(), load_manifest())
    store.pull("pocket", print)
    return store.resolve("pocket")


@pytest.fixture
def spans() -> Iterator[list[Span]]:
    """All spans that end in the test, in that order."""
    ended: list[Span] = []
    send_spans_to(ended.append)
    yield ended
    send_spans_to(None)
