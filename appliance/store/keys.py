"""Owns the table of API keys: what each may do, until when and how often, and the hashes of their secrets.

Must not know requests, nor who waits for an answer.

A key is `apl_<id>_<secret>`. The id (64 bits) finds the row; of the secret (256 bits) only a scrypt hash is kept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from appliance.errors import ApplianceError, BadRequest, NotFound
from appliance.store.connections import Connections, translated

Scope = Literal["query", "ingest", "admin"]
KeyState = Literal["active", "expired", "revoked"]
KeyId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
PREFIX = "apl_"
LONGEST_NAME = 100
MOST = 1_000_000  # requests a minute, and at once

# 16 MiB and some 50 ms. A secret of 256 random bits would be safe behind any hash; this one is for a file that leaks
# on a small machine that must go on answering.
_LOG2_N, _R, _P = 14, 8, 1
_MAX_MEMORY = 64 << 20
_TOKEN = re.compile(rf"{PREFIX}([0-9a-f]{{16}})_([A-Za-z0-9_-]{{43}})")
_COLUMNS = "id, name, scopes, created_at, expires_at, revoked_at, rate_per_min, concurrency"
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


class KeyExists(ApplianceError):
    """Another key that is not revoked has that name."""

    code, status, kind = "key_exists", 409, "invalid_request_error"


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that is wanted."""

    name: str  # who or what uses it; of one key at a time
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1)]  # "admin" has the others in it
    expires_at: str | None = None  # ISO 8601, UTC when it has no offset; None: never
    rate_per_min: Annotated[int, Meta(ge=1, le=MOST)] | None = None  # requests; None: no limit
    concurrency: Annotated[int, Meta(ge=1, le=MOST)] | None = None  # requests at once; None: no limit


class ApiKey(msgspec.Struct, frozen=True):
    """A key as it may be shown."""

    id: KeyId
    name: str
    scopes: tuple[Scope, ...]
    created_at: str  # ISO 8601, UTC, milliseconds: as all three, so that they compare as texts
    expires_at: str | None
    revoked_at: str | None
    rate_per_min: int | None
    concurrency: int | None

    def state(self) -> KeyState:
        """Whether it is good now, by this machine's clock."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= _now() else "active"


class CreatedKey(msgspec.Struct, frozen=True):
    """A key that was made just now."""

    key: ApiKey
    secret: str  # the whole `apl_<id>_<secret>`: kept nowhere, so told this once


class KeyTable:
    """The keys of one store; usable from several threads. What changes them is on disk when it returns.

    They are few and asked for with every request, so they are held in memory too: only this process changes them.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._changing = threading.Lock()
        with connections.reading() as reader:
            found = reader.execute(f"SELECT {_COLUMNS}, hash FROM keys").fetchall()  # noqa: S608 - constants alone
        self._known = {row[0]: (_of(row[:-1]), str(row[-1])) for row in found}

    def create(self, wanted: NewKey) -> CreatedKey:
        """Make a key.

        Raises:
            BadRequest: its name or its end cannot be.
            KeyExists: a key that is not revoked has the name.
        """
        _check_name(wanted.name)
        secret = secrets.token_urlsafe(32)
        kept = _hash(secret)
        with self._changing:
            key = ApiKey(
                secrets.token_hex(8),
                wanted.name,
                tuple(dict.fromkeys(wanted.scopes)),
                _now(),
                None if wanted.expires_at is None else _moment(wanted.expires_at),
                None,
                wanted.rate_per_min,
                wanted.concurrency,
            )
            if key.state() == "expired":
                raise BadRequest("The key would have expired already.", param="expires_at")
            if any(other.name == key.name and other.revoked_at is None for other, _ in self._known.values()):
                raise KeyExists(
                    f"There is a key named {key.name!r} already.",
                    remedy="Revoke it first, or choose another name.",
                    param="name",
                )
            with self._connections.writing() as writer:
                writer.execute(
                    f"INSERT INTO keys ({_COLUMNS}, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                    (
                        key.id,
                        key.name,
                        msgspec.json.encode(key.scopes).decode(),
                        key.created_at,
                        key.expires_at,
                        key.revoked_at,
                        key.rate_per_min,
                        key.concurrency,
                        kept,
                    ),
                )
            self._known[key.id] = (key, kept)
        return CreatedKey(key, f"{PREFIX}{key.id}_{secret}")

    def list(self) -> Sequence[ApiKey]:
        """All keys, those that expired or were revoked too, the newest first."""
        return sorted((key for key, _ in tuple(self._known.values())), key=lambda key: key.created_at, reverse=True)

    def get(self, key_id: str) -> ApiKey | None:
        """The key of that id, good or not; from memory."""
        found = self._known.get(key_id)
        return found[0] if found else None

    def revoke(self, key_id: str) -> ApiKey:
        """End a key for good; from the return on it opens nothing. One that was revoked stays as it is.

        Raises:
            NotFound: there is none with that id.
        """
        with self._changing:
            found = self._known.get(key_id)
            if found is None:
                raise NotFound(f"There is no key {key_id:.40}.", remedy="`appliance keys list` shows all of them.")
            key, kept = found
            if key.revoked_at is None:
                key = msgspec.structs.replace(key, revoked_at=_now())
                with self._connections.writing() as writer:
                    writer.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", (key.revoked_at, key_id))
                self._known[key_id] = (key, kept)
            return key

    def matches(self, key_id: str, secret: str) -> bool:
        """Whether `secret` is that key's. Slow on purpose: a tenth of a second, and 16 MiB."""
        found = self._known.get(key_id)
        return found is not None and _is_hash_of(found[1], secret)


