"""Owns `Recall`: from a question to ranked passages, and what was left out on the way.

Must not know HTTP, prompts or generation.

    filters ─▶ documents ─▶ lexical 200 ∥ (embed, dense 200) ─▶ union, exact cosines ─▶ fuse ─▶ without repetitions
    ─▶ 50 ─▶ cross-encoder ─▶ mix ─▶ top k

All that is read is of one moment: of a document that is being replaced, a search sees the old version or the new one.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.config import RecallSettings
from appliance.errors import BadRequest, EmbedderChanged, Unavailable
from appliance.inference.protocols import Embedder, Reranker, RerankScores
from appliance.retrieval import abstain, fuse
from appliance.retrieval.dense.types import DEFAULT_TARGET, Asked, DenseView, Hits, Sizes
from appliance.retrieval.indexes import EXACT_LIMIT, Indexes, passage_text
from appliance.retrieval.lexical import LexicalHit, LexicalView
from appliance.retrieval.moments import Moment, RecallStore
from appliance.retrieval.repeats import Repeats
from appliance.retrieval.types import Duplicate, Explained, Mode, Passage, Scores, SearchRequest, SearchResult
from appliance.store.records import Change, Chunk, Collection, RecallTarget
from appliance.telemetry import Attribute, StageTimes, span

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
MAX_QUERY_CHARACTERS = 20_000
_PREFIX_TOKENS = 8  # room for what the embedder puts around a question
_THREADS = 4  # searches whose lexical half may run beside their dense half


class Scope(msgspec.Struct, frozen=True):
    """Where a search looks, and how closely."""

    target: RecallTarget
    documents: Ids | None = None  # those that the filters let through; None: all of the collection
    chunks: Ids | None = None  # theirs, ascending; known where vectors are searched

    @property
    def share(self) -> float:
        """The target as the vectors take it."""
        return 1.0 if self.target == "exact" else self.target


class Candidates(msgspec.Struct, frozen=True):
    """What recall found, in no order. All arrays `(n,)`; NaN where a stage does not know the candidate."""

    ids: Ids
    bm25: Floats
    cosine: Floats
    mass: float  # of the question, see `LexicalView.mass`; 0 in the modes without words
    first: Floats  # logits of the first stage
    score: Floats  # what they are ranked by before the reranker
    fused: Floats | None  # None in the modes of one stage


class Found(msgspec.Struct, frozen=True):
    """A candidate that is still stored, with its scores."""

    chunk: Chunk
    bm25: float
    cosine: float
    first: float
    score: float
    fused: float | None
    duplicates: tuple[Duplicate, ...] = ()


class Recall:
    """Searches collections and keeps the indexes of a store up to date. Blocking; threads may share it."""

    def __init__(
        self,
        store: RecallStore,
        index_dir: Path,
        embedder: Embedder,
        reranker: Reranker | None,
        settings: RecallSettings,
        mix: dict[str, Any] | None,
        *,
        exact_limit: int = EXACT_LIMIT,
    ) -> None:
        """`mix` is from the reranker's configuration; None: the default one."""
        self._embedder = embedder
        self._reranker = reranker
        self._settings = settings
        self._mix = fuse.mix_of(mix)
        self._abstain = abstain.weights_of(mix)
        self._indexes = Indexes(store, index_dir, embedder.fingerprint, embedder.dim, exact_limit=exact_limit)
        self._closed = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="recall")

    def open(self) -> None:
        """Load the indexes, bring them up to date with the store, build what is missing or damaged."""
        self._indexes.open()

    def close(self) -> None:
        """Let running searches end, save the indexes and stop the threads."""
        self._closed = True
        self._pool.shutdown()
        self._indexes.close()

    def terms(self, text: str) -> frozenset[str]:
        """What a text is about, as the lexical index sees it."""
        return frozenset(self._indexes.analyzer.terms(text))

    @property
    def behind(self) -> str:
        """Why something that is stored may not be found; "" while all is."""
        return self._indexes.behind

    def collection(self, name: str) -> Collection:
        """A collection as searches see it. Raises `NotFound`."""
        with self._indexes.moments.now() as moment:
            return moment.store.collection(name)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """The store is changed in the block, once at most: searches see what was before until `apply`."""
        self._indexes.moments.hold()
        try:
            yield
        finally:
            self._indexes.moments.move()

    def catch_up(self) -> None:
        """See `Indexes.catch_up`."""
        self._indexes.catch_up()

    def apply(self, change: Change) -> None:
        """Make a committed change of the store searchable; see `Indexes.apply`."""
        added, removed = len(change.added), len(change.removed)
        with span("index", generation=change.generation, added=added, removed=removed):
            self._indexes.apply(change)

    def sizes(self) -> Sizes:
        """How many vectors lie where, of all collections together."""
        return self._indexes.sizes()

    def check(self) -> list[str]:
        """What does not agree with the store, a sentence each; empty when all is well."""
        return self._indexes.check()

    def search(self, request: SearchRequest) -> SearchResult:
        """Find passages, best first; none when the collection is empty.

        Raises:
            NotFound: there is no such collection.
            BadRequest: the question is empty or too long, or `top_k` is below 1.
            EmbedderChanged: the vectors are another model's, and the mode is not lexical.
            Unavailable: `close` was called.
        """
        if self._closed:
            raise Unavailable("The service is stopping.")
        # Bytes that are no UTF-8 reach here from a command line as lone surrogates, which no library takes.
        query = request.query.encode("utf-8", "replace").decode()
        request = msgspec.structs.replace(request, query=query)
        if not query.strip():
            raise BadRequest("The question is empty.", remedy="Ask for something.", param="query")
        if len(query) > MAX_QUERY_CHARACTERS:
            raise BadRequest(
                f"The question has {len(query)} characters; at most {MAX_QUERY_CHARACTERS} can be searched for.",
                param="query",
            )
        if request.top_k < 1:
            raise BadRequest("top_k must be at least 1.", param="top_k")
        times = StageTimes()
        degraded: list[str] = []
        with span("recall", mode=request.mode, rerank=request.rerank):
            reranker = self._reranker if request.rerank else None
            notes: list[Asked] = []
            with self._indexes.moments.now() as moment:  # nothing of it is needed by what takes long
                collection = moment.store.collection(request.collection)
                request = msgspec.structs.replace(request, collection=collection.name)
                if moment.indexed.behind:
                    degraded.append(f"index_behind: the newest changes may not be found: {moment.indexed.behind}")
                with times.stage("filter") if request.filters is not None else contextlib.nullcontext():
                    scope = self._scope(moment, request, collection.recall)
                if collection.chunks == 0 or (scope.documents is not None and not len(scope.documents)):
                    explained = self._explain(request, scope, [], None)
                    return SearchResult((), times.as_dict(), tuple(degraded), explained=explained)
                candidates = self._recall(moment, request, scope, times, notes)
                wanted = self._settings.fused_candidates if reranker else request.top_k
                found = self._resolve(moment, candidates, max(wanted, request.top_k), request)
            if request.mode != "lexical" and self._is_cut(query):
                degraded.append("query_cut: the embedder read the beginning of the question only")
            if request.rerank and self._reranker is None:
                degraded.append("no_reranker: the model pack has none")
            passages = [_passage(one, one.score, None) for one in found]
            logits = np.empty(0)
            if reranker and found:
                passages, logits = self._rerank(reranker, request, found, times, degraded)
            answered = self._answered(candidates, logits)
            explained = self._explain(request, scope, notes, candidates)
            return SearchResult(tuple(passages[: request.top_k]), times.as_dict(), tuple(degraded), answered, explained)

    def _is_cut(self, query: str) -> bool:
        return self._embedder.count_tokens([query])[0] > self._embedder.max_tokens - _PREFIX_TOKENS

    def _scope(self, moment: Moment, request: SearchRequest, default: RecallTarget | None) -> Scope:
        """What the request or its collection says; the store turns filters into documents."""
        target = request.recall or default or DEFAULT_TARGET
        if request.filters is None:
            return Scope(target)
        documents = moment.store.matching(request.collection, request.filters)
        return Scope(target, documents, None if request.mode == "lexical" else moment.store.chunk_ids_in(documents))

    def _explain(
        self, request: SearchRequest, scope: Scope, notes: Sequence[Asked], candidates: Candidates | None
    ) -> Explained | None:
        if not request.explain:
            return None
        return Explained(
            recall=scope.target,
            terms=self._indexes.analyzer.query_terms(request.query),
            lexical=0 if candidates is None else int(np.isfinite(candidates.bm25).sum()),
            dense=tuple(notes),
            candidates=0 if candidates is None else len(candidates.ids),
            documents=None if scope.documents is None else len(scope.documents),
        )

    def _recall(
        self, moment: Moment, request: SearchRequest, scope: Scope, times: StageTimes, notes: list[Asked]
    ) -> Candidates:
        """The candidates of the mode; their cosines too where something will use them."""
        mode, settings = request.mode, self._settings
        rerank = request.rerank and self._reranker is not None
        lexical: Future[tuple[list[LexicalHit], float]] | None = None
        if mode != "dense":
            words = moment.indexed.lexical
            lexical = self._pool.submit(contextvars.copy_context().run, self._lexical, words, request, scope, times)
        vector: npt.NDArray[np.float32] | None = None
        tier = self._tier(moment, request)
        hits: Hits | None = None
        if mode != "lexical" or rerank:
            with times.stage("embed_query", **{"gen_ai.operation.name": "embeddings"}):
                vector = self._embedder.embed_queries([request.query])[0]
        if mode in ("hybrid", "dense") and vector is not None and tier is not None:
            with times.stage("recall.dense", k=settings.dense_candidates, target=scope.share) as dense:
                hits = tier.search(
                    vector,
                    settings.dense_candidates,
                    target=scope.share,
                    within=scope.chunks,
                    notes=notes,
                )
                dense.attributes.update(_parts(notes))
        by_words, mass = lexical.result() if lexical else ([], 0.0)
        bm25 = {hit.chunk_id: hit.score for hit in by_words}
        with times.stage("fuse"):
            return self._fuse(mode, bm25, mass, hits, tier, vector)

    def _lexical(
        self, words: LexicalView, request: SearchRequest, scope: Scope, times: StageTimes
    ) -> tuple[list[LexicalHit], float]:
        with times.stage("recall.lexical", k=self._settings.lexical_candidates):
            hits = words.search(request.query, request.collection, self._settings.lexical_candidates, scope.documents)
            return hits, words.mass(request.query, request.collection)

    def _tier(self, moment: Moment, request: SearchRequest) -> DenseView | None:
        if request.mode != "lexical" and moment.store.embedder() != self._embedder.fingerprint:
            raise EmbedderChanged(
                "The stored documents were embedded with another model than the one in use.",
                remedy="Ingest them again, go back to the earlier pack with `appliance models use`, "
                'or search with mode "lexical".',
            )
        return moment.tier(request.collection)

    def _fuse(
        self,
        mode: Mode,
        bm25: dict[int, float],
        mass: float,
        hits: Hits | None,
        tier: DenseView | None,
        vector: npt.NDArray[np.float32] | None,
    ) -> Candidates:
        ids = np.array(sorted({*bm25, *(hits[0].tolist() if hits else ())}), np.int64)
        lexical = np.array([bm25.get(int(i), np.nan) for i in ids], np.float64)
        cosine = np.full(len(ids), np.nan)
        if tier is not None and vector is not None:
            cosine = tier.cosines(vector, ids).astype(np.float64)
        first = fuse.first_stage(self._mix.fused, lexical, cosine, mass)
        if mode == "lexical":
            return Candidates(ids, lexical, cosine, mass, first, lexical, None)
        if mode == "dense":
            return Candidates(ids, lexical, cosine, mass, first, cosine, None)
        fused = fuse.sigmoid(first)
        return Candidates(ids, lexical, cosine, mass, first, fused, fused)

    def _answered(self, candidates: Candidates, logits: Floats) -> float | None:
        """Whether the documents answer, where both halves of recall looked and the pack can tell."""
        if self._abstain is None or candidates.fused is None:
            return None
        seen = abstain.evidence(candidates.first, candidates.bm25, candidates.mass, logits)
        return None if seen is None else abstain.probability(self._abstain, seen)

    def _resolve(self, moment: Moment, candidates: Candidates, wanted: int, request: SearchRequest) -> list[Found]:
        """The best `wanted` that are stored now; what says the same as a better one is folded into it."""
        order = fuse.ranking(np.nan_to_num(candidates.score, nan=-np.inf), candidates.ids)
        found: list[Found] = []
        folded: list[list[Duplicate]] = []
        repeats = Repeats(request.query)
        for begin in range(0, len(order), wanted):
            if len(found) == wanted:
                break
            places = order[begin : begin + wanted]
            chunks = {chunk.id: chunk for chunk in moment.store.chunks(candidates.ids[places].tolist())}
            for place in places:
                chunk = chunks.get(int(candidates.ids[place]))
                if chunk is None or chunk.collection != request.collection or len(found) == wanted:
                    continue
                if (same := repeats.first(chunk.text)) is not None:
                    folded[same].append(Duplicate(chunk.document, chunk.document_id, chunk.page_first, chunk.id))
                    continue
                fused = None if candidates.fused is None else float(candidates.fused[place])
                bm25, cosine = float(candidates.bm25[place]), float(candidates.cosine[place])
                first, score = float(candidates.first[place]), float(candidates.score[place])
                found.append(Found(chunk, bm25, cosine, first, score, fused))
                folded.append([])
        return [msgspec.structs.replace(one, duplicates=tuple(same)) for one, same in zip(found, folded, strict=True)]

    def _rerank(
        self,
        reranker: Reranker,
        request: SearchRequest,
        found: Sequence[Found],
        times: StageTimes,
        degraded: list[str],
    ) -> tuple[list[Passage], Floats]:
        """The best candidates in their final order, those that the budget left out after; and all logits."""
        tried = found[: self._settings.fused_candidates]
        budget = request.rerank_budget_ms or self._settings.rerank_budget_ms
        with times.stage("rerank", passages=len(tried), budget_ms=budget) as stage:
            texts = [passage_text(one.chunk) for one in tried]
            scores = reranker.score(request.query, texts, budget_ms=budget)
            stage.set("scored", int(np.isfinite(scores.logits).sum()))
        degraded += _rerank_losses(scores, budget, reranker.max_tokens)
        with times.stage("fuse"):
            logits = np.array(scores.logits, np.float64)
            scored = [place for place, logit in enumerate(scores.logits) if np.isfinite(logit)]
            first = np.array([tried[place].first for place in scored], np.float64)
            final = fuse.sigmoid(fuse.final_stage(self._mix.final, first, logits[scored]))
            order = np.argsort(-final, kind="stable")  # ties keep the order of before
            passages = [
                _passage(tried[scored[place]], float(final[place]), scores.probabilities[scored[place]])
                for place in order
            ]
            rest = set(range(len(found))) - set(scored)
            return passages + [_passage(found[place], found[place].score, None) for place in sorted(rest)], logits


