"""Owns `POST /v1/search`.

Must not know how passages are found.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Controller, Request, Response, post

from appliance.errors import BadRequest
from appliance.http import body, extension
from appliance.http.given import GivenBackend, GivenLifecycle
from appliance.http.ports import DEFAULT_COLLECTION
from appliance.http.schema import json_body
from appliance.retrieval.types import Duplicate, Explained, Mode, Passage, Scores, SearchRequest
from appliance.store.attributes import Attributes, parse_filter
from appliance.store.rows import check_recall


class SearchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A search in a collection."""

    query: str
    collection: str = DEFAULT_COLLECTION
    mode: Mode = "hybrid"
    rerank: bool = True
    top_k: extension.TopK | None = None  # None: setting recall.top_k
    filters: Any = None  # see `store.attributes`
    recall: Any = None  # 0.9, 0.95, 0.99 or "exact"; None: the collection's
    explain: bool = False


class Result(msgspec.Struct, frozen=True):
    """A passage, numbered from 1, best first."""

    n: int
    document: str
    document_id: int
    title: str
    page: int | None
    page_last: int | None
    heading: str
    chunk: int
    text: str
    score: float
    scores: Scores
    attributes: Attributes
    duplicates: tuple[Duplicate, ...]


class Results(msgspec.Struct, frozen=True):
    """What was found, how long each stage took, and what was left out."""

    results: list[Result]
    timings_ms: dict[str, float]
    degraded: tuple[str, ...]
    explained: Explained | None = None


class SearchController(Controller):
    """Search."""

    tags = ("answers",)

    @post("/v1/search", status_code=200, operation_class=json_body(SearchBody))
    async def search(
        self,
        request: Request[Any, Any, Any],
        backend: GivenBackend,
        lifecycle: GivenLifecycle,
    ) -> Response[Results]:
        """The passages that answer a query best."""
        settings = backend.settings
        data = await body.read(request, settings.server.max_body_bytes, lifecycle, what="request")
        asked = body.decode(data, SearchBody)
        if not asked.query.strip():
            raise BadRequest("The query is empty.", remedy="Write what to search for.", param="query")
        found = await backend.search(
            SearchRequest(
                query=asked.query,
                collection=asked.collection,
                mode=asked.mode,
                rerank=asked.rerank,
                top_k=asked.top_k or settings.recall.top_k,
                filters=None if asked.filters is None else parse_filter(asked.filters),
                recall=None if asked.recall is None else check_recall(asked.recall),
                explain=asked.explain,
            )
        )
        results = [_result(n, passage) for n, passage in enumerate(found.passages, start=1)]
        headers = {"Server-Timing": extension.server_timing(found.timings_ms)}
        return Response(Results(results, found.timings_ms, found.degraded, found.explained), headers=headers)


def _result(n: int, passage: Passage) -> Result:
    return Result(
        n=n,
        document=passage.document,
        document_id=passage.document_id,
        title=passage.title,
        page=passage.page_first,
        page_last=passage.page_last,
        heading=passage.heading,
        chunk=passage.chunk_id,
        text=passage.text,
        score=passage.score,
        scores=passage.scores,
        attributes=passage.attributes,
        duplicates=passage.duplicates,
    )
