"""Owns the sample manuals, ingested once: to read them takes longer than most tests.

Must not know any test.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from appliance import samples
from appliance.packs import ResolvedPack
from tests.integration.program import run


@pytest.fixture(scope="session")
def ingested(pocket: ResolvedPack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the sample manuals in it, as the command line leaves it. Nothing may open it: copy it."""
    data_dir = tmp_path_factory.mktemp("ingested") / "data"
    done = run(data_dir, "ingest", *map(str, samples.manuals()))
    assert done.returncode == 0, done.stdout + done.stderr
    return data_dir


@pytest.fixture(scope="module")
def library(ingested: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of the module's own with the sample manuals in it."""
    return Path(shutil.copytree(ingested, tmp_path_factory.mktemp("library") / "data"))
