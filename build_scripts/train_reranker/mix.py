"""Owns fitting the small models that join the stages: non-negative weights by Newton's method, nDCG, chance.

Must not know models or sets; the appliance applies the weights that are fitted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FUSED = ("lex", "dense")
Floats = npt.NDArray[np.float64]
# Weights of the logit that are tried next to the first stage's, whose logit weighs 1.
SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 2.5, 4.0, 8.0, 20.0)
ALLOWED = 0.003  # nDCG@10 that counts as no difference
_RIDGE = 1e-4


@dataclass(slots=True)
class Asked:
    """One query's candidates: features (candidates, columns), grades (candidates,), the set it belongs to."""

    name: str
    features: Floats
    grades: Floats
    relevant: int


def first_stage(bm25: Sequence[float], dense: Sequence[float]) -> Floats:
    """(candidates, 2) to rank by while training, where a question's mass is not known: BM25 over the best, cosine."""
    raw = np.array(bm25, np.float64)
    top = raw.max(initial=0.0)
    return np.stack([raw / top if top > 0 else raw, np.array(dense, np.float64)], 1)


def fit(asked: Sequence[Asked]) -> tuple[Floats, float]:
    """Weights (columns,) >= 0 and bias such that `sigmoid(features @ weights + bias)` is a probability.

    The direction minimises the listwise softmax loss, each set counting the same; its length and the bias
    come from a logistic regression on all candidates. Queries without a right candidate teach nothing.
    """
    usable = [a for a in asked if a.grades.max(initial=0) > 0 and len(a.grades) > 1]
    share = even([a.name for a in usable])
    direction = _listwise(usable, share)
    score = np.concatenate([a.features @ direction for a in usable])
    label = np.concatenate([a.grades > 0 for a in usable]).astype(np.float64)
    weights, bias = logistic(score[:, None], label, np.repeat(share, [len(a.grades) for a in usable]))
    return direction * weights[0], bias


def even(names: Sequence[str]) -> Floats:
    """(n,) weights that sum to 1, each name having the same part."""
    known, places, counts = np.unique(np.array(names), return_inverse=True, return_counts=True)
    return np.asarray(1 / (len(known) * counts[places]), np.float64)


def logistic(features: Floats, label: Floats, share: Floats) -> tuple[Floats, float]:
    """Weights (columns,) >= 0 and bias such that `sigmoid(features @ weights + bias)` fits `label` (n,), 0 or 1."""
    mean, spread = features.mean(0), features.std(0) + 1e-9
    share = share / share.sum()
    kept = np.arange(features.shape[1])
    while True:
        design = np.column_stack([((features - mean) / spread)[:, kept], np.ones(len(label))])
        found = np.zeros(design.shape[1])
        for _ in range(200):
            chance = 0.5 * (1 + np.tanh(0.5 * (design @ found)))
            gradient = design.T @ (share * (chance - label)) + _RIDGE * found
            curve = (design * (share * chance * (1 - chance))[:, None]).T @ design + _RIDGE * np.eye(len(found))
            step = np.linalg.solve(curve, gradient)
            found = found - np.clip(step, -1, 1)
            if np.abs(step).max() < 1e-9:
                break
        if not len(kept) or (found[:-1] >= 0).all():
            break
        kept = np.delete(kept, found[:-1].argmin())
    weights = np.zeros(features.shape[1])
    weights[kept] = found[:-1] / spread[kept]
    return weights, float(found[-1] - weights @ mean)


