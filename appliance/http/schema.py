"""Owns the description of request bodies in the OpenAPI document.

Must not know any request.

Handlers read their bodies themselves (`body`), so that limits and messages are ours; Litestar, which
describes parameters by their types, cannot see such a body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody


def json_body(kind: type[msgspec.Struct]) -> type[Operation]:
    """The operation class of a route whose body is a `kind` in JSON."""
    return _with_body("application/json", inlined(kind))


def raw_body() -> type[Operation]:
    """The operation class of a route whose body is a file."""
    return _with_body("application/octet-stream", {"type": "string", "format": "binary"})


def inlined(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of `kind` without references; `kind` must not contain itself."""
    schema = msgspec.json.schema(kind)
    definitions = schema.get("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve(definitions[node["$ref"].rpartition("/")[2]])
        # A discriminator maps to references; what it tells, the `enum` of the field tells too.
        return {key: resolve(value) for key, value in node.items() if key not in ("$defs", "discriminator")}

    resolved: dict[str, Any] = resolve(schema)
    return resolved


def _with_body(media_type: str, schema: dict[str, Any]) -> type[Operation]:
    @dataclass
    class WithBody(Operation):
        def __post_init__(self) -> None:
            # The renderer passes plain dictionaries through.
            media = OpenAPIMediaType(schema=schema)  # type: ignore[arg-type]
            self.request_body = RequestBody(content={media_type: media}, required=True)

    return WithBody
