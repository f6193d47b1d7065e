"""Owns the sides that are faiss: a graph over scalar-quantized vectors, and inverted lists over two codes.

Must not know how they are measured.

faiss needs a process for itself: with usearch's libraries loaded, `index_factory` crashes.
"""

from __future__ import annotations

import importlib
import math
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from build_scripts.bench._lib.conditions import say

from .data import Floats, Ids
from .graphs import EF_CONSTRUCTION, EFS, INDEX, M, beside
from .sides import Search, SideSpec

_TRAINED = 64  # vectors for each list
_CODEBOOK = 65_536  # vectors for a code's training, at least
_LEAST_TRAINED = 39  # with fewer for each list faiss warns
_PROBES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SUBVECTORS = 48  # of 8 dimensions, a byte each
_REFINED = "Refine(SQfp16)"
_RESCORED = 10  # times as many as are asked for: the codes alone find too few of the nearest


class Faiss:
    """An index that faiss's factory makes."""

    def __init__(self, factory: str, dim: int, effort_name: str) -> None:
        self._factory = factory
        self._dim = dim
        self._effort_name = effort_name
        self._index: Any = None
        self._space: Any = None

    def resume(self, passages: Floats, folder: Path, threads: int) -> int:
        faiss = _faiss()
        faiss.omp_set_num_threads(threads)
        if (folder / INDEX).exists():
            self._index = faiss.read_index(str(folder / INDEX))
            return int(self._index.ntotal)
        index = faiss.index_factory(self._dim, self._factory, faiss.METRIC_INNER_PRODUCT)
        if self._effort_name == "efSearch":
            index.hnsw.efConstruction = EF_CONSTRUCTION
        say("Training")
        trained = min(len(passages), max(_CODEBOOK, _TRAINED * lists(len(passages))))
        rows = np.sort(np.random.default_rng(1).choice(len(passages), trained, replace=False))
        index.train(np.asarray(passages[rows]))
        self._index = index
        self.save(folder)
        return 0

    def add(self, first: int, vectors: Floats) -> None:
        self._index.add(vectors)

    def finish(self) -> None:
        pass

    def save(self, folder: Path) -> None:
        _faiss().write_index(self._index, str(beside(folder)))
        beside(folder).replace(folder / INDEX)

    def open(self, folder: Path) -> None:
        faiss = _faiss()
        faiss.omp_set_num_threads(1)
        self._index = faiss.read_index(str(folder / INDEX))
        self._space = faiss.ParameterSpace()
        if self._factory.endswith(_REFINED):
            self._index.k_factor = _RESCORED

    def searcher(self, k: int, effort: float) -> Search:
        index = self._index
        self._space.set_index_parameter(index, self._effort_name, effort)

        def search(vector: Floats) -> Ids:
            return np.asarray(index.search(vector[None, :], k)[1][0], np.int64)

        return search

    def close(self) -> None:
        self._index = None


def _faiss() -> Any:
    # By name: those who check types have it seldom.
    return importlib.import_module("faiss")


def lists(n: int) -> int:
    """How many inverted lists for `n` vectors: about 4 √n, as faiss's guide says, a power of two, none starving."""
    return int(2 ** max(0, min(round(math.log2(4 * math.sqrt(n))), math.floor(math.log2(max(1, n / _LEAST_TRAINED))))))


def _inverted(title: str, code: str, parameters: str) -> SideSpec:
    return SideSpec(
        title=title,
        make=lambda n, dim: Faiss(f"IVF{lists(n)},{code}", dim, "nprobe"),
        modules=("faiss",),
        version=lambda: "-".join(["faiss", version("faiss-cpu"), "IVF", *re.findall(r"\w+", code), str(_TRAINED)]),
        parameters=f"about 4 √n lists{parameters}",
        effort_name="nprobe",
        efforts=_PROBES,
    )


SIDES = {
    "faiss-hnsw-sq8": SideSpec(
        title="faiss HNSW-SQ8",
        make=lambda _, dim: Faiss(f"HNSW{M}_SQ8", dim, "efSearch"),
        modules=("faiss",),
        version=lambda: f"faiss-{version('faiss-cpu')}-HNSW{M}_SQ8-{EF_CONSTRUCTION}",
        parameters=f"M {M}, efConstruction {EF_CONSTRUCTION}",
        effort_name="efSearch",
        efforts=EFS,
    ),
    "faiss-ivf-sq8": _inverted("faiss IVF-SQ8", "SQ8", ""),
    "faiss-ivf-pq": _inverted(
        "faiss IVF-PQ",
        f"PQ{_SUBVECTORS}np,{_REFINED}",  # np: without polysemous codes, which take minutes to train and are not used
        f", {_SUBVECTORS} bytes a vector, {_RESCORED} × k rescored in float16",
    ),
}