def fit_final(asked: Sequence[Asked]) -> tuple[float, float, float]:
    """`(first, ce, bias)` of the final mix over features (candidates, 2): the first stage's logit, the reranker's.

    The reranker's share is the one of SHARES with the best mean nDCG@10 over the sets among those that rank no set
    worse than its better input, within chance; where there is none, the one whose worst loss is least. A likelihood
    would buy one set's gain with another's loss.
    """

    def by_query(share: float) -> Floats:
        return np.array([ndcg(a.features @ np.array([1.0, share]), a) for a in asked])

    names = np.array([a.name for a in asked])
    inputs = (by_query(0.0), np.array([ndcg(a.features[:, 1], a) for a in asked]))
    best: list[tuple[npt.NDArray[np.bool_], Floats]] = []
    for name in dict.fromkeys(names.tolist()):
        own = names == name
        best.append((own, max((one[own] for one in inputs), key=lambda values: float(values.mean()))))

    def judged(share: float) -> tuple[float, float]:
        """How much worse than chance explains it is on the worst set, and the mean over sets."""
        values = by_query(share)
        losses = [max(0.0, -(values[own] - top).mean() - allowance(values[own] - top)) for own, top in best]
        return max(losses), float(np.mean([values[own].mean() for own, _ in best]))

    share = max(SHARES, key=lambda s: (-judged(s)[0], judged(s)[1]))
    score = np.concatenate([a.features @ np.array([1.0, share]) for a in asked])
    label = np.concatenate([a.grades > 0 for a in asked]).astype(np.float64)
    weights, bias = logistic(score[:, None], label, np.repeat(even(names.tolist()), [len(a.grades) for a in asked]))
    return float(weights[0]), float(weights[0]) * share, bias


def allowance(differences: Floats) -> float:
    """How far the mean of paired differences may be from 0 by chance: two standard errors, at least ALLOWED."""
    return max(ALLOWED, 2 * float(differences.std()) / float(np.sqrt(max(1, len(differences)))))


def ndcg(scores: Floats, one: Asked, depth: int = 10) -> float:
    """nDCG at `depth` with gain 2^grade - 1; right passages that no retriever found count as lost."""
    order = np.argsort(-scores, kind="stable")[:depth]
    gains = 2.0**one.grades - 1
    discount = 1 / np.log2(np.arange(2, depth + 2))
    best = np.sort(gains)[::-1]
    ideal = np.concatenate([best[best > 0], np.ones(max(0, one.relevant - int((gains > 0).sum())))])[:depth]
    return float((gains[order] * discount[: len(order)]).sum() / (ideal * discount[: len(ideal)]).sum())


def _listwise(asked: Sequence[Asked], share: Floats) -> Floats:
    """The direction (columns,) >= 0 of least listwise softmax loss: a right candidate should have all the mass."""
    width, columns = max(len(a.grades) for a in asked), asked[0].features.shape[1]
    x = np.zeros((len(asked), width, columns))
    right, there = np.zeros((len(asked), width), bool), np.zeros((len(asked), width), bool)
    for row, one in enumerate(asked):
        x[row, : len(one.grades)] = one.features
        right[row, : len(one.grades)] = one.grades > 0
        there[row, : len(one.grades)] = True
    spread = x[there].std(0) + 1e-9
    x /= spread
    kept = np.arange(columns)
    while True:
        found = _descend(x[:, :, kept], right, there, share)
        if (found >= 0).all():
            break
        kept = np.delete(kept, found.argmin())
    direction = np.zeros(columns)
    direction[kept] = found / spread[kept]
    return direction


def _descend(x: Floats, right: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_], share: Floats) -> Floats:
    """Newton's method with halved steps."""

    def look(weights: Floats) -> tuple[float, Floats, Floats]:
        scores = np.where(there, x @ weights, -np.inf)
        mass = np.exp(scores - scores.max(1, keepdims=True))
        of_right = (mass * right).sum(1, keepdims=True) + 1e-300
        loss = -(share * np.log(of_right / mass.sum(1, keepdims=True))[:, 0]).sum() + _RIDGE * weights @ weights
        return float(loss), mass / mass.sum(1, keepdims=True), mass * right / of_right

    weights = np.zeros(x.shape[2])
    loss, chance, wanted = look(weights)
    for _ in range(100):
        mean = np.einsum("qc,qck->qk", chance, x)
        gradient = share @ (mean - np.einsum("qc,qck->qk", wanted, x)) + 2 * _RIDGE * weights
        curve = np.einsum("q,qc,qck,qcj->kj", share, chance, x, x, optimize=True)
        curve += 2 * _RIDGE * np.eye(len(weights)) - np.einsum("q,qk,qj->kj", share, mean, mean)
        step = np.linalg.solve(curve, gradient)
        part = 1.0
        while part > 1e-6 and look(weights - part * step)[0] > loss:
            part /= 2
        before, weights = loss, weights - part * step
        loss, chance, wanted = look(weights)
        if before - loss < 1e-10:
            break
    return weights
