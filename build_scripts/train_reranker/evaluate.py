"""Owns fitting what joins the stages to the packed reranker: calibration, mix, abstention; it writes `config.json`.

Must not know how the reranker was trained: it is asked as the appliance asks it, and so are the other stages.

Nothing is fitted on a set that is not for training. The first stage's weights come from questions that are not held
out; what hears the reranker comes from held-out ones, which its training has not seen. Abstention is fitted on one half
of the questions, by a hash, and told on the other.

Run: `python -m build_scripts.train_reranker.evaluate --help`, in the root of the project.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from appliance.config import load
from appliance.errors import ApplianceError, BadRequest
from appliance.packs import PackStore, load_manifest
from appliance.retrieval import abstain, fuse
from appliance.retrieval.analyzer import Analyzer
from build_scripts.bench._lib.conditions import say
from build_scripts.bench._lib.tables import table
from build_scripts.bench.quality_bench import abstention, gather, rankings, sets
from build_scripts.bench.quality_bench.__main__ import cache_folder

from . import mix
from .data import TRAIN

CONFIG = Path(__file__).resolve().parents[2] / "models" / "pocket-reranker" / "config.json"
Floats = mix.Floats


class Scored(msgspec.Struct, frozen=True):
    """A question with the reranker's logits `(n,)`, NaN where a candidate was not scored."""

    row: gather.Row
    kind: abstention.Kind
    logits: Floats


def first_stage_asked(row: gather.Row) -> mix.Asked:
    """Features (candidates, 2) of the first stage."""
    candidates = row.candidates
    lexical = fuse.lexical_share(candidates.bm25, candidates.mass)
    features = np.stack([lexical, candidates.cosine], 1)
    return mix.Asked(row.pool, features, row.grades(), len(row.question.grades))


def fit_fused(rows: Sequence[gather.Row]) -> fuse.FusedWeights:
    """The first stage's weights."""
    weights, bias = mix.fit([first_stage_asked(row) for row in rows])
    lex, dense = (round(float(weight), 6) for weight in weights)
    return fuse.FusedWeights(lex=lex, dense=dense, bias=round(bias, 6))


def left_out(rows: Sequence[gather.Row], measured: Sequence[gather.Row]) -> str:
    """Per set: nDCG@10 of both halves, of plain rank fusion, and of weights fitted on the other sets."""
    lines = [["nDCG@10", "questions", "lexical", "dense", "RRF", "fused, fitted without it", "less its better half"]]
    for name in dict.fromkeys(row.pool for row in rows):
        own = [row for row in [*rows, *measured] if row.pool == name]
        weights = fit_fused([row for row in rows if row.pool != name])
        columns: list[Callable[[gather.Row], Floats]] = [
            lambda row: np.nan_to_num(row.candidates.bm25, nan=-1.0),
            lambda row: row.candidates.cosine,
            lambda row: rankings.reciprocal(row.candidates),
            lambda row, weights=weights: rankings.first_stage(weights, row.candidates),  # type: ignore[misc]
        ]
        values = [np.array([mix.ndcg(score(row), first_stage_asked(row)) for row in own]) for score in columns]
        gain = values[3] - max(values[:2], key=lambda one: float(one.mean()))
        cells = [f"{one.mean():.4f}" for one in values]
        lines.append([name, str(len(own)), *cells, f"{gain.mean():+.4f} ± {2 * gain.std() / math.sqrt(len(gain)):.4f}"])
    return table(lines)


def final_asked(scored: Scored, weights: fuse.FusedWeights) -> mix.Asked:
    """Features (reranked candidates, 2): the first stage's logit and the reranker's."""
    known = np.isfinite(scored.logits)
    first = rankings.first_stage(weights, scored.row.candidates)
    features = np.stack([first[known], scored.logits[known]], 1)
    return mix.Asked(scored.row.pool, features, scored.row.grades()[known], len(scored.row.question.grades))


def final_table(asked: Sequence[mix.Asked], final: fuse.FinalWeights) -> str:
    """Per set, over the reranked candidates: nDCG@10 of each input and of the final mix."""
    lines = [
        ["nDCG@10 of the reranked", "questions", "first stage", "reranker alone", "final", "less its better input"]
    ]
    weights = np.array([final.first, final.ce])
    for name in dict.fromkeys(one.name for one in asked):
        own = [one for one in asked if one.name == name]
        scores = ([1.0, 0.0], [0.0, 1.0], weights)
        values = [np.array([mix.ndcg(one.features @ np.array(w), one) for one in own]) for w in scores]
        gain = values[2] - max(values[:2], key=lambda one: float(one.mean()))
        cells = [f"{one.mean():.4f}" for one in values]
        lines.append([name, str(len(own)), *cells, f"{gain.mean():+.4f} ± {mix.allowance(gain):.4f}"])
    return table(lines)


def fit_abstention(cases: Sequence[abstention.Case], fields: Sequence[str]) -> dict[str, float]:
    """Weights of evidence by name, and `bias`, fitted on the half that is not for testing."""
    fitted = [case for case in cases if not case.test]
    features = np.array([[getattr(case.seen, name) for name in fields] for case in fitted])
    label = np.array([case.kind == "answered" for case in fitted], np.float64)
    weights, bias = mix.logistic(features, label, abstention.weights(fitted))
    return {**{name: round(float(w), 6) for name, w in zip(fields, weights, strict=True)}, "bias": round(bias, 6)}


