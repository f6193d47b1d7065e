"""Owns the route of originals: the file that a document was read from, for whoever looks a citation up.

Must not know where originals are kept.

They are foreign files, shown from the address that the console has: what a browser would run or draw on as a page is
never given as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from litestar import Controller, Request, Response, get
from litestar.datastructures import ResponseHeader
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath
from litestar.response import Stream

from appliance.http.conditional import is_known
from appliance.http.given import GivenBackend
from appliance.store.records import Document

_PIECE_BYTES = 1 << 18
# What browsers show without running anything of it. A PDF viewer styles its own page, and does not work in a sandbox.
_SHOWN: Final = {
    "application/pdf": "default-src 'none'; style-src 'unsafe-inline'; object-src 'self'; frame-ancestors 'none'",
    "image/jpeg": "default-src 'none'; sandbox",
    "image/png": "default-src 'none'; sandbox",
    "text/plain": "default-src 'none'; sandbox",
}
_TEXTS: Final = ("text/", "application/json", "application/xml")


class OriginalController(Controller):
    """Files that documents were read from."""

    tags = ("documents",)

    @get(
        "/v1/documents/{document_id:int}/content",
        media_type="application/octet-stream",
        responses={
            200: ResponseSpec(bytes, media_type="application/octet-stream", description="The file"),
            304: ResponseSpec(None, generate_examples=False, description="It is the one named by If-None-Match"),
        },
        response_headers=[ResponseHeader(name="ETag", documentation_only=True)],
    )
    async def content(
        self, request: Request[Any, Any, Any], document_id: FromPath[int], backend: GivenBackend
    ) -> Response[Any]:
        """The file that a document was read from, to the byte: a browser opens `…/content#page=12` of a PDF there.

        Where originals are not kept (`documents.originals = "forget"`), 404.
        """
        document, file = await backend.original(document_id)
        tag = f'"{document.sha256}"'
        headers = {**_headers(document), "ETag": tag}
        if is_known(request, tag):
            file.close()
            return Response(b"", status_code=304, headers=headers)
        headers["Content-Length"] = str(document.size_bytes)
        headers["Content-Type"] = _media_type(document)  # the route's own would win over a reply's media_type
        return Stream(_pieces(file), headers=headers)


def _media_type(document: Document) -> str:
    if document.media_type.startswith(_TEXTS):  # HTML and SVG too: as text, they do nothing
        return f"text/plain; charset={document.encoding or 'utf-8'}"
    return document.media_type


def _headers(document: Document) -> dict[str, str]:
    policy = _SHOWN.get(_media_type(document).partition(";")[0])
    # RFC 6266: the name as it is (RFC 8187), which all browsers know.
    name = quote(document.name, safe="", errors="replace")
    return {
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"{'inline' if policy else 'attachment'}; filename*=UTF-8''{name}",
        "Content-Security-Policy": policy or "default-src 'none'; sandbox",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


async def _pieces(file: BinaryIO) -> AsyncGenerator[bytes]:
    with file:
        while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
            yield piece