def split(token: str) -> tuple[str, str] | None:
    """Id and secret of a key's text; None for what has not the form of one."""
    found = _TOKEN.fullmatch(token)
    return (found[1], found[2]) if found else None


def any_active(path: Path) -> bool:
    """Whether the store file `path` has a key that is good now; reads only, and makes no file.

    Raises:
        StoreDamaged: it is no store.
    """
    if not path.exists():
        return False
    with translated(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reader:
        if reader.execute("SELECT 1 FROM sqlite_master WHERE name = 'keys'").fetchone() is None:
            return False  # of an older program
        found = reader.execute(f"SELECT {_COLUMNS} FROM keys").fetchall()  # noqa: S608
    return any(_of(row).state() == "active" for row in found)


def _of(row: Sequence[Any]) -> ApiKey:
    fields = dict(zip(ApiKey.__struct_fields__, row, strict=True))
    return msgspec.convert({**fields, "scopes": msgspec.json.decode(fields["scopes"])}, ApiKey)


def _hash(secret: str) -> str:
    salt = secrets.token_bytes(16)
    parts = (salt, _scrypt(secret, salt, _LOG2_N, _R, _P))
    return "$".join(["scrypt", str(_LOG2_N), str(_R), str(_P), *(base64.b64encode(part).decode() for part in parts)])


def _is_hash_of(kept: str, secret: str) -> bool:
    _, log2_n, r, p, salt, digest = kept.split("$")
    made = _scrypt(secret, base64.b64decode(salt), int(log2_n), int(r), int(p))
    return hmac.compare_digest(made, base64.b64decode(digest))


def _scrypt(secret: str, salt: bytes, log2_n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=1 << log2_n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=32)


def _check_name(name: str) -> None:
    good = 0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip() and "\ufffd" not in name
    if not good:
        raise BadRequest(
            f"{name[:LONGEST_NAME]!r} cannot be the name of a key.",
            remedy=f"Use 1 to {LONGEST_NAME} visible characters, with no space at either end.",
            param="name",
        )


def _moment(text: str) -> str:
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError(text)
        moment = datetime.fromisoformat(text)
        return _iso(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment)
    except (ValueError, OverflowError) as error:
        raise BadRequest(
            f"{text!r:.60} is no moment.", remedy="Write it as 2027-01-31 or 2027-01-31T18:00:00Z.", param="expires_at"
        ) from error


def _now() -> str:
    return _iso(datetime.now(UTC))


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
