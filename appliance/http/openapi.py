"""Owns the whole OpenAPI document: what Litestar reads from the handlers, and what they cannot tell it.

Must not know how the document is shown (`docs` does), nor what the routes do.

Added are the shape of errors, who may call what, the replies of handlers that write them themselves, and what values
may stand in fields that are checked beyond their types.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final, get_args

import msgspec
from litestar import Litestar, Request
from litestar.openapi.plugins import JsonRenderPlugin

from appliance.documents.ingest import Outcome
from appliance.http.ask import Answer
from appliance.http.auth_routes import is_open, needed
from appliance.http.chat import Completion
from appliance.http.responses_reply import ResponseObject
from appliance.http.schema import inlined
from appliance.store.attributes import Junction, Operator
from appliance.store.records import RECALL_TARGETS

Document = dict[str, Any]

ABOUT: Final = (
    "Answers from the documents on this machine, with numbered citations, and OpenAI's routes beside them. All errors "
    "have OpenAI's shape. Where a key is needed (from other machines, and where `server.require_keys` says so), it "
    "goes into the header `Authorization: Bearer apl_…`; `appliance keys create` makes one."
)
KEY: Final = "apiKey"
_SCHEME: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key. Each route names the scopes of which it must have one; `admin` has the others in it.",
}
_ERROR: Final = {
    "title": "Error",
    "description": "What went wrong, and what to do about it.",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param"],
            "properties": {
                "message": {"type": "string", "description": "a sentence, with what to do"},
                "type": {"type": "string", "description": "OpenAI's kind of error"},
                "code": {"type": "string", "description": "a name that stays the same"},
                "param": {"type": ["string", "null"], "description": "the field, parameter or setting at fault"},
            },
        }
    },
}
_WHAT: Final = {
    400: "The request is at fault; `param` names the field.",
    401: "A key is needed and not there, or is not good.",
    403: "The key has not the scope, or a web page of another origin asks.",
    404: "What is named is not there.",
    408: "The request came too slowly.",
    409: "It cannot be done in the state that things are in.",
    413: "The body is too large.",
    415: "The body is compressed.",
    422: "The content cannot be used.",
    429: "The limit of the key is reached, or too many wait; `Retry-After` says when to try again.",
    503: "The service starts, stops or is full; `Retry-After` says when to try again.",
}
_ALWAYS: Final = (429, 503)
_GUARDED: Final = (401, 403)
_WITH_BODY: Final = (400, 408, 409, 413, 415, 422)
_RETRY: Final = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}}
_ID: Final = {
    "X-Request-Id": {"description": "the request's, or one made for it", "schema": {"type": "string"}},
}

_EVENTS: Final = {"description": "server-sent events, until the last one or an `error`"}
# Replies of handlers that write them themselves.
_REPLIES: Final[dict[tuple[str, str], dict[str, Document]]] = {
    ("post", "/v1/ask"): {"application/json": inlined(Answer), "text/event-stream": _EVENTS},
    ("post", "/v1/chat/completions"): {"application/json": inlined(Completion), "text/event-stream": _EVENTS},
    ("post", "/v1/responses"): {"application/json": inlined(ResponseObject), "text/event-stream": _EVENTS},
    ("get", "/v1/responses/{response_id}"): {"application/json": inlined(ResponseObject)},
    ("put", "/v1/collections/{collection_name}/documents"): {"application/json": inlined(Outcome)},
}
_READINESS: Final = "/readyz"  # its 503 has the shape of its 200

_VALUE: Final = {"type": ["string", "number", "boolean"]}
# Fields of requests whose types say nothing: see `store.attributes`, `store.rows`.
_FIELDS: Final[dict[str, Document]] = {
    "filters": {
        "description": "Documents by their attributes. A filter of `and` or `or` has further ones in it.",
        "anyOf": [
            {
                "type": "object",
                "required": ["type", "key", "value"],
                "properties": {
                    "type": {"enum": list(get_args(Operator))},
                    "key": {"type": "string"},
                    "value": {"anyOf": [_VALUE, {"type": "array", "items": _VALUE}]},
                },
                "additionalProperties": False,
            },
            {
                "type": "object",
                "required": ["type", "filters"],
                "properties": {
                    "type": {"enum": list(get_args(Junction))},
                    "filters": {"type": "array", "minItems": 1, "items": {"type": "object"}},
                },
                "additionalProperties": False,
            },
            {"type": "null"},
        ],
    },
    "recall": {
        "description": "The share of the nearest passages that a search must find; null: the default.",
        "enum": [*RECALL_TARGETS, None],
    },
}


def describe(app: Litestar) -> Document:
    """The OpenAPI 3.1 document of an application."""
    document: Document = copy.deepcopy(app.openapi_schema.to_schema())  # it shares the schemas of bodies
    document["info"]["description"] = ABOUT
    components = document.setdefault("components", {})
    components["securitySchemes"] = {KEY: _SCHEME}
    components.setdefault("schemas", {})["Error"] = _ERROR
    for path, method, operation in operations(document):
        _complete(path, method, operation)
    return document


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    """Path, method in lower case, and description of every operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def scopes(operation: Document) -> list[str]:
    """The scopes of which one opens a described operation; empty for one that is open to all."""
    return [scope for way in operation["security"] for scope in way.get(KEY, ())]


def _complete(path: str, method: str, operation: Document) -> None:
    opened = is_open(path)
    grants = sorted({"admin" if grant == "keys" else grant for grant in needed(method.upper(), path)} | {"admin"})
    # The empty one: where none is needed, as on the machine itself.
    operation["security"] = [] if opened else [{KEY: grants}, {}]
    body = operation.get("requestBody", {}).get("content", {})
    for media in body.values():
        _tell_fields(media["schema"])
    parameters = operation.get("parameters", ())
    replies = operation["responses"]
    for status, reply in replies.items():
        reply["description"] = HTTPStatus(int(status)).phrase if status.isdigit() else reply["description"]
        reply["headers"] = {**reply.get("headers", {}), **_ID}
        if status.startswith("2") and (method, path) in _REPLIES:
            reply["content"] = {kind: {"schema": schema} for kind, schema in _REPLIES[method, path].items()}
    statuses = [*(_WITH_BODY if body else ()), *(() if opened else (*_GUARDED, *_ALWAYS))]
    statuses += [400, 404] if parameters else []
    for status in sorted(set(statuses)):
        replies[str(status)] = _error(_WHAT[status], retry=status in _ALWAYS)
    if path == _READINESS:
        replies["503"] = {**replies["200"], "description": "Not yet, or not any more."}
    replies["default"] = _error("Any other error.", retry=False)


def _error(what: str, *, retry: bool) -> Document:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": what, "headers": {**_ID, **(_RETRY if retry else {})}, "content": content}


def _tell_fields(schema: Any) -> None:
    if isinstance(schema, list):
        for part in schema:
            _tell_fields(part)
    elif isinstance(schema, dict):
        properties = schema.get("properties", {})
        for name, told in _FIELDS.items():
            if name in properties and not properties[name].keys() - {"default"}:
                properties[name] = {**properties[name], **told}
        for part in schema.values():
            _tell_fields(part)


class WholeDocument(JsonRenderPlugin):
    """Serves the whole document where Litestar would serve its own part of it."""

    _body: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The document in JSON; made once, since nothing in it changes."""
        if self._body is None:
            self._body = msgspec.json.encode(describe(request.app))
        return self._body
