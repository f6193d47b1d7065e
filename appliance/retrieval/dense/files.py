"""Owns the files of the vector graphs: `dense/manifest.json` and one file per graph, named by generation.

Must not know how a graph searches, nor the store.

    dense/manifest.json              {"crc": of body, "body": {...}}; renamed into place after its graphs
    dense/<collection>-<generation>.hnsw
    dense/*.tmp                      a write that did not end; removed at the next one

A reader takes the manifest and a graph only if both match their checksums; everything else is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from appliance.retrieval.dense.graph import GraphTier

_FORMAT = 1


class GraphFile(msgspec.Struct, frozen=True):
    """A graph on the disk."""

    collection: str
    file: str
    crc: int
    deleted: tuple[int, ...]  # ids in the file that are not alive


class DenseManifest(msgspec.Struct, frozen=True):
    """Which graphs there are and what they reflect."""

    format: int
    label: str  # of the store and the embedder; graphs of others are not taken
    dim: int
    generation: int  # of the store
    graphs: tuple[GraphFile, ...]


class _Checked(msgspec.Struct, frozen=True):
    crc: int
    body: msgspec.Raw


def load_graphs(folder: Path, label: str, dim: int, newest: int) -> dict[str, GraphTier]:
    """Graphs by collection: those that are whole, of `label` and `dim`, and not later than `newest`."""
    manifest = _read_manifest(folder)
    if manifest is None or (manifest.label, manifest.dim) != (label, dim) or manifest.generation > newest:
        return {}
    graphs: dict[str, GraphTier] = {}
    for entry in manifest.graphs:
        file = folder / entry.file
        # Any fault of a file has one remedy, to build that graph again.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            if _crc_of(file) == entry.crc:
                graphs[entry.collection] = GraphTier.load(file, dim, entry.deleted)
    return graphs


def save_graphs(folder: Path, label: str, dim: int, generation: int, graphs: Mapping[str, GraphTier]) -> None:
    """Write all graphs and then their manifest; kept as they are when the manifest is already of a later one.

    Raises:
        OSError: the disk is full or not writable; what was there before is still whole.
    """
    before = _read_manifest(folder)
    if before is not None and before.label == label and before.generation > generation:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob("*.tmp"):
        left_over.unlink()
    entries: list[GraphFile] = []
    for collection, graph in sorted(graphs.items()):
        name = f"{hashlib.sha256(collection.encode()).hexdigest()[:16]}-{generation}.hnsw"
        beside = folder / f"{name}.tmp"
        deleted = graph.save(beside)
        _sync(beside)
        entries.append(GraphFile(collection, name, _crc_of(beside), tuple(deleted)))
        beside.replace(folder / name)
    body = msgspec.json.encode(DenseManifest(_FORMAT, label, dim, generation, tuple(entries)))
    beside = folder / "manifest.json.tmp"
    beside.write_bytes(msgspec.json.encode(_Checked(zlib.crc32(body), msgspec.Raw(body))))
    _sync(beside)
    beside.replace(folder / "manifest.json")
    _sync(folder)
    kept = {entry.file for entry in entries}
    for file in folder.glob("*.hnsw"):
        if file.name not in kept:
            file.unlink()


def _read_manifest(folder: Path) -> DenseManifest | None:
    try:
        checked = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=_Checked)
        if zlib.crc32(bytes(checked.body)) != checked.crc:
            return None
        manifest = msgspec.json.decode(checked.body, type=DenseManifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return manifest if manifest.format == _FORMAT else None


def _crc_of(file: Path) -> int:
    crc = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
