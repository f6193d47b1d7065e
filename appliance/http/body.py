"""Owns reading request bodies: limits of size and patience, and JSON into typed requests.

Must not know what the requests are for.
"""

from __future__ import annotations

import asyncio
import difflib
import io
import re
from typing import Any, TypeVar

import msgspec
from litestar import Request

from appliance.errors import ApplianceError, BadRequest, TooLarge
from appliance.http.lifecycle import Lifecycle, stopping_error
from appliance.http.problems import ClientGone

# A body may take this long, plus a second for each kibibyte that came: a trickle ends, a slow line does not.
BODY_PATIENCE_S = 20.0
BODY_BYTES_PER_S = 1024

_PATH = re.compile(r" - at `(?:key in )?\$?\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<key>[^`]*)`")

Wire = TypeVar("Wire", bound=msgspec.Struct)
AnyRequest = Request[Any, Any, Any]


class SlowBody(ApplianceError):
    """The client sends its body too slowly."""

    code, status, kind = "request_timeout", 408, "invalid_request_error"


class UnsupportedEncoding(ApplianceError):
    """The body is compressed."""

    code, status, kind = "unsupported_encoding", 415, "invalid_request_error"


async def read(request: AnyRequest, limit_bytes: int, lifecycle: Lifecycle, *, what: str) -> bytes:
    """The whole body.

    Raises:
        TooLarge: it is announced as, or is, more than `limit_bytes`.
        SlowBody: it trickles.
        UnsupportedEncoding: it is compressed.
        Unavailable: the service stops before it is whole.
        ClientGone: the client left before it was whole.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedEncoding("Compressed bodies are not read.", remedy="Send it without Content-Encoding.")
    announced = request.headers.get("content-length", "0")
    if not announced.isascii() or not announced.isdigit() or int(announced) > limit_bytes:
        raise _too_large(what, limit_bytes)
    buffer = io.BytesIO()
    loop = asyncio.get_running_loop()
    began = loop.time()
    reading = asyncio.current_task()
    assert reading is not None  # noqa: S101  # coroutines run in tasks
    unwatch = lifecycle.watch(reading.cancel)
    try:
        more = True
        while more:
            async with asyncio.timeout_at(began + BODY_PATIENCE_S + buffer.tell() / BODY_BYTES_PER_S):
                message = await request.receive()
            if message["type"] != "http.request":
                raise ClientGone
            buffer.write(message["body"])
            if buffer.tell() > limit_bytes:
                raise _too_large(what, limit_bytes)
            more = message["more_body"]
    except TimeoutError as error:
        raise SlowBody("The body came too slowly.", remedy="Send it again over a better connection.") from error
    except asyncio.CancelledError:
        if lifecycle.is_cut:
            reading.uncancel()
            raise stopping_error() from None
        raise
    finally:
        unwatch()
    # Without a copy as long as nothing else holds the buffer.
    return buffer.getvalue()


def _too_large(what: str, limit_bytes: int) -> TooLarge:
    return TooLarge(f"The {what} is larger than the limit of {limit_bytes} bytes.", remedy="Send less at once.")


def decode(data: bytes, kind: type[Wire]) -> Wire:
    """JSON as a `kind`, with strict types.

    Raises:
        BadRequest: it is not JSON, or not of that shape; names the field and, for an unknown one, the
            likeliest meant.
    """
    if not data:
        raise BadRequest("The body is empty; a JSON object is expected.")
    try:
        return msgspec.json.decode(data, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), kind) from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from error
    except UnicodeDecodeError as error:
        raise BadRequest("The body is not valid UTF-8.") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.") from error


def _invalid(text: str, kind: type[msgspec.Struct]) -> BadRequest:
    found = _PATH.search(text)
    # msgspec does not say which item of a list it was.
    path = found["path"].replace("[...]", "[]") if found else ""
    unknown = _UNKNOWN.match(text)
    if unknown is None:
        message = text[: found.start()] if found else text
        missing = re.search(r"missing required field `([^`]*)`", message)
        name = _join(path, missing[1]) if missing else path
        return BadRequest(f"{name}: {message}." if name else f"{message}.", param=name or None)
    key = unknown["key"]
    name = _join(path, key)
    close = difflib.get_close_matches(key, _fields(kind, path), n=1, cutoff=0.5)
    remedy = f"Did you mean {close[0]}?" if close else "GET /openapi.json describes this request."
    return BadRequest(f"Unknown field {name}.", remedy=remedy, param=name)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _fields(kind: type[msgspec.Struct], path: str) -> list[str]:
    """The fields that an object at `path` inside a `kind` may have."""
    here: Any = msgspec.inspect.type_info(kind)
    for step in path.split(".") if path else ():
        name, bracket, _ = step.partition("[")
        fields = {field.encode_name: field.type for field in getattr(_struct(here), "fields", ())}
        here = fields.get(name)
        if bracket:
            options = getattr(here, "types", (here,))
            here = next((getattr(o, "item_type", None) for o in options if hasattr(o, "item_type")), None)
    return [field.encode_name for field in getattr(_struct(here), "fields", ())]


def _struct(info: Any) -> Any:
    options = getattr(info, "types", (info,))
    return next((option for option in options if isinstance(option, msgspec.inspect.StructType)), None)
