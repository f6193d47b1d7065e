"""Owns the one settings tree: defaults, the TOML file, `APPLIANCE_…` variables, flags, in rising order.

Must not know what the settings are used for.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from appliance.errors import BadSetting

Port = Annotated[int, Meta(ge=0, le=65535)]
# Every number has an upper end: they become C integers, timers and limits of the system, and what does not fit
# there wraps around, or ends a process with no word about the setting.
Positive = Annotated[int, Meta(ge=1, le=1_000_000)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 40)]
PositiveMs = Annotated[float, Meta(gt=0, le=1e9)]
PositiveS = Annotated[float, Meta(gt=0, le=1e6)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Threads = Annotated[int, Meta(ge=0, le=512)]  # llama.cpp takes no more
Share = Annotated[float, Meta(ge=0, le=1)]


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the service listens and how it stops."""

    host: str = "127.0.0.1"
    port: Port = 8080
    socket: str = ""  # "": <data_dir>/appliance.sock
    # Who needs an API key. network: a port that can be reached from other machines; tcp: every port; always: the unix
    # socket too.
    require_keys: Literal["network", "tcp", "always"] = "network"
    socket_mode: Annotated[str, Meta(pattern="^0?[0-7]{3}$")] = "600"  # who else may open the socket's file, in octal
    tls_certificate: str = ""  # PEM files: the certificate, then those that signed it, …
    tls_key: str = ""  # … and its key, not encrypted; both "": no TLS
    # Web origins whose pages may use the service, e.g. https://intranet.example; none beside its own.
    cors_origins: tuple[Annotated[str, Meta(pattern="^https?://[^/*\\s]+$")], ...] = ()
    max_connections: Positive = 1000  # over the network; one more is refused
    shutdown_grace_s: Annotated[float, Meta(ge=0, le=1e6)] = 10.0  # running streams may finish in this time
    max_body_bytes: Bytes = 8 << 20  # of a JSON request
    ping_interval_s: PositiveS = 10.0  # SSE comment while nothing is produced


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which model pack is used."""

    pack: str = ""  # "": the one chosen by `appliance models use`, else "pocket"
    device: str = "auto"  # "auto", "cpu" or "gpu"
    onnx_threads: Threads = 0  # 0: the number of cores


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The generation engine."""

    # Of one request; 0: as much as the model and `kv_tokens` allow.
    context_tokens: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    # KV cells shared by all sequences; 0: as memory allows, see `engine/room.py`.
    kv_tokens: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    max_sequences: Annotated[int, Meta(ge=0, le=64)] = 0  # 0: as cores and memory allow
    batch_tokens: Annotated[int, Meta(ge=32, le=1 << 16)] = 512
    itl_target_ms: PositiveMs = 250.0  # between two tokens of an answer, while other prompts are read
    aging_s: PositiveS = 15.0  # a request that waited this long counts as one class higher
    speculation: bool = True  # guess ahead from the text so far; the answer is the same
    kv_type: Literal["f16", "q8_0"] = "f16"  # q8_0: half the memory; needs flash attention
    host_cache_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 512 << 20  # for prefixes that left the context
    disk_cache_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 1 << 30  # for prefixes that survive a restart
    # One request at a time, nothing reused or guessed: the same seed gives the same text whatever else was asked.
    deterministic: bool = False
    threads: Threads = 0  # 0: the number of cores
    max_queue: Positive = 1000
    heartbeat_timeout_s: PositiveS = 20.0  # a silent engine is killed after this
    start_timeout_s: PositiveS = 120.0


class RecallSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Search."""

    lexical_candidates: Positive = 200
    dense_candidates: Positive = 200
    fused_candidates: Positive = 50
    top_k: Positive = 10
    rerank_budget_ms: PositiveMs = 1000.0


class AnswerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prompts and answers."""

    passages: Positive = 3  # at most, in a prompt
    passage_tokens: Positive = 500  # budget of all passages together, in the generator's tokens
    max_tokens: Positive = 256  # of an answer, when the request does not say
    deadline_ms: PositiveMs = 30000.0  # when the request does not say
    max_waiting: Positive = 1000  # questions that wait for their turn to be searched for; one more is refused
    # Where the documents answer a question with a smaller probability, the answer says that they do not. 0: never.
    abstain_threshold: Share = 0.5


class CacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answers that are given again."""

    memory_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 32 << 20
    disk_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 256 << 20
    hot_s: PositiveS = 60.0  # after this a popular answer is made anew in the background
    fresh_s: PositiveS = 300.0  # after this an answer is made anew before it is given, if that takes no longer than …
    wait_ms: PositiveMs = 100.0  # … this; else the old one is given, and said to be stale
    keep_s: PositiveS = 86400.0
    disk_wait_ms: PositiveMs = 50.0  # that a question waits for the disk; a read takes 0.1 ms, a sick disk for ever
    sampled: bool = False  # keep answers, too, that were drawn at random without a seed


class DocumentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reading documents."""

    chunk_tokens: Annotated[int, Meta(ge=32, le=480)] = 200
    overlap_tokens: Count = 30
    max_file_bytes: Bytes = 100 << 20
    parse_timeout_s: PositiveS = 120.0
    parse_memory_bytes: Bytes = 2 << 30
    max_text_bytes: Bytes = 64 << 20  # of one document; it is held in memory while it is cut
    originals: Literal["keep", "forget"] = "keep"  # the files themselves, so that a citation can be looked up in them
    ocr: Literal["auto", "off"] = "auto"  # scanned pages and images are read by tesseract, where it is installed
    ocr_pages: Positive = 500  # of one document; a page takes one second to several
    ocr_page_timeout_s: PositiveS = 60.0  # for each of them, besides parse_timeout_s


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces and figures of the service."""

    enabled: bool = True
    text: bool = False  # traces may hold the questions; never what is in documents
    slow_ms: PositiveMs = 5000.0  # what takes longer is kept, whatever else there is
    traces: Positive = 2000  # kept of ordinary requests, and as many of slow and failed ones
    store_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 64 << 20  # for traces and snapshots of all figures
    snapshot_s: PositiveS = 30.0  # between two of them
    otlp_endpoint: str = ""  # of a collector, e.g. http://127.0.0.1:4318; "": nothing is sent


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole tree. Paths are empty until `load` fills in their defaults."""

    data_dir: str = ""
    models_dir: str = ""
    server: ServerSettings = ServerSettings()
    models: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    recall: RecallSettings = RecallSettings()
    answer: AnswerSettings = AnswerSettings()
    cache: CacheSettings = CacheSettings()
    documents: DocumentSettings = DocumentSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @property
    def data_path(self) -> Path:
        """The data directory."""
        return Path(self.data_dir)

    @property
    def models_path(self) -> Path:
        """The folder of model packs."""
        return Path(self.models_dir)


# Short names for the settings that people set most, beside the systematic ones (APPLIANCE_SERVER_PORT).
ALIASES = {"APPLIANCE_PORT": "server.port", "APPLIANCE_HOST": "server.host", "APPLIANCE_PACK": "models.pack"}
# Variables of this prefix that are not settings: read by the program's start, its commands and the build scripts.
NOT_SETTINGS = frozenset({"APPLIANCE_CONFIG", "APPLIANCE_CACHE_DIR", "APPLIANCE_API_KEY"})


def setting_names() -> list[str]:
    """Every setting's dotted name, in the order of the tree."""
    return list(_leaves(Settings))


def variable_of(name: str) -> str:
    """The environment variable of setting `name`."""
    return "APPLIANCE_" + name.replace(".", "_").upper()


