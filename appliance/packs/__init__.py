"""Owns model packs: which model files exist, where they come from, that they are the right ones.

Must not know how models are run.
"""

from appliance.packs.manifest import Manifest, load_manifest, manifest_path
from appliance.packs.specs import (
    EmbedderSpec,
    FileStatus,
    GeneratorSpec,
    RerankerSpec,
    ResolvedPack,
)
from appliance.packs.store import PackStore

__all__ = [
    "EmbedderSpec",
    "FileStatus",
    "GeneratorSpec",
    "Manifest",
    "PackStore",
    "RerankerSpec",
    "ResolvedPack",
    "load_manifest",
    "manifest_path",
]
