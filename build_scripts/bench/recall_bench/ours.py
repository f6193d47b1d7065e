"""Owns our own side: the dense tier of one collection, as recall uses it.

Must not know how it is measured.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import numpy as np

import appliance
from appliance.retrieval import dense
from appliance.retrieval.dense.tiered import TieredVectors
from appliance.retrieval.dense.types import TARGETS

from .data import Floats, Ids
from .sides import Search, SideSpec

_TIER = "tier"


class Ours:
    """The tier of one collection. It keeps what it has sealed by itself."""

    def __init__(self, _n: int, dim: int) -> None:
        self._dim = dim
        self._tier: TieredVectors | None = None

    def resume(self, passages: Floats, folder: Path, threads: int) -> int:
        self._tier = TieredVectors(folder / _TIER, self._dim, threads=threads)
        return len(self._tier)

    def add(self, first: int, vectors: Floats) -> None:
        self._opened().add(np.arange(first, first + len(vectors)), vectors)

    def finish(self) -> None:
        self._opened().settle()

    def save(self, folder: Path) -> None:
        pass

    def open(self, folder: Path) -> None:
        self._tier = TieredVectors(folder / _TIER, self._dim)

    def searcher(self, k: int, effort: float) -> Search:
        tier = self._opened()

        def search(vector: Floats) -> Ids:
            return tier.search(vector, k, target=effort)[0]

        return search

    def close(self) -> None:
        self._opened().close()

    def _opened(self) -> TieredVectors:
        assert self._tier is not None, "not open"  # noqa: S101
        return self._tier


def dense_version() -> str:
    """Changes with the code that writes the files of vectors."""
    return f"{_digest(Path(dense.__path__[0]))}-usearch-{version('usearch')}"


def recall_version() -> str:
    """Changes with the code that writes the store or an index."""
    package = Path(appliance.__path__[0])
    return f"{_digest(package / 'store', package / 'retrieval')}-usearch-{version('usearch')}-{version('tantivy')}"


def _digest(*folders: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


SIDES = {
    "ours": SideSpec(
        title="ours",
        make=Ours,
        modules=("onnxruntime", "usearch.index", "numkong"),
        version=lambda: f"ours-{dense_version()}",
        parameters="defaults",
        effort_name="recall target",
        efforts=TARGETS[:-1],
    )
}