def load(
    config_file: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings.

    Args:
        config_file: TOML; None: `$APPLIANCE_CONFIG`, else `/etc/appliance/appliance.toml` if it exists.
        environ: where `APPLIANCE_…` variables are looked up.
        flags: dotted name → text, as given on the command line; they win.

    Raises:
        BadSetting: the file cannot be read, a key is unknown (with a suggestion), a value is wrong.
    """
    tree = _read_file(config_file, environ)
    leaves = _leaves(Settings)
    variables = {variable_of(name): name for name in leaves} | ALIASES
    for variable, text in sorted(environ.items()):
        if not variable.startswith("APPLIANCE_") or variable in NOT_SETTINGS:
            continue
        if variable not in variables:
            raise BadSetting(f"Unknown environment variable {variable}.", remedy=_suggest(variable, variables))
        _put(tree, variables[variable], _parse(text, leaves[variables[variable]], variable))
    for name, text in (flags or {}).items():
        if name not in leaves:
            raise BadSetting(f"Unknown setting {name}.", remedy=_suggest(name, leaves))
        _put(tree, name, _parse(text, leaves[name], name))
    _reject_unknown(tree, Settings, "")
    try:
        settings = msgspec.convert(tree, Settings)
    except msgspec.ValidationError as error:
        raise BadSetting(f"The settings are not valid: {error}.") from error
    data_dir = Path(settings.data_dir).expanduser() if settings.data_dir else _default_data_dir(environ)
    models_dir = Path(settings.models_dir).expanduser() if settings.models_dir else data_dir / "models"
    return msgspec.structs.replace(settings, data_dir=str(data_dir.absolute()), models_dir=str(models_dir.absolute()))


def to_toml(settings: Settings) -> str:
    """The settings as a TOML file that `load` reads back to the same settings."""
    lines: list[str] = []
    tables: list[str] = []
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, msgspec.Struct):
            tables.append(f"\n[{field.name}]")
            tables += [f"{f.name} = {_toml(getattr(value, f.name))}" for f in msgspec.structs.fields(value)]
        else:
            lines.append(f"{field.name} = {_toml(value)}")
    return "\n".join(lines + tables) + "\n"


def _toml(value: str | float | bool | tuple[str, ...]) -> str:
    # A JSON string is a TOML basic string; numbers, booleans and lists are written alike.
    return msgspec.json.encode(value).decode()


def _default_data_dir(environ: Mapping[str, str]) -> Path:
    state = environ.get("STATE_DIRECTORY")  # set by systemd
    if state:
        return Path(state.split(":")[0])
    share = environ.get("XDG_DATA_HOME")
    return Path(share or Path("~/.local/share").expanduser()) / "appliance"


def _read_file(config_file: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    named = config_file or (Path(environ["APPLIANCE_CONFIG"]) if environ.get("APPLIANCE_CONFIG") else None)
    path = named or Path("/etc/appliance/appliance.toml")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if named is None:
            return {}
        raise BadSetting(f"The configuration file {path} does not exist.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"The configuration file {path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"The configuration file {path} is not valid TOML: {error}.") from error


def _leaves(struct: type[msgspec.Struct], prefix: str = "") -> dict[str, type]:
    found: dict[str, type] = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if isinstance(base, type) and issubclass(base, msgspec.Struct):
            found |= _leaves(base, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str if get_origin(base) is Literal else base
    return found


def _put(tree: dict[str, Any], name: str, value: object) -> None:
    *tables, leaf = name.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise BadSetting(f"Setting {table} must be a table.", remedy=f"Write [{table}] in the file.")
    tree[leaf] = value


def _parse(text: str, kind: type, where: str) -> str | int | float | bool | list[str]:
    if get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        return kind(text)  # type: ignore[no-any-return]
    except (ValueError, KeyError) as error:
        raise BadSetting(f"{where} must be of type {kind.__name__}, not {text!r}.") from error


def _reject_unknown(tree: Mapping[str, Any], struct: type[msgspec.Struct], prefix: str) -> None:
    hints = get_type_hints(struct)
    for key, value in tree.items():
        if key not in hints:
            raise BadSetting(f"Unknown setting {prefix}{key}.", remedy=_suggest(prefix + key, _leaves(Settings)))
        if isinstance(value, dict) and isinstance(hints[key], type) and issubclass(hints[key], msgspec.Struct):
            _reject_unknown(value, hints[key], f"{key}.")


def _suggest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]}?"
    return "`appliance serve --print-config` shows all settings."
