"""Owns `POST /v1/rerank`, in the shape that the clients of Cohere and Jina send and read.

Must not know how texts are scored.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, post
from msgspec import UNSET, Meta, UnsetType

from appliance.errors import BadRequest, NotFound
from appliance.http import body
from appliance.http.chat_request import UnknownModel
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.schema import json_body
from appliance.inference.protocols import RerankScores

MOST_DOCUMENTS = 1000


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document as an object."""

    text: str


class RerankExtension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What others' requests have no field for."""

    budget_ms: Annotated[float, Meta(gt=0)] | None = None


class RerankBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts to rank by how well they answer a query; give the likeliest first, in case a budget ends early."""

    query: str
    documents: Annotated[list[str | Text], Meta(min_length=1, max_length=MOST_DOCUMENTS)]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None  # None: all
    return_documents: bool = False
    appliance: RerankExtension | None = None


class Ranked(msgspec.Struct, frozen=True):
    """A document by its place in the request; a probability, or null where the budget left it out."""

    index: int
    relevance_score: float | None
    document: Text | UnsetType = UNSET


class Losses(msgspec.Struct, frozen=True):
    """What was not read: documents that were cut, by place, whether the query was, and how many were left out."""

    truncated: tuple[int, ...]
    query_cut: bool
    unscored: int


class Ranking(msgspec.Struct, frozen=True):
    """Documents, best first; those that a budget left out come last, in the order given."""

    model: str
    results: list[Ranked]
    appliance: Losses


class RerankController(Controller):
    """Ranking of given texts."""

    tags = ("answers",)

    @post("/v1/rerank", status_code=200, operation_class=json_body(RerankBody))
    async def rerank(
        self,
        request: Request[Any, Any, Any],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Response[Ranking]:
        """The documents of the request by how well they answer its query."""
        data = await body.read(request, backend.settings.server.max_body_bytes, lifecycle, what="request")
        asked = body.decode(data, RerankBody)
        if not asked.query.strip():
            raise BadRequest("The query is empty.", remedy="Write what to rank the documents by.", param="query")
        model = next((model.id for model in backend.models() if model.role == "reranker"), None)
        if model is None:
            raise NotFound("The model pack in use has no reranker.", remedy="`appliance models list` shows the packs.")
        if asked.model not in (None, "", model):
            raise UnknownModel(
                f"There is no model {asked.model!r} that ranks.",
                remedy=f"Use {model!r}, or leave it out.",
                param="model",
            )
        texts = [one if isinstance(one, str) else one.text for one in asked.documents]
        budget_ms = asked.appliance.budget_ms if asked.appliance else None
        return Response(_ranking(model, asked, texts, await backend.rerank(asked.query, texts, budget_ms)))


def _ranking(model: str, asked: RerankBody, texts: list[str], scores: RerankScores) -> Ranking:
    scored = [place for place, logit in enumerate(scores.logits) if not math.isnan(logit)]
    # By logit: where the probability is rounded to 1, it still tells two apart.
    scored.sort(key=lambda place: (-scores.logits[place], place))
    rest = sorted(set(range(len(texts))) - set(scored))
    results = [
        Ranked(
            place,
            None if math.isnan(scores.probabilities[place]) else scores.probabilities[place],
            Text(texts[place]) if asked.return_documents else UNSET,
        )
        for place in (scored + rest)[: asked.top_n]
    ]
    return Ranking(model, results, Losses(scores.truncated, scores.query_cut, len(rest)))
