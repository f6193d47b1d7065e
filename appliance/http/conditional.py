"""Owns whether a client has what it asks for already (RFC 9110, If-None-Match).

Must not know what is asked for.
"""

from __future__ import annotations

from typing import Any

from litestar import Request


def is_known(request: Request[Any, Any, Any], tag: str) -> bool:
    """Whether the reply of the entity tag `tag`, with its quotes, need not be sent again."""
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    return tag in known or "*" in known
