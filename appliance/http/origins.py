"""Owns which web pages may use the service: its own, and those of origins that the settings list.

Must not know routes or keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import ApplianceError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS = b"GET, POST, PUT, PATCH, DELETE"
_SENT = b"authorization, content-type, x-request-id, traceparent, tracestate"
_SHOWN = b"x-request-id, server-timing, retry-after"
_KNOWN_FOR_S = b"600"

RawHeaders = list[tuple[bytes, bytes]]


class Forbidden(ApplianceError):
    """The request comes from where it may not come from."""

    code, status, kind = "forbidden", 403, "invalid_request_error"


class Origins:
    """The pages that may use the service. Origins compare by letter: browsers write each in one way."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def check(self, method: str, origins: Sequence[str], host: str) -> None:
        """Refuse a request that changes something and that a page of another origin makes.

        Raises:
            Forbidden: `Origin` is there (browsers alone send it), and neither the service's own nor allowed.
        """
        if method in SAFE_METHODS:
            return
        own = {f"http://{host}".lower(), f"https://{host}".lower()}
        if any(origin.lower() not in own | self._allowed for origin in origins):
            raise Forbidden(
                "Pages of other origins may not use this service.",
                remedy="Call it from a program instead, or list the origin in server.cors_origins.",
            )

    def headers(self, origins: Sequence[str]) -> RawHeaders:
        """What lets the browser show a reply to the page that asked; nothing for a page that may not."""
        if not self._allowed:
            return []
        vary = (b"vary", b"Origin")  # what is cached for one page is not for another
        if len(origins) != 1 or origins[0].lower() not in self._allowed:
            return [vary]
        return [
            vary,
            (b"access-control-allow-origin", origins[0].encode("latin-1")),
            (b"access-control-expose-headers", _SHOWN),
        ]

    def preflight(self, method: str, origins: Sequence[str], asked: str) -> RawHeaders | None:
        """The reply to a browser that asks, before it sends a page's request, whether it may; None for all else."""
        headers = self.headers(origins)
        if method != "OPTIONS" or not asked or len(headers) < 2:
            return None
        return [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _SENT),
            (b"access-control-max-age", _KNOWN_FOR_S),
        ]
