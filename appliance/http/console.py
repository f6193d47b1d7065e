"""Owns `GET /`: the console's files over HTTP, with the policy that keeps its page to this service.

Must not know what is in them.
"""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, Response, get
from litestar.params import FromPath

from appliance.console import PAGE, assets
from appliance.errors import NotFound
from appliance.http.conditional import is_known

# Scripts, styles, words and requests come from and go to this service alone; nothing inline, no frames either way, and
# no text ever becomes a script or markup (Trusted Types).
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked about each time: after an update nobody sees the old page
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class ConsoleController(Controller):
    """The page for the person on site."""

    include_in_schema = False

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self._assets = assets()

    @get("/", sync_to_thread=False)
    def page(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        """The page."""
        return self._reply(request, PAGE)

    @get("/console/{file_name:str}", sync_to_thread=False)
    def file(self, request: Request[Any, Any, Any], file_name: FromPath[str]) -> Response[bytes]:
        """What the page loads. Raises `NotFound` for what is none of the console's files."""
        return self._reply(request, file_name)

    def _reply(self, request: Request[Any, Any, Any], name: str) -> Response[bytes]:
        asset = self._assets.get(name)
        if asset is None:
            raise NotFound("The console has no such file.", remedy="GET / is its page.")
        tag = f'"{asset.sha256[:32]}"'
        headers = {**HEADERS, "ETag": tag}
        if is_known(request, tag):
            return Response(b"", status_code=304, media_type=asset.media_type, headers=headers)
        return Response(asset.data, media_type=asset.media_type, headers=headers)
