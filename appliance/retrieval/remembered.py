"""Owns passages that were found before: a question is searched for once while nothing that it follows from changes.

Must not know how passages are found, nor wire formats.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from appliance.cache.tiers import Cache
from appliance.retrieval.types import SearchRequest, SearchResult

# What a result may lack and be the same the next time; a reranking that ran out of time may do better then.
_LASTING = ("no_reranker", "query_cut")

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(SearchResult).decode


class _Recall(Protocol):
    def search(self, request: SearchRequest) -> SearchResult: ...
    def terms(self, text: str) -> frozenset[str]: ...


class RememberedRecall:
    """Recall that remembers. For any thread.

    Args:
        recall: searches.
        cache: for results alone.
        version: what a result in that collection follows from, beside the request.
    """

    def __init__(self, recall: _Recall, cache: Cache, version: Callable[[str], bytes]) -> None:
        self._recall = recall
        self._cache = cache
        self._version = version

    def search(self, request: SearchRequest) -> SearchResult:
        """See `Recall.search`."""
        if request.explain:  # who asks what a search does wants one
            return self._recall.search(request)
        begun = time.perf_counter()
        asked = replace(request, rerank_budget_ms=None)  # a whole result is the same whatever time there was for it
        key = hashlib.blake2b(_encode([self._version(request.collection), asked]), digest_size=32).digest()
        kept = self._cache.get(key)
        if kept is not None:
            ms = round((time.perf_counter() - begun) * 1000, 2)
            return replace(_decode(kept.value), timings_ms={"recall_cache": ms, "total": ms})
        epoch = self._cache.epoch(request.collection)
        result = self._recall.search(request)
        if all(reason.split(":")[0] in _LASTING for reason in result.degraded):
            self._cache.put(key, _encode(result), tag=request.collection, epoch=epoch)
        return result

    def terms(self, text: str) -> frozenset[str]:
        """See `Recall.terms`."""
        return self._recall.terms(text)
