"""The manifest is read strictly, and the program's own one is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import NotFound
from appliance.packs import load_manifest
from appliance.packs.manifest import BadManifest, BuildSource, HubSource, RegistrySource

GENERATOR = """
[packs.{pack}.generator]
name = "g"
licence = "MIT"
languages = ["en"]
context_tokens = 1024
file = "g.gguf"
source = {{ kind = "hub", repo = "a/b", file = "g.gguf", revision = "main" }}
"""
EMBEDDER = """
[packs.{pack}.embedder]
name = "e"
licence = "MIT"
languages = ["en"]
dim = 4
max_tokens = 64
pad_id = 1
pooling = "graph"
file = "e.onnx"
source = {{ kind = "hub", repo = "a/b", file = "e.onnx", revision = "main" }}
[packs.{pack}.embedder.tokenizer]
file = "e.json"
source = {{ kind = "hub", repo = "a/b", file = "e.json", revision = "main" }}
"""


def pack(name: str, *parts: str, extends: str = "") -> str:
    head = f'[packs.{name}]\ndescription = "d"\nextends = "{extends}"\n'
    return head + "".join(part.format(pack=name) for part in parts)


def write(folder: Path, text: str) -> Path:
    path = folder / "manifest.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_programs_own_manifest_declares_the_three_packs_and_a_sum_for_all_but_hub_files() -> None:
    manifest = load_manifest()
    assert manifest.names() == ["pocket", "edge-3b", "bench-3b"]
    for name in manifest.names():
        for model in manifest.models(name):
            assert model.entry.licence
            for entry in model.files:
                if not isinstance(entry.source, HubSource):
                    assert entry.sha256 and entry.size_bytes, entry.file


def test_no_source_names_a_registry_by_its_address() -> None:
    manifest = load_manifest()
    for name in manifest.names():
        for model in manifest.models(name):
            for entry in model.files:
                if isinstance(entry.source, RegistrySource | BuildSource):
                    assert "/" not in entry.source.package


def test_a_pack_takes_over_what_it_does_not_declare(tmp_path: Path) -> None:
    text = pack("base", GENERATOR, EMBEDDER) + pack("more", GENERATOR, extends="base")
    models = load_manifest(write(tmp_path, text)).models("more")
    assert [(model.role, model.folder) for model in models] == [("generator", "more"), ("embedder", "base")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (pack("a", GENERATOR, EMBEDDER).replace("pad_id", "pad_token"), "pad_token"),
        (pack("a", GENERATOR, EMBEDDER).replace('"g.gguf"\n', '"../g.gguf"\n'), "file"),
        (pack("a", GENERATOR, EMBEDDER).replace('kind = "hub"', 'kind = "web"'), "web"),
        (pack("a", GENERATOR, EMBEDDER).replace("[packs.a]", "[packs.a]\nsha = 1"), "sha"),
        (pack("a", GENERATOR, EMBEDDER).replace("dim = 4", 'dim = 4\nsha256 = "abc"'), "sha256"),
        (pack("a", GENERATOR), "no embedder"),
        (pack("a", GENERATOR, EMBEDDER, extends="a"), "extends"),
        (pack("a", GENERATOR, EMBEDDER, extends="b"), "'b'"),
        ("packs = 3", "Expected `object`"),
        ("[packs", "at end of document"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_and_the_fault_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadManifest) as caught:
        load_manifest(write(tmp_path, text))
    assert said in caught.value.text


def test_a_manifest_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadManifest, match="cannot be read"):
        load_manifest(tmp_path / "none.toml")


def test_an_unknown_pack_suggests_the_closest() -> None:
    with pytest.raises(NotFound, match="Did you mean edge-3b"):
        load_manifest().models("edge3b")
    with pytest.raises(NotFound, match="pocket, edge-3b, bench-3b"):
        load_manifest().models("zzzz")
