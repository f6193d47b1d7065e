"""Owns the small calibrated ranker that joins the stages: features, non-negative weights, probability.

Must not know models; the appliance applies the weights that are fitted here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

FEATURES = ("lex", "loglex", "dense", "ce")
FUSED = FEATURES[:3]
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Asked:
    """One query's candidates: features (candidates, 3 or 4), grades (candidates,), the set it belongs to."""

    name: str
    features: Floats
    grades: Floats
    relevant: int


def first_stage(bm25: list[float], dense: list[float]) -> Floats:
    """(candidates, 3): BM25 over the query's best BM25, log(1 + BM25), cosine."""
    raw = np.array(bm25, np.float64)
    top = raw.max(initial=0.0)
    return np.stack([raw / top if top > 0 else raw, np.log1p(raw), np.array(dense, np.float64)], 1)


def fit(asked: list[Asked], columns: int, steps: int = 600) -> tuple[Floats, float]:
    """Weights (columns,) >= 0 and bias such that `sigmoid(features @ weights + bias)` is a probability.

    The direction minimises the listwise softmax loss, each set counting the same; its length and the bias
    come from a logistic regression on all candidates. Queries without a right candidate teach nothing.
    """
    usable = [a for a in asked if a.grades.max(initial=0) > 0 and len(a.grades) > 1]
    width = max(len(a.grades) for a in usable)
    x = torch.zeros(len(usable), width, columns, dtype=torch.float64)
    right = torch.zeros(len(usable), width, dtype=torch.float64)
    absent = torch.ones(len(usable), width, dtype=torch.bool)
    for row, one in enumerate(usable):
        count = len(one.grades)
        x[row, :count] = torch.from_numpy(one.features[:, :columns])
        right[row, :count] = torch.from_numpy((one.grades > 0).astype(np.float64))
        absent[row, :count] = False
    sizes = {name: sum(a.name == name for a in usable) for name in {a.name for a in usable}}
    share = torch.tensor([1 / (len(sizes) * sizes[a.name]) for a in usable], dtype=torch.float64)
    spread = x[~absent].std(0).clamp(min=1e-6)
    weights = torch.ones(columns, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([weights], lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        scores = (x / spread) @ weights.clamp(min=0)
        chosen = scores.masked_fill(absent, -1e9).log_softmax(1)
        hit = (chosen + right.clamp(min=1e-300).log()).masked_fill(right == 0, -1e9).logsumexp(1)
        (-(hit * share).sum()).backward()
        optimiser.step()
        with torch.no_grad():
            weights.clamp_(min=0)
    direction = (weights.detach() / spread).numpy()
    flat = (x[~absent].numpy() @ direction, right[~absent].numpy())
    per = share[:, None].expand(-1, width)[~absent].numpy()
    a, b = logistic(flat[0], flat[1], per)
    return direction * a, b


def logistic(score: Floats, label: Floats, weight: Floats | None = None, steps: int = 200) -> tuple[float, float]:
    """`(a, b)`, a > 0, so that `sigmoid(a * score + b)` fits `label`, by Newton's method."""
    weight = np.ones_like(score) if weight is None else weight
    weight = weight / weight.sum()
    mean, spread = float(score.mean()), float(score.std() + 1e-9)
    design = np.stack([(score - mean) / spread, np.ones_like(score)], 1)
    found = np.zeros(2)
    for _ in range(steps):
        chance = 1 / (1 + np.exp(-np.clip(design @ found, -40, 40)))
        gradient = design.T @ (weight * (chance - label)) + 1e-6 * found
        curve = (design * (weight * chance * (1 - chance))[:, None]).T @ design + 1e-6 * np.eye(2)
        step = np.linalg.solve(curve, gradient)
        found -= np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-9:
            break
    a = max(float(found[0]), 1e-3) / spread
    return a, float(found[1]) - a * mean


def ndcg(scores: Floats, one: Asked, depth: int = 10) -> float:
    """nDCG at `depth` with gain 2^grade - 1; right passages that no retriever found count as lost."""
    order = np.argsort(-scores, kind="stable")[:depth]
    gains = 2.0**one.grades - 1
    discount = 1 / np.log2(np.arange(2, depth + 2))
    best = np.sort(gains)[::-1]
    ideal = np.concatenate([best[best > 0], np.ones(max(0, one.relevant - int((gains > 0).sum())))])[:depth]
    return float((gains[order] * discount[: len(order)]).sum() / (ideal * discount[: len(ideal)]).sum())


def rrf(features: Floats, k: int = 60) -> Floats:
    """Plain reciprocal rank fusion of BM25 and cosine, for comparison."""
    total = np.zeros(len(features))
    for column in (1, 2):
        values = features[:, column]
        rank = np.empty(len(values))
        rank[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
        total += np.where((values > 0) | (column == 2), 1 / (k + rank), 0)
    return total