def abstention_table(title: str, cases: Sequence[abstention.Case], weights: abstain.Weights) -> str:
    """Precision and recall of abstaining at one half, by language and set, on the half for testing."""
    tested = [case for case in cases if case.test]
    lines = [[title, "cases", "precision", "recall"]]
    names = [*sorted({case.language for case in tested}), *sorted({case.pool for case in tested})]
    for name in names:
        own = [case for case in tested if name in (case.language, case.pool)]
        judged = abstention.judge(own, lambda seen: abstain.probability(weights, seen), 0.5)
        lines.append([name, str(judged.cases), f"{judged.precision:.3f}", f"{judged.recall:.3f}"])
    return table(lines)


class Fitting:
    """The sets and models, and what was asked of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        names = {plan.name for plan in TRAIN}
        found = [sets.read(folder, options.letters) for folder in sets.folders(options.data) if folder.name in names]
        self._sets = [one for one in found if one.train]
        if not self._sets:
            raise BadRequest("None of the sets is for training.")
        store = PackStore(Path(load().models_dir), load_manifest())
        store.pull("pocket", say)
        self._models = gather.Models.of(store.resolve("pocket"), cache_folder(), say)

    def first_stage(self) -> tuple[list[gather.Row], list[gather.Row]]:
        """Rows to fit the first stage on; then held-out ones, each set's own before those of another set."""
        fitted: list[gather.Row] = []
        held: list[gather.Row] = []
        analyzer = Analyzer()
        for found in self._sets:
            embedder = self._models.embedder(found.name)
            fitted += gather.rows(found, embedder, analyzer, found.fitted(self._options.questions))
            own = found.measured(self._options.held_out)
            held += gather.rows(found, embedder, analyzer, own, self._foreign(found, max(1, len(own) // 2)))
            embedder.save()
            say(f"{found.name}: {len(found.passages)} passages searched")
        return fitted, held

    def rerank(self, held: Sequence[gather.Row], weights: fuse.FusedWeights) -> list[Scored]:
        """The held-out rows with logits: as they are, and with what may answer taken away."""
        scored: list[Scored] = []
        for found in self._sets:
            reranker = self._models.reranker(found.name)
            if reranker is None:
                raise BadRequest("The pack has no reranker.")
            for row in (one for one in held if one.pool == found.name):
                cases: list[tuple[gather.Row, abstention.Kind]] = [(row, "answered" if row.own else "foreign")]
                if row.own:
                    cases.append((row.without_answers(), "removed"))
                for one, kind in cases:
                    order = rankings.order(one.candidates, rankings.first_stage(weights, one.candidates))
                    logits = gather.logits(one, order, self._options.depth, found.passages, reranker)
                    scored.append(Scored(one, kind, logits))
            reranker.save()
            say(f"{found.name}: reranked")
        return scored

    def _foreign(self, found: sets.QuestionSet, most: int) -> tuple[sets.Question, ...]:
        same = [one for one in self._sets if one.language == found.language]
        other = same[(same.index(found) + 1) % len(same)]
        return other.measured(most) if other is not found else ()


def cases_of(scored: Sequence[Scored], weights: fuse.FusedWeights, heard: int) -> list[abstention.Case]:
    """A case of each, as when the reranker had time for the first `heard` passages."""
    cases: list[abstention.Case] = []
    for one in scored:
        first = rankings.first_stage(weights, one.row.candidates)
        logits = np.full(len(first), math.nan)
        best = rankings.order(one.row.candidates, first)[:heard]
        logits[best] = one.logits[best]
        case = abstention.case_of(one.row, one.kind, first, logits)
        cases += [case] if case is not None else []
    return cases


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--letters", type=int, default=400_000, help="of a pool at most, an ideograph as three")
    parser.add_argument("--questions", type=int, default=200, help="of each set for the first stage")
    parser.add_argument("--held-out", type=int, default=150, help="of each set for the rest")
    parser.add_argument("--depth", type=int, default=10, help="candidates that are reranked")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    try:
        _fit(options)
    except ApplianceError as error:
        sys.exit(f"Error: {error.text}")


def _fit(options: argparse.Namespace) -> None:
    fitting = Fitting(options)
    fitted, held = fitting.first_stage()
    own = [row for row in held if row.own]
    print(left_out(fitted, own), flush=True)
    fused = fit_fused(fitted)
    scored = fitting.rerank(held, fused)
    answered = [final_asked(one, fused) for one in scored if one.kind == "answered"]
    logits = np.concatenate([one.features[:, 1] for one in answered])
    label = np.concatenate([one.grades > 0 for one in answered]).astype(np.float64)
    share = np.repeat(mix.even([one.name for one in answered]), [len(one.grades) for one in answered])
    calibration, calibration_bias = mix.logistic(logits[:, None], label, share)
    first, ce, bias = mix.fit_final(answered)
    final = fuse.FinalWeights(first=round(first, 6), ce=round(ce, 6), bias=round(bias, 6))
    print(final_table(answered, final), flush=True)
    silent, few, heard = (cases_of(scored, fused, most) for most in (0, 4, options.depth))
    abstaining = msgspec.convert(
        {
            "first": fit_abstention(silent, ("top", "gap", "cover")),
            "reranked": fit_abstention(heard, ("top", "gap", "cover", "ce", "ce_gap")),
        },
        abstain.Weights,
    )
    print(abstention_table("first stage alone", silent, abstaining))
    print(abstention_table("reranker, first four alone", few, abstaining))
    print(abstention_table("reranker", heard, abstaining))
    config = json.loads(CONFIG.read_text("utf-8"))
    config["calibration"] = {"a": round(float(calibration[0]), 6), "b": round(calibration_bias, 6)}
    config["mix"] = msgspec.to_builtins({"fused": fused, "final": final, "abstain": abstaining})
    print(json.dumps({name: config[name] for name in ("calibration", "mix")}, indent=1))
    if not options.dry:
        CONFIG.write_text(json.dumps(config, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