def _rerank_losses(scores: RerankScores, budget_ms: float, max_tokens: int) -> list[str]:
    losses: list[str] = []
    count = len(scores.logits)
    done = int(np.isfinite(scores.logits).sum())
    if done < count:
        losses.append(f"rerank_partial: {done} of {count} passages scored within the budget of {budget_ms:g} ms")
    if scores.truncated:
        losses.append(f"rerank_truncated: {len(scores.truncated)} of {done} passages were cut to {max_tokens} tokens")
    if scores.query_cut:
        losses.append("rerank_query_cut: the reranker read the beginning of the question only")
    return losses


def _passage(found: Found, score: float, rerank: float | None) -> Passage:
    chunk = found.chunk
    return Passage(
        chunk_id=chunk.id,
        document_id=chunk.document_id,
        document=chunk.document,
        title=chunk.title,
        text=chunk.text,
        heading=chunk.heading,
        page_first=chunk.page_first,
        page_last=chunk.page_last,
        score=score,
        scores=Scores(_known(found.bm25), _known(found.cosine), found.fused, rerank),
        ordinal=chunk.ordinal,
        start=chunk.start,
        end=chunk.end,
        attributes=chunk.attributes,
        duplicates=found.duplicates,
    )


def _parts(notes: Sequence[Asked]) -> dict[str, Attribute]:
    """What the hot and the cold parts of the vectors did, as attributes of a span."""
    found: dict[str, Attribute] = {}
    for kind in ("hot", "cold"):
        parts = [note for note in notes if note.part.startswith(kind)]
        if parts:
            found |= {
                f"{kind}.parts": len(parts),
                f"{kind}.vectors": sum(note.vectors for note in parts),
                f"{kind}.ef": max(note.ef for note in parts),
                f"{kind}.rescored": sum(note.rescored for note in parts),
                f"{kind}.ms": round(sum(note.ms for note in parts), 3),
            }
    return found


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
