"""The OpenAPI document is whole, and its page shows it with nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest

from appliance.http.app import create_app
from appliance.http.auth_routes import is_open, needed
from appliance.http.openapi import KEY, Document, describe, operations, scopes
from tests.unit.http.backend import ScriptedBackend
from tests.unit.http.test_auth import reaching


@pytest.fixture(scope="module")
def document() -> Document:
    return describe(create_app(ScriptedBackend()))


def schemas(node: Any) -> list[dict[str, Any]]:
    """Every schema of requests and replies."""
    found = []
    if isinstance(node, dict):
        found += [node["schema"]] if isinstance(node.get("schema"), dict) else []
        for part in node.values():
            found += schemas(part)
    elif isinstance(node, list):
        for part in node:
            found += schemas(part)
    return found


def test_every_route_is_described(document: Document) -> None:
    app = create_app(ScriptedBackend())
    served = {
        (route.path_format.rstrip("/"), method.lower())
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "OPTIONS" and not re.match(r"/(openapi\.json|console|docs|$)", route.path_format)
    }
    assert {(path, method) for path, method, _ in operations(document)} == served


def test_every_operation_tells_who_may_and_what_goes_wrong(document: Document) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    for path, method, operation in operations(document):
        where = f"{method} {path}"
        assert operation["description"], where
        assert operation["tags"], where
        if is_open(path):
            assert operation["security"] == [], where
        else:
            grants = {grant for grant in needed(method.upper(), path) if grant != "keys"}
            assert set(scopes(operation)) == grants | {"admin"}, where
            assert {"401", "403", "429", "503"} <= operation["responses"].keys(), where
        if "requestBody" in operation:
            assert {"400", "408", "413", "415"} <= operation["responses"].keys(), where
        for status, reply in operation["responses"].items():
            assert reply["description"] != "Request fulfilled, document follows", where
            if status == "default" or (status[0] in "45" and path != "/readyz"):
                (media,) = reply["content"].values()
                assert media["schema"] == {"$ref": "#/components/schemas/Error"}, where
            if status == "200":
                assert reply["content"], where
                for kind, media in reply["content"].items():
                    assert media["schema"], (where, kind)
    assert document["components"]["securitySchemes"][KEY]["scheme"] == "bearer"


def test_every_schema_is_one_and_every_reference_leads_somewhere(document: Document) -> None:
    known = document["components"]["schemas"]
    for schema in [*schemas(document["paths"]), *known.values()]:
        jsonschema.Draft202012Validator.check_schema(schema)
    for name in re.findall(r"'\$ref': '([^']*)'", str(document)):
        prefix, _, last = name.rpartition("/")
        assert (prefix, last in known) == ("#/components/schemas", True), name


def test_describing_changes_nothing_and_fields_without_types_are_told() -> None:
    app = create_app(ScriptedBackend())
    first = describe(app)
    assert describe(app) == first
    search = first["paths"]["/v1/search"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert search["recall"]["enum"] == [0.9, 0.95, 0.99, "exact", None]
    valid = jsonschema.Draft202012Validator(search["filters"]).is_valid
    assert valid(None) and valid({"type": "in", "key": "a", "value": ["x", 1, True]})
    assert valid({"type": "or", "filters": [{"type": "eq", "key": "a", "value": 1}]})
    assert not valid({}) and not valid({"type": "like", "key": "a", "value": 1})


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action", "srcset")]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.inline += [name for name in given if name == "style" or name.startswith("on")]


async def test_the_page_has_every_route_and_nothing_from_elsewhere(document: Document) -> None:
    async with reaching(create_app(ScriptedBackend())) as client:
        reply = await client.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    page = Page()
    page.feed(reply.text)
    assert not {"script", "iframe", "img", "link", "object", "form"} & set(page.tags)
    assert set(page.links) == {"/openapi.json"}
    assert page.inline == []
    assert len(set(page.ids)) == len(page.ids)
    for path, method, operation in operations(document):
        assert f"<b>{method.upper()}</b> {path}</span>" in reply.text, path
        assert operation["operationId"] in page.ids
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    style = re.search(r"<style>(.*?)</style>", reply.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy["style-src"] == f"'sha256-{digest}'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
