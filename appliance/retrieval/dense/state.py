"""Owns the manifest of a tier: which segments there are, what was removed from them, what was hot.

Must not know when it is written.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from appliance.retrieval.dense import files
from appliance.retrieval.dense.hot import Hot
from appliance.retrieval.dense.segment import Damaged, Segment
from appliance.retrieval.dense.types import Ids
from appliance.retrieval.dense.vectors import Halves

log = logging.getLogger(__name__)

_FORMAT = 2
_SMALL = 8 << 20  # bytes of a segment that are read whole when it is opened, 10 ms


class SegmentRef(msgspec.Struct, frozen=True):
    """A segment of a manifest."""

    name: str
    count: int


class Manifest(msgspec.Struct, frozen=True):
    """All that a tier is."""

    format: int
    label: str  # of the store and the embedder
    dim: int
    generation: int  # of the store
    segments: tuple[SegmentRef, ...]
    dead: files.FileRef | None  # a bit a row, all segments one after the other
    hot: files.FileRef | None  # ids, then vectors
    hot_count: int


class Loaded(msgspec.Struct, frozen=True):
    """What could be taken from the disk."""

    number: int  # of the newest manifest, also if it was not taken
    generation: int
    segments: tuple[Segment, ...]
    hot: tuple[Ids, Halves]
    unverified: tuple[Segment, ...]  # too large to be read whole when opening
    foreign: bool  # there is something, of another store, embedder, size or later time


def load(folder: Path, label: str, dim: int, newest: int | None) -> Loaded:
    """Take the newest whole manifest, and of its parts those that are whole.

    Args:
        folder: of the tier.
        label: whose vectors they must be.
        dim: their length.
        newest: generation of the store; a manifest of a later one is of a store that was since replaced.
    """
    none: tuple[Ids, Halves] = (np.empty(0, np.int64), np.empty((0, dim), np.float16))
    numbers = files.manifest_numbers(folder)
    number = numbers[0] if numbers else 0
    manifest = next((one for found in numbers if (one := files.read_manifest(folder, found, Manifest))), None)
    if manifest is None:
        return Loaded(number, 0, (), none, (), bool(numbers))
    own = (manifest.format, manifest.label, manifest.dim) == (_FORMAT, label, dim)
    if not own or (newest is not None and manifest.generation > newest):
        return Loaded(number, 0, (), none, (), True)
    segments = _segments(folder, manifest)
    small = [one for one in segments if _size_bytes(one) <= _SMALL]
    damaged = [one for one in small if not one.verify()]
    for segment in damaged:
        log.warning("the index part %s is damaged and will be built again", segment.folder.name)
    kept = tuple(segment for segment in segments if segment not in damaged)
    unverified = tuple(segment for segment in kept if segment not in small)
    return Loaded(number, manifest.generation, kept, _hot(folder, manifest, none), unverified, False)


def save(
    folder: Path, number: int, label: str, dim: int, generation: int, segments: Sequence[Segment], hots: Sequence[Hot]
) -> None:
    """Publish a manifest of `number`, with the vectors of `hots`, and remove what it does not name.

    Raises:
        Overtaken: another handle was faster.
        OSError: the disk is full or not writable; the manifest before still counts.
    """
    alive = [(one.ids[~one.dead], one.vectors[~one.dead]) for one in hots]
    count = sum(len(ids) for ids, _ in alive)
    refs = tuple(SegmentRef(one.folder.name, one.size) for one in segments)
    with contextlib.ExitStack() as undo:
        dead = hot = None
        if any(one.alive < one.size for one in segments):
            dead = _written(folder, "dead", np.packbits(np.concatenate([one.dead for one in segments])).tobytes(), undo)
        if count:
            data = b"".join([ids.tobytes() for ids, _ in alive] + [vectors.tobytes() for _, vectors in alive])
            hot = _written(folder, "hot", data, undo)
        files.publish(folder, number, Manifest(_FORMAT, label, dim, generation, refs, dead, hot, count))
        undo.pop_all()
    files.clean(folder, number, [ref.name for ref in (*refs, dead, hot) if ref is not None])


def _written(folder: Path, what: str, data: bytes, undo: contextlib.ExitStack) -> files.FileRef:
    path = folder / files.new_name(what)
    undo.callback(path.unlink, missing_ok=True)
    return files.write_synced(path, data)


def _segments(folder: Path, manifest: Manifest) -> list[Segment]:
    counts = [ref.count for ref in manifest.segments]
    dead = np.zeros(sum(counts), bool)
    if manifest.dead is not None:
        if files.is_whole(folder, manifest.dead):
            bits = np.frombuffer((folder / manifest.dead.name).read_bytes(), np.uint8)
            dead = np.unpackbits(bits, count=len(dead)).astype(bool)
        else:
            log.warning("the list of removed vectors is damaged")
    segments: list[Segment] = []
    for ref, rows in zip(manifest.segments, np.split(dead, np.cumsum(counts)[:-1]), strict=False):
        try:
            segments.append(Segment(folder / ref.name, manifest.dim, rows.copy()))
        except Damaged as fault:
            log.warning("an index part is damaged and will be built again: %s", fault)
    return segments


def _hot(folder: Path, manifest: Manifest, none: tuple[Ids, Halves]) -> tuple[Ids, Halves]:
    if manifest.hot is None:
        return none
    if not files.is_whole(folder, manifest.hot):
        log.warning("the newest vectors of the index are damaged and will be read again")
        return none
    data = (folder / manifest.hot.name).read_bytes()
    ids = np.frombuffer(data, np.int64, manifest.hot_count)
    vectors = np.frombuffer(data, np.float16, offset=ids.nbytes)
    return ids, vectors.reshape(manifest.hot_count, manifest.dim)


def _size_bytes(segment: Segment) -> int:
    header = segment.header
    return header.graph.size_bytes + header.vectors.size_bytes + header.ids.size_bytes
