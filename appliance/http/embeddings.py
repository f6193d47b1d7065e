"""Owns `POST /v1/embeddings`, as OpenAI's clients send and read it.

Must not know how texts become vectors.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Response, post
from msgspec import Meta

from appliance.errors import BadRequest, PromptTooLong
from appliance.http import body
from appliance.http.chat_request import ALIASES, UnknownModel
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.ports import Backend, ModelInfo
from appliance.http.schema import json_body

MOST_TEXTS = 2048  # OpenAI's limit
InputType = Literal["query", "passage"]
Ids = Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(min_length=1)]


class EmbeddingsExtension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What OpenAI's requests have no field for: whether texts are what is searched, or what is searched for."""

    input_type: InputType = "passage"


class EmbeddingsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts, or token ids of the embedder's own vocabulary. `dimensions` may only be what the model has."""

    input: str | list[Any]  # of texts, or of ids, or of lists of ids: told apart below
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None  # changes nothing
    appliance: EmbeddingsExtension | None = None


class Embedded(msgspec.Struct, frozen=True):
    """The vector of the text at `index`: numbers, or the base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingsUsage(msgspec.Struct, frozen=True):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """Vectors of length 1, in the order of the texts."""

    data: list[Embedded]
    model: str
    usage: EmbeddingsUsage
    object: str = "list"


class EmbeddingsController(Controller):
    """Vectors of given texts."""

    tags = ("answers",)

    @post("/v1/embeddings", status_code=200, operation_class=json_body(EmbeddingsBody))
    async def embed(
        self,
        request: Request[Any, Any, Any],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Response[EmbeddingList]:
        """The vectors of the request's texts."""
        data = await body.read(request, backend.settings.server.max_body_bytes, lifecycle, what="request")
        asked = body.decode(data, EmbeddingsBody)
        model = next(model for model in backend.models() if model.role == "embedder")
        _check(asked, model, backend.dimensions())
        texts = await _texts(asked.input, backend)
        counts = await backend.count_tokens(texts)
        for place, (text, count) in enumerate(zip(texts, counts, strict=True)):
            if not text.strip():
                raise BadRequest(f"Text {place} is empty.", remedy="Leave empty texts out.", param="input")
            if count > model.context_tokens:
                raise PromptTooLong(
                    f"Text {place} has {count} tokens; the embedder reads {model.context_tokens}.",
                    remedy="Split it.",
                    param="input",
                )
        input_type = asked.appliance.input_type if asked.appliance else "passage"
        vectors = await backend.embed(texts, input_type)
        packed = asked.encoding_format == "base64"
        rows = [
            Embedded(index, base64.b64encode(row.astype("<f4").tobytes()).decode() if packed else row.tolist())
            for index, row in enumerate(vectors)
        ]
        return Response(EmbeddingList(rows, model.id, EmbeddingsUsage(sum(counts), sum(counts))))


def _check(asked: EmbeddingsBody, model: ModelInfo, dimensions: int) -> None:
    if (asked.model or "") not in ALIASES and asked.model != model.id:
        raise UnknownModel(
            f"There is no model {asked.model!r} that embeds.",
            remedy=f"Use {model.id!r}, or leave it out.",
            param="model",
        )
    if asked.dimensions not in (None, dimensions):
        raise BadRequest(
            f"The embedder gives {dimensions} dimensions, not {asked.dimensions}; cut off, they would mean little.",
            remedy="Leave dimensions out.",
            param="dimensions",
        )


async def _texts(given: str | list[Any], backend: Backend) -> list[str]:
    """The texts of an input in any of its four forms."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequest("input is empty.", remedy="Send at least one text.", param="input")
    if isinstance(given[0], int) and not isinstance(given[0], bool):
        given = [given]
    if len(given) > MOST_TEXTS:
        raise BadRequest(f"input has {len(given)} texts; at most {MOST_TEXTS} are taken at once.", param="input")
    if all(isinstance(text, str) for text in given):
        return list(given)
    try:
        return await backend.texts_of(msgspec.convert(given, list[Ids]))
    except msgspec.ValidationError as error:
        message = "input must be a text, a list of texts, a list of token ids, or a list of those."
        raise BadRequest(message, param="input") from error
