"""Owns `GET /docs`: the OpenAPI document as a page to read.

Must not know what the document says.

No script and nothing from elsewhere: the page is whole, works without a network, and its policy allows nothing more.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Controller, Request, Response, get

from appliance.http.openapi import Document, describe, operations, scopes

STYLE: Final = """
:root { color-scheme: light dark; --line: #8885; --dim: #8889 }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre, .route { font-family: ui-monospace, monospace; font-size: .9em }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer; overflow-wrap: anywhere }
summary:focus-visible, a:focus-visible { outline: 3px solid #47c; outline-offset: 2px }
table { border-collapse: collapse; width: 100%; font-size: .9em }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-top: 1px solid var(--line) }
td { overflow-wrap: anywhere }
.scroll { overflow-x: auto }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src 'sha256-{_HASH}'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }} {{ info.version }}: API</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<h1>{{ info.title }} {{ info.version }}: API</h1>
<p>{{ info.description }}</p>
<p>The same for programs: <a href="/openapi.json">/openapi.json</a></p>
{% for tag, routes in tags.items() %}
<h2 id="{{ tag }}">{{ tag }}</h2>
{% for route in routes %}
<details id="{{ route.id }}">
<summary><span class="route"><b>{{ route.method }}</b> {{ route.path }}</span> {{ route.about }}</summary>
<p>{{ "A key with the scope " ~ route.scopes | join(" or ") ~ ", where one is needed." if route.scopes else
"Open to all." }}</p>
{% for title, rows in route.tables %}
<h3>{{ title }}</h3>
<div class="scroll" role="region" aria-label="{{ title }} of {{ route.method }} {{ route.path }}" tabindex="0">
<table>
<thead><tr><th scope="col">name</th><th scope="col">type</th><th scope="col"></th></tr></thead>
<tbody>
{% for row in rows %}
<tr><td><code>{{ row.name }}</code></td><td>{{ row.type }}</td><td>{{ row.note }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
{% endfor %}
<h3>Replies</h3>
<div class="scroll" role="region" aria-label="Replies of {{ route.method }} {{ route.path }}" tabindex="0">
<table>
<thead><tr><th scope="col">status</th><th scope="col">content</th><th scope="col"></th></tr></thead>
<tbody>
{% for row in route.replies %}
<tr><td>{{ row.name }}</td><td>{{ row.type }}</td><td>{{ row.note }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
</details>
{% endfor %}
{% endfor %}
</main>
</body>
</html>
"""
_DEEPEST: Final = 4  # levels of fields; below them the document itself says more
_LIMITS: Final = ("minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")


class Row(NamedTuple):
    """A line of a table."""

    name: str
    type: str
    note: str


class DocsController(Controller):
    """The page."""

    include_in_schema = False

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self._page: str | None = None

    @get("/docs", sync_to_thread=False)
    def page(self, request: Request[Any, Any, Any]) -> Response[str]:
        """The API as a page; made once, since nothing in it changes."""
        if self._page is None:
            self._page = render(describe(request.app))
        return Response(self._page, media_type="text/html", headers=HEADERS)


def render(document: Document) -> str:
    """The page of an OpenAPI document."""
    import jinja2  # a page that few ask for

    tags: dict[str, list[dict[str, Any]]] = {}
    for path, method, operation in operations(document):
        tags.setdefault(operation["tags"][0], []).append(_route(path, method, operation, document))
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(PAGE)
    return template.render(info=document["info"], style=STYLE, tags=dict(sorted(tags.items())))


def _route(path: str, method: str, operation: Document, document: Document) -> dict[str, Any]:
    tables = []
    if parameters := operation.get("parameters"):
        tables.append(("Parameters", [_parameter(parameter, document) for parameter in parameters]))
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        rows = list(_fields(media["schema"], document))
        tables.append((f"Body: {kind}", rows or [Row("", _type(media["schema"], document), "")]))
    for kind, media in operation["responses"].get("200", {}).get("content", {}).items():
        if rows := list(_fields(media["schema"], document)):
            tables.append((f"Reply: {kind}", rows))
    replies = [
        Row(status, ", ".join(reply.get("content", ())), reply["description"])
        for status, reply in operation["responses"].items()
    ]
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "about": operation.get("description") or operation["summary"],
        "scopes": scopes(operation),
        "tables": tables,
        "replies": replies,
    }


def _parameter(parameter: Document, document: Document) -> Row:
    notes = [f"in the {parameter['in']}", *(["needed"] if parameter.get("required") else [])]
    return Row(parameter["name"], _type(parameter["schema"], document), "; ".join(notes))


def _fields(schema: Document, document: Document, prefix: str = "", depth: int = 1) -> Iterator[Row]:
    schema = _resolved(schema, document)
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        told = _resolved(field, document)
        notes = ["needed"] if name in required and not prefix else []
        if "default" in field:
            notes.append(f"default {_json(field['default'])}")
        notes += [f"{limit} {told[limit]}" for limit in _LIMITS if limit in told]
        if told.get("description"):
            notes.append(" ".join(told["description"].split()))
        yield Row(f"{prefix}{name}", _type(field, document), "; ".join(notes))
        if depth < _DEEPEST:
            for inner, where in _inner(told, document):
                yield from _fields(inner, document, f"{prefix}{name}{where}.", depth + 1)


def _inner(schema: Document, document: Document) -> Iterator[tuple[Document, str]]:
    """The objects in a field: itself, one of several, or items of a list."""
    options = [_resolved(option, document) for option in schema.get("anyOf", (schema,))]
    for option in options:
        if "properties" in option:
            yield option, ""
        elif "items" in option:
            for inner, where in _inner(_resolved(option["items"], document), document):
                yield inner, f"[]{where}"


def _type(schema: Document, document: Document) -> str:
    schema = _resolved(schema, document)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(option, document) for option in schema[several]))
    if "enum" in schema:
        return ", ".join(_json(value) for value in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}), document)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _resolved(schema: Document, document: Document) -> Document:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
