"""Owns who a request comes from: its API key, what that may do, how often, and how much at once.

Must not know routes (`auth_routes` does), nor how keys are kept (`store.keys`).

    no key needed (loopback, unix socket)  ─▶ anybody
    key seen before, right or wrong        ─▶ known by the SHA-256 of its text
    key not seen before                    ─▶ one slow hash, shared by all who come with it meanwhile, one at a time

What a key may do is looked up with each request: a revoked one is refused from that moment on.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final, Literal

import msgspec

from appliance.errors import ApplianceError, BadRequest, Overloaded
from appliance.http.ports import Backend
from appliance.store.keys import PREFIX, ApiKey, split

Grant = Literal["query", "ingest", "admin", "keys"]  # keys: make and revoke them
ALL: Final[frozenset[Grant]] = frozenset({"query", "ingest", "admin", "keys"})

REMEMBERED = 4096  # texts of keys, right ones and wrong ones
CHECKS_WAITING = 32  # slow hashes; each takes a twentieth of a second


class Unauthorized(ApplianceError):
    """The request has no API key that is good."""

    code, status, kind = "invalid_api_key", 401, "invalid_request_error"


class MissingScope(ApplianceError):
    """The request's API key is good, but not for this."""

    code, status, kind = "missing_scope", 403, "invalid_request_error"


class RateLimited(Overloaded):
    """The API key was used more often, or for more at once, than it may be."""

    code = "rate_limit_exceeded"


class Caller(msgspec.Struct, frozen=True):
    """Who asks."""

    grants: frozenset[Grant]
    key: ApiKey | None = None

    @property
    def label(self) -> str:
        """What its part of all caches goes by: nothing is shared with callers of another label."""
        return "" if self.key is None else self.key.id


# Who may open the socket's file is said by its mode. A port of this machine is open to all who have an account on it:
# nobody of them shall make a key that works from elsewhere.
ON_SOCKET = Caller(ALL)
ON_LOOPBACK = Caller(ALL - {"keys"})


class Access:
    """Tells callers by their keys, and counts what they do. For one event loop.

    Attributes:
        exposed: the service listens beyond loopback, so that a port needs keys.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.exposed = False
        # Apart, so that no flood of wrong ones drives the right ones out.
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._checking: dict[bytes, asyncio.Task[bool]] = {}
        self._turn = asyncio.Semaphore(1)
        self._meters: dict[str, Meter] = {}

    def needs_key(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether requests that come this way need a key."""
        required = self._backend.settings.server.require_keys
        if on_socket(scope):
            return required == "always"
        return self.exposed or required != "network"

    async def caller(self, scope: MutableMapping[str, Any], given: Sequence[str]) -> Caller:
        """Who makes a request whose `Authorization` headers are `given`.

        Raises:
            BadRequest: there are several.
            Unauthorized: a key is needed and not there, or is not good.
            RateLimited: too many keys that were never seen before come at once.
        """
        if len(given) > 1:
            raise BadRequest("There is more than one Authorization header.")
        scheme, _, token = given[0].strip().partition(" ") if given else ("", "", "")
        token = token.strip() if scheme.lower() == "bearer" else ""
        # Clients that insist on a key send anything where none is needed.
        if not token.startswith(PREFIX) and not self.needs_key(scope):
            return ON_SOCKET if on_socket(scope) else ON_LOOPBACK
        if not token:
            raise Unauthorized("This service needs an API key.", remedy=_SEND)
        key = await self._key_of(token)
        if key is None:
            raise Unauthorized("The API key is not known here.", remedy=_SEND)
        state = key.state()
        if state != "active":
            said = "has expired" if state == "expired" else "was revoked"
            raise Unauthorized(f"The API key {key.name!r} {said}.", remedy=_SEND)
        return Caller(grants_of(key), key)

    def enter(self, caller: Caller) -> Callable[[], None]:
        """Count a request in; returns what counts it out.

        Raises:
            RateLimited: its key may not now.
        """
        key = caller.key
        if key is None or (key.rate_per_min is None and key.concurrency is None):
            return _nothing
        meter = self._meters.get(key.id)
        if meter is None:
            meter = self._meters[key.id] = Meter(key.rate_per_min, key.concurrency)
        meter.enter(time.monotonic())
        return meter.leave

    async def _key_of(self, token: str) -> ApiKey | None:
        parts = split(token)
        if parts is None:
            return None
        key_id, secret = parts
        key = self._backend.key_table.get(key_id)
        # An id is as good as secret, 64 random bits: that one is not there may be told by the time it takes.
        if key is None:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        if digest in self._right:
            self._right.move_to_end(digest)
            return key
        if digest in self._wrong:
            return None
        checking = self._checking.get(digest)
        if checking is None:
            if len(self._checking) >= CHECKS_WAITING:
                raise RateLimited("Too many API keys are being checked.")
            checking = self._checking[digest] = asyncio.create_task(self._check(digest, key_id, secret))
            checking.add_done_callback(lambda _: self._checking.pop(digest))
        # Whoever came first may leave: the others still wait for it.
        return key if await asyncio.shield(checking) else None

    async def _check(self, digest: bytes, key_id: str, secret: str) -> bool:
        async with self._turn:
            right = await asyncio.to_thread(self._backend.key_table.matches, key_id, secret)
        known = self._right if right else self._wrong
        known[digest] = None
        if len(known) > REMEMBERED:
            known.popitem(last=False)
        return right


class Meter:
    """The limits of one key: `rate_per_min` requests at once and as many in each minute after, `most` under way."""

    def __init__(self, rate_per_min: int | None, most: int | None) -> None:
        self._rate = rate_per_min
        self._most = most
        self._left = float(rate_per_min or 0)  # requests that may come now
        self._at: float | None = None  # when `_left` was so
        self.running = 0

    def enter(self, now: float) -> None:
        """One more request, at `now` (seconds, of any clock that never goes back). Raises `RateLimited`."""
        if self._most is not None and self.running >= self._most:
            raise RateLimited(
                f"This API key is used for {self.running} requests at once already; it may be for {self._most}.",
                remedy="Wait for one of them to end.",
            )
        if self._rate is not None:
            a_second = self._rate / 60
            if self._at is not None:
                self._left = min(self._rate, self._left + (now - self._at) * a_second)
            self._at = now
            if self._left < 1 - _ROUNDING:
                raise RateLimited(
                    f"This API key may be used {self._rate} times a minute.",
                    retry_after_s=math.ceil((1 - self._left) / a_second),
                    remedy="Wait as long as Retry-After says.",
                )
            self._left -= 1
        self.running += 1

    def leave(self) -> None:
        """A request ended."""
        self.running -= 1


def on_socket(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request came over the unix socket."""
    server = scope.get("server")  # an address and a port, a path and None; nothing where that is not known
    return server is not None and server[1] is None


def grants_of(key: ApiKey) -> frozenset[Grant]:
    """What the scopes of a key come to."""
    return ALL if "admin" in key.scopes else frozenset(key.scopes)


def _nothing() -> None:
    pass


_ROUNDING = 1e-6
_SEND = "Send `Authorization: Bearer apl_…`; on the machine itself, `appliance keys create` makes a key."
