"""Owns the sides that are plain hnswlib and plain usearch.

Must not know how they are measured.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from appliance.native import load_usearch

from .data import Floats, Ids
from .sides import Search, SideSpec

M = 16
EF_CONSTRUCTION = 200
EF_PLAIN = 64
EFS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
INDEX = "index"
_BUILT = f"M {M}, efConstruction {EF_CONSTRUCTION}"


class Hnswlib:
    """hnswlib over float32, loaded into memory."""

    def __init__(self, _n: int, dim: int) -> None:
        self._dim = dim
        self._threads = 1
        self._index: Any = None

    def resume(self, passages: Floats, folder: Path, threads: int) -> int:
        self._threads = threads
        self._index = self._empty()
        if (folder / INDEX).exists():
            self._index.load_index(str(folder / INDEX), max_elements=len(passages))
            self._index.set_ef(EF_CONSTRUCTION)
        else:
            self._index.init_index(max_elements=len(passages), M=M, ef_construction=EF_CONSTRUCTION, random_seed=1)
        return int(self._index.get_current_count())

    def add(self, first: int, vectors: Floats) -> None:
        self._index.add_items(vectors, np.arange(first, first + len(vectors)), num_threads=self._threads)

    def finish(self) -> None:
        pass

    def save(self, folder: Path) -> None:
        self._index.save_index(str(beside(folder)))
        beside(folder).replace(folder / INDEX)

    def open(self, folder: Path) -> None:
        self._index = self._empty()
        self._index.load_index(str(folder / INDEX))

    def searcher(self, k: int, effort: float) -> Search:
        index = self._index
        index.set_ef(int(effort))

        def search(vector: Floats) -> Ids:
            labels, _ = index.knn_query(vector[None, :], k=k, num_threads=1)
            return np.asarray(labels[0], np.int64)

        return search

    def close(self) -> None:
        self._index = None

    def _empty(self) -> Any:
        import hnswlib

        return hnswlib.Index(space="ip", dim=self._dim)


class Usearch:
    """usearch over int8, loaded into memory or mapped."""

    def __init__(self, dim: int, *, mapped: bool) -> None:
        self._dim = dim
        self._mapped = mapped
        self._threads = 1
        self._index: Any = None

    def resume(self, passages: Floats, folder: Path, threads: int) -> int:
        self._threads = threads
        self._index = self._empty()
        if (folder / INDEX).exists():
            self._index.load(str(folder / INDEX))
        return len(self._index)

    def add(self, first: int, vectors: Floats) -> None:
        self._index.add(np.arange(first, first + len(vectors)), vectors, threads=self._threads)

    def finish(self) -> None:
        pass

    def save(self, folder: Path) -> None:
        self._index.save(str(beside(folder)))
        beside(folder).replace(folder / INDEX)

    def open(self, folder: Path) -> None:
        self._index = self._empty()
        if self._mapped:
            self._index.view(str(folder / INDEX))
        else:
            self._index.load(str(folder / INDEX))

    def searcher(self, k: int, effort: float) -> Search:
        index = self._index
        index.expansion_search = int(effort)

        def search(vector: Floats) -> Ids:
            return np.asarray(index.search(vector, k, threads=1).keys, np.int64)

        return search

    def close(self) -> None:
        self._index = None

    def _empty(self) -> Any:
        return load_usearch().Index(
            ndim=self._dim, metric="cos", dtype="i8", connectivity=M, expansion_add=EF_CONSTRUCTION
        )


def beside(folder: Path) -> Path:
    """Where an index is written until it is whole."""
    return folder / f"{INDEX}.tmp"


def _usearch(title: str, *, mapped: bool) -> SideSpec:
    return SideSpec(
        title=title,
        make=lambda _, dim: Usearch(dim, mapped=mapped),
        modules=("onnxruntime", "usearch.index"),
        version=lambda: f"usearch-{version('usearch')}-{M}-{EF_CONSTRUCTION}",
        parameters=_BUILT,
        effort_name="ef",
        efforts=(EF_PLAIN,),  # plain: what ef would reach the wanted recall, if any does, is not its figure
    )


SIDES = {
    "hnswlib": SideSpec(
        title="hnswlib f32",
        make=Hnswlib,
        modules=("hnswlib",),
        version=lambda: f"hnswlib-{version('hnswlib')}-{M}-{EF_CONSTRUCTION}",
        parameters=_BUILT,
        effort_name="ef",
        efforts=EFS,
    ),
    "usearch": _usearch("usearch i8", mapped=False),
    "usearch-mapped": _usearch("usearch i8, mapped", mapped=True),
}
