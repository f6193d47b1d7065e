"""Owns a cold segment: an immutable graph of 8-bit codes over float16 vectors, all of it mapped from the disk.

Must not know collections or which segments there are.

    <segment>/header    checked JSON: count, codes, efforts, and the files with their checksums
    <segment>/graph     usearch, int8, keys are rows
    <segment>/vectors   float16 (n, dim)
    <segment>/ids       int64 (n,), ascending; row → id
"""

from __future__ import annotations

import contextlib
import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from appliance.native import load_usearch
from appliance.retrieval.dense import files
from appliance.retrieval.dense.effort import Efforts, measure
from appliance.retrieval.dense.quantize import Quantizer
from appliance.retrieval.dense.types import Floats, Ids
from appliance.retrieval.dense.vectors import Halves, Mask, Rows

if TYPE_CHECKING:
    from usearch.index import Index

FORMAT = 1
_CONNECTIVITY = 16
_EXPANSION_ADD = 200
_SLICE = 1024  # rows between two looks at whether the work is still wanted


class Header(msgspec.Struct, frozen=True):
    """What a segment is, and what its files must be."""

    format: int
    dim: int
    count: int
    quantizer: Quantizer
    efforts: Efforts
    graph: files.FileRef
    vectors: files.FileRef
    ids: files.FileRef


class Damaged(ValueError):
    """A segment is not what its header says."""


class Cancelled(Exception):
    """The work is not wanted any more."""


class Segment:
    """An open segment. It never changes; `without` gives one with other rows removed over the same files."""

    walked: int

    def __init__(self, folder: Path, dim: int, dead: Mask | None = None) -> None:
        """Map the files of a segment; only the header is read.

        Raises:
            Damaged: it is not whole as far as can be told without reading the large files, or not of `dim`.
        """
        self.folder = folder
        try:
            header = files.decode_checked((folder / "header").read_bytes(), Header)
        except (OSError, ValueError) as error:
            raise Damaged(f"{folder.name}: {error}") from error
        if (header.format, header.dim) != (FORMAT, dim):
            raise Damaged(f"{folder.name}: of another form")
        if not all(files.has_size(folder, ref) for ref in (header.graph, header.vectors, header.ids)):
            raise Damaged(f"{folder.name}: a file is not there or of another size")
        self.header = header
        self.walked = header.count
        self.ids: Ids = np.asarray(np.memmap(folder / header.ids.name, np.int64, "r"))
        self.vectors = _mapped_vectors(folder / header.vectors.name, dim)
        self.series = object()  # all that `without` makes of it have the same
        self.dead: Mask = np.zeros(header.count, bool) if dead is None else dead
        self.alive = header.count - int(np.count_nonzero(self.dead))
        self._encode = header.quantizer.encoder()
        self._graph = _new_graph(dim)
        try:
            self._graph.view(str(folder / header.graph.name))
        except RuntimeError as error:
            raise Damaged(f"{folder.name}: {error}") from error

    @property
    def name(self) -> str:
        """As in `Asked`."""
        return f"cold {self.folder.name}"

    @property
    def size(self) -> int:
        """Rows, removed ones included."""
        return self.header.count

    @property
    def efforts(self) -> Efforts:
        """As measured when it was sealed."""
        return self.header.efforts

    def rows_of(self, ids: Ids) -> Rows:
        """The row of each id; -1 where there is none."""
        places = np.minimum(np.searchsorted(self.ids, ids), self.size - 1)
        return np.where(self.ids[places] == ids, places, -1)

    def without(self, rows: Rows) -> Segment:
        """The same with these rows, which are alive, removed: that belongs to the tier, not to the files."""
        other = copy.copy(self)
        other.dead = self.dead.copy()
        other.dead[rows] = True
        other.alive = self.alive - len(rows)
        return other

    def walk(self, vector: Floats, ef: int) -> Rows:
        """See `Part`."""
        keys = self._graph.search(self._encode(vector), ef, threads=1).keys
        if len(keys) and keys.max() >= self.size:
            keys = keys[keys < self.size]  # a damaged file may say anything
        return keys.view(np.int64)

    def verify(self) -> bool:
        """Read every file from end to end; whether all is as it was written."""
        refs = (self.header.graph, self.header.vectors, self.header.ids)
        return all(files.is_whole(self.folder, ref) for ref in refs)


def write_segment(
    parent: Path, ids: Ids, blocks: Callable[[], Iterator[Halves]], dim: int, wanted: Callable[[], bool], threads: int
) -> Path:
    """Write a segment and give it its name in `parent`. About 0.7 ms a vector and thread.

    Args:
        parent: the folder of the tier.
        ids: ascending `(n,)`, n ≥ 1.
        blocks: the vectors `(any, dim)` in the order of `ids`.
        dim: their length.
        wanted: asked often; the work ends when it says no.
        threads: of the graph's construction; with one the same vectors give the same graph.

    Raises:
        Cancelled: it was not wanted any more.
        OSError: the disk is full or not writable.
    """
    name = files.new_name("segment")
    beside = parent / f"{name}.tmp"
    beside.mkdir()
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, beside, ignore_errors=True)
        with (beside / "vectors").open("xb") as stream:
            for block in blocks():
                stream.write(np.ascontiguousarray(block).data.cast("B"))
        vectors = _mapped_vectors(beside / "vectors", dim)
        quantizer = Quantizer.fit(vectors)
        encode = quantizer.encoder()
        graph = _new_graph(dim)
        for begin in range(0, len(ids), _SLICE):
            if not wanted():
                raise Cancelled
            block = vectors[begin : begin + _SLICE].astype(np.float32)
            graph.add(np.arange(begin, begin + len(block)), encode(block), threads=threads)
        graph.save(str(beside / "graph"))

        def walk_all(questions: Floats, ef: int) -> Rows:
            if not wanted():
                raise Cancelled
            found: Any = graph.search(encode(questions), ef, threads=1)
            rows: Rows = found.keys.astype(np.int64)
            rows[np.arange(ef) >= found.counts[:, None]] = -1
            return rows

        header = Header(
            FORMAT,
            dim,
            len(ids),
            quantizer,
            measure(vectors, walk_all),
            files.refer_synced(beside / "graph"),
            files.refer_synced(beside / "vectors"),
            files.write_synced(beside / "ids", np.ascontiguousarray(ids).data.cast("B")),
        )
        files.write_synced(beside / "header", files.encode_checked(header))
        files.place(beside, parent / name)
        undo.pop_all()
    return parent / name


def _new_graph(dim: int) -> Index:
    graph: Index = load_usearch().Index(
        ndim=dim,
        metric="l2sq",
        dtype="i8",
        connectivity=_CONNECTIVITY,
        expansion_add=_EXPANSION_ADD,
        expansion_search=1,  # a walk then keeps as many candidates as are asked for
        enable_key_lookups=False,
    )
    return graph


def _mapped_vectors(path: Path, dim: int) -> Halves:
    return np.asarray(np.memmap(path, np.float16, "r")).reshape(-1, dim)
