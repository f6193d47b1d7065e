"""Owns one measurement of ranking from beginning to end.

Must not know how a figure is computed or shown.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from appliance.config import AnswerSettings, load
from appliance.packs import PackStore, load_manifest
from appliance.retrieval import abstain, fuse
from appliance.retrieval.analyzer import Analyzer
from build_scripts.bench._lib import record
from build_scripts.bench._lib.conditions import conditions, say

from . import abstention, gather, rankings, report
from .bed import Floats
from .bm25 import Bm25
from .cached import CachedReranker
from .figures import Figures, figures, interval, mean
from .results import Abstention, Difference, Results, SetResult
from .sets import Question, QuestionSet, folders, read

PACK = "pocket"
_OTHER_K1 = 1.5


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    command: str
    data: Path
    cache: Path
    only: Sequence[str] = ()
    letters: int = 400_000
    questions: int = 150
    depth: int = 10
    json: bool = False
    record: bool = False


class Bench:
    """A prepared measurement."""

    def __init__(self, options: Options, models: gather.Models, config: dict[str, Any] | None) -> None:
        """`config` is the reranker's, with the weights that are measured.

        Raises:
            BadRequest: a set is not to be had or cannot be read.
            ModelCorrupt: a weight is wrong.
        """
        self._options, self._models = options, models
        self._mix, self._abstain = fuse.mix_of(config), abstain.weights_of(config)
        self._analyzer = Analyzer()
        self._sets = [read(folder, options.letters) for folder in folders(options.data, options.only)]
        self._conditions = conditions(options.command, len(os.sched_getaffinity(0)), ("tantivy", "onnxruntime"))

    @classmethod
    def of_pack(cls, options: Options) -> Bench:
        """With the models and weights of the pocket pack.

        Raises:
            ApplianceError: they, or the sets, are not to be had.
        """
        folders(options.data, options.only)  # before anything that takes long
        store = PackStore(Path(load().models_dir), load_manifest())
        store.pull(PACK, say)
        pack = store.resolve(PACK)
        config = pack.reranker.mix if pack.reranker else None
        return cls(options, gather.Models.of(pack, options.cache, say), config)

    def run(self) -> Results:
        """Measure; print and record.

        Raises:
            ApplianceError: a model failed.
        """
        measured: list[SetResult] = []
        cases: dict[str, list[abstention.Case]] = {report.FIRST: [], report.BOTH: []}
        for found in self._sets:
            if not found.measured(1):
                say(f"{found.name}: no question that may be measured")
                continue
            one, some = self._set(found)
            measured.append(one)
            for stage in cases:
                cases[stage] += some[stage]
            say(f"{found.name}: {one.questions} questions over {one.passages} passages")
        threshold = AnswerSettings().abstain_threshold
        results = Results(
            self._conditions,
            self._options.letters,
            self._options.depth,
            threshold,
            measured,
            {stage: self._judged(some, threshold) for stage, some in cases.items()} if self._abstain else {},
        )
        if self._options.record:
            record.write(record.RESULTS / "quality.json", results)
            record.write_section("Quality", report.text(results))
        if self._options.json:
            print(msgspec.json.format(msgspec.json.encode(results), indent=1).decode())
        else:
            print(report.text(results))
        return results

    def _set(self, found: QuestionSet) -> tuple[SetResult, dict[str, list[abstention.Case]]]:
        embedder, reranker = self._models.embedder(found.name), self._models.reranker(found.name)
        own = found.measured(self._options.questions)
        rows = gather.rows(found, embedder, self._analyzer, own, self._foreign(found, len(own)))
        words = Bm25(found.passages, self._analyzer)
        by_system: dict[str, list[Figures]] = {}
        cases: dict[str, list[abstention.Case]] = {report.FIRST: [], report.BOTH: []}
        for row in rows:
            first, logits = self._scores(row, found, reranker)
            if row.own:
                for name, ranked in self._ranked(row, first, logits, words):
                    by_system.setdefault(name, []).append(figures(ranked, row.question.grades))
            self._add_cases(cases, row, first, logits, "answered" if row.own else "foreign")
            if row.own:
                removed = row.without_answers()
                self._add_cases(cases, removed, *self._scores(removed, found, reranker), "removed")
        embedder.save()
        if reranker is not None:
            reranker.save()
        result = SetResult(
            found.name,
            found.language,
            found.train,
            len(found.passages),
            found.of_passages,
            len(own),
            found.of_questions,
            {name: mean(some) for name, some in by_system.items()},
            _differences({name: np.array([one.ndcg10 for one in some]) for name, some in by_system.items()}),
        )
        return result, cases

    def _foreign(self, found: QuestionSet, most: int) -> tuple[Question, ...]:
        """Questions of the next set in the same language, half as many as its own."""
        same = [one for one in self._sets if one.language == found.language]
        other = same[(same.index(found) + 1) % len(same)]
        return other.measured(max(1, most // 2)) if other is not found else ()

    def _scores(self, row: gather.Row, found: QuestionSet, reranker: CachedReranker | None) -> tuple[Floats, Floats]:
        """Logits `(n,)` of the first stage and, for the best, of the reranker."""
        first = rankings.first_stage(self._mix.fused, row.candidates)
        if reranker is None:
            return first, np.full(len(first), math.nan)
        order = rankings.order(row.candidates, first)
        return first, gather.logits(row, order, self._options.depth, found.passages, reranker)

    def _ranked(self, row: gather.Row, first: Floats, logits: Floats, words: Bm25) -> Iterator[tuple[str, list[int]]]:
        candidates = row.candidates
        rescored = words.rescored(row.question.text, candidates, _OTHER_K1)
        yield rankings.LEXICAL, rankings.by_score(candidates, candidates.bm25)
        yield rankings.LEXICAL_OTHER, rankings.by_score(candidates, rescored)
        yield rankings.DENSE, rankings.by_score(candidates, candidates.cosine)
        yield rankings.RRF, rankings.by_score(candidates, rankings.reciprocal(candidates))
        yield rankings.HYBRID, rankings.by_score(candidates, first)
        if np.isfinite(logits).any():
            alone = fuse.FinalWeights(first=0.0, ce=1.0, bias=0.0)
            yield rankings.RERANKER, rankings.reranked(alone, candidates, first, logits)
            yield rankings.RERANKED, rankings.reranked(self._mix.final, candidates, first, logits)

    def _add_cases(
        self,
        cases: dict[str, list[abstention.Case]],
        row: gather.Row,
        first: Floats,
        logits: Floats,
        kind: abstention.Kind,
    ) -> None:
        for stage, heard in ((report.FIRST, np.full(len(first), math.nan)), (report.BOTH, logits)):
            case = abstention.case_of(row, kind, first, heard)
            if case is not None and case.test:
                cases[stage].append(case)

    def _judged(self, cases: Sequence[abstention.Case], threshold: float) -> dict[str, Abstention]:
        weights = self._abstain
        assert weights is not None  # noqa: S101  # the caller's condition
        languages = [*sorted({case.language for case in cases}), report.ALL]
        found = {}
        for language in languages:
            own = [case for case in cases if language in (case.language, report.ALL)]
            found[language] = Abstention(
                abstention.judge(own, lambda seen: abstain.probability(weights, seen), threshold),
                abstention.reliability(own, lambda seen: abstain.probability(weights, seen)),
            )
        return found


def _differences(ndcg: dict[str, Floats]) -> dict[str, Difference]:
    """What is compared: hybrid with its better half, reranked with hybrid, one k1 with the other."""
    better = max((rankings.LEXICAL, rankings.DENSE), key=lambda name: float(ndcg[name].mean()))
    pairs = {
        report.HYBRID_GAIN: (rankings.HYBRID, better),
        report.RERANK_GAIN: (rankings.RERANKED, rankings.HYBRID),
        report.K1_GAIN: (rankings.LEXICAL_OTHER, rankings.LEXICAL),
    }
    found = {}
    for title, (one, other) in pairs.items():
        if one in ndcg:
            values = ndcg[one] - ndcg[other]
            found[title] = Difference(float(values.mean()), *interval(values))
    return found
