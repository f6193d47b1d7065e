"""Owns the vectors that all sides search: files in the cache folder, with the exact answers to their questions.

Must not know the sides.

    <cache>/recall/<name>/passages.npy    (n, dim) float32, unit length; a vector's id is its row
                          questions.npy   (q, dim), measured; exact.npy (q, 10) int64: their nearest, best first
                          tuning.npy      (t, dim), others, on which each side is set up; tuning_exact.npy
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from build_scripts.bench._lib.conditions import say

from . import mixture

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

K = 10  # neighbours that are asked for and compared
TUNING_QUESTIONS = 500
_BLOCK = 50_000


@dataclass(frozen=True, slots=True)
class VectorData:
    """A data set in the cache folder."""

    folder: Path

    @property
    def name(self) -> str:
        """Tells it from others."""
        return self.folder.name

    def passages(self) -> Floats:
        """`(n, dim)`, mapped, not read."""
        return np.asarray(np.load(self.folder / "passages.npy", mmap_mode="r"))

    def questions(self) -> tuple[Floats, Ids]:
        """Those that are measured, and their exact answers."""
        return np.load(self.folder / "questions.npy"), np.load(self.folder / "exact.npy")

    def tuning(self) -> tuple[Floats, Ids]:
        """Those that sides are set up with, and their exact answers."""
        return np.load(self.folder / "tuning.npy"), np.load(self.folder / "tuning_exact.npy")


def cache_folder() -> Path:
    """Where data and built indexes are kept between runs."""
    return Path(os.environ.get("APPLIANCE_CACHE_DIR") or Path.home() / ".cache" / "appliance") / "recall"


def mixed(n: int, questions: int) -> VectorData:
    """`n` vectors of the mixture; made once."""
    folder = cache_folder() / f"mixture{mixture.VERSION}-{n}-{questions}"
    if not folder.exists():
        say(f"Making {n} vectors")
        made = mixture.Mixture(n)
        _store(
            folder,
            (n, mixture.DIM),
            made.passages(),
            made.questions(questions, kind=0),
            made.questions(TUNING_QUESTIONS, kind=1),
        )
    return VectorData(folder)


def data_of(name: str) -> VectorData:
    """A data set by its name."""
    return VectorData(cache_folder() / name)


def nearest(passages: Floats, questions: Floats, k: int) -> Ids:
    """The exact answers `(q, k)`: rows of the greatest inner products, best first, ties by row."""
    best = np.empty((len(questions), 0), np.float32)
    rows = np.empty((len(questions), 0), np.int64)
    for begin in range(0, len(passages), _BLOCK):
        block = questions @ passages[begin : begin + _BLOCK].T
        some = np.argpartition(-block, min(k, block.shape[1]) - 1, axis=1)[:, :k]
        best = np.concatenate([best, np.take_along_axis(block, some, axis=1)], axis=1)
        rows = np.concatenate([rows, some + begin], axis=1)
        order = np.lexsort((rows, -best), axis=1)[:, :k]
        best, rows = np.take_along_axis(best, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return rows


def recall(found: Ids, exact: Ids) -> float:
    """Share of the exact answers `(q, k)` that are among those found `(q, any)`."""
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True))
    return hits / exact.size


def _store(folder: Path, shape: tuple[int, int], blocks: Iterator[Floats], questions: Floats, tuning: Floats) -> None:
    building = folder.with_name(folder.name + ".building")
    building.mkdir(parents=True, exist_ok=True)
    passages = np.lib.format.open_memmap(building / "passages.npy", "w+", np.float32, shape)
    begin = 0
    for block in blocks:
        passages[begin : begin + len(block)] = block
        begin += len(block)
    passages.flush()
    for name, asked in (("questions", questions), ("tuning", tuning)):
        np.save(building / f"{name}.npy", asked)
        np.save(building / f"{'exact' if name == 'questions' else 'tuning_exact'}.npy", nearest(passages, asked, K))
    building.rename(folder)
