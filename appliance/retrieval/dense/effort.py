"""Owns how hard a graph must be asked to reach a recall target: measured once, looked up in every search.

Must not know which graph it is.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from appliance.retrieval.dense.types import TARGETS, Floats
from appliance.retrieval.dense.vectors import Halves, Rows

DEPTHS = (10, 100)  # k at which recall is measured; between them the effort is interpolated
_LADDER = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)  # ef
_RESCORED = (1.0, 1.5, 2.0, 4.0)  # times k; and then all candidates
_QUESTIONS = 256
_STANDARD_ERRORS = 2.0
_DRIFT = 0.5  # how far questions lie from passages, as a share of how far passages lie from their mean
_DRIFTERS = 64  # passages of which the way is mixed
_AT_ONCE = 32  # questions: so much work is done between two looks at whether it is still wanted
_BLOCK = 16_384


class Effort(msgspec.Struct, frozen=True):
    """What reaches a target at a depth: candidates that the walk keeps, and how many are scored exactly."""

    target: float
    k: int
    ef: int
    rescored: int
    recall: float  # as measured


Efforts = tuple[Effort, ...]


def effort_for(efforts: Efforts, target: float, k: int) -> tuple[int, int] | None:
    """`(ef, rescored)` for the `k` nearest at `target`; None where only the exact scan reaches it."""
    found = {effort.k: effort for effort in efforts if effort.target == target}
    if len(found) < len(DEPTHS):
        return None
    low, high = (found[depth] for depth in DEPTHS)
    if k <= low.k:
        return low.ef, max(k, low.rescored)
    if k >= high.k:
        return _up(high.ef * k / high.k), _up(high.rescored * k / high.k)
    share = (k - low.k) / (high.k - low.k)
    return _up(low.ef + share * (high.ef - low.ef)), _up(low.rescored + share * (high.rescored - low.rescored))


def measure(rows: Halves, walk_all: Callable[[Floats, int], Rows]) -> Efforts:
    """Find the least effort for every target and depth, against the exact answers to made questions.

    Args:
        rows: all vectors `(n, dim)` of the graph.
        walk_all: the graph's own search: places `(q, ef)` of the nearest to each of `(q, dim)` vectors, best first,
            -1 where it found fewer. Given few at a time.

    The mean recall less two standard errors must reach the target: a walk that ends in the wrong place misses all of
    the nearest, so few questions decide. What is not reached is left out.
    """
    if len(rows) <= _LADDER[0]:
        return ()
    questions = _questions(rows)
    exact = _exact(rows, questions, max(DEPTHS))
    efforts: list[Effort] = []
    missing = {depth: [target for target in TARGETS if target < 1.0] for depth in DEPTHS}
    for ef in _LADDER:
        if ef >= len(rows) or not any(missing.values()):
            break
        slices = range(0, len(questions), _AT_ONCE)
        found = np.concatenate([walk_all(questions[begin : begin + _AT_ONCE], ef) for begin in slices])
        for depth in (depth for depth in DEPTHS if missing[depth] and ef >= depth):
            reached = _recalls(found, exact[:, :depth])
            for rescored in sorted({min(ef, int(depth * share)) for share in _RESCORED} | {ef}):
                recalls = reached[:, rescored - 1]
                sure = float(recalls.mean() - _STANDARD_ERRORS * recalls.std() / np.sqrt(len(recalls)))
                for target in [target for target in missing[depth] if sure >= target]:
                    efforts.append(Effort(target, depth, ef, rescored, float(recalls.mean())))
                    missing[depth].remove(target)
    return tuple(efforts)


def _recalls(found: Rows, exact: Rows) -> Floats:
    """Recall `(q, ef)` when the first 1, 2, ... `ef` candidates are scored exactly.

    What is among the nearest is among the best of those that are scored, so that nothing need be scored here.
    """
    hits = np.stack([np.isin(some, nearest) for some, nearest in zip(found, exact, strict=True)])
    return np.cumsum(hits, axis=1, dtype=np.float32) / np.float32(exact.shape[1])


def _questions(rows: Halves) -> Floats:
    """Vectors near stored ones, but off them by a random mix of what tells stored ones from their mean.

    Stored vectors themselves would be too easy: a question is no passage, and lies farther from its answers. Walks
    for these are about as hard as for the questions of the recall benchmark, a little harder at a large ef.
    """
    rng = np.random.default_rng(len(rows))
    base = rows[rng.integers(0, len(rows), _QUESTIONS)].astype(np.float32)
    drifters = rows[rng.integers(0, len(rows), (_QUESTIONS, _DRIFTERS))].astype(np.float32)
    drifters -= drifters.mean(axis=(0, 1))
    weights = rng.standard_normal((_QUESTIONS, 1, _DRIFTERS)).astype(np.float32) * np.float32(_DRIFT / _DRIFTERS**0.5)
    moved = base + (weights @ drifters)[:, 0, :]
    norms = np.linalg.norm(moved, axis=1, keepdims=True)
    return np.asarray(moved / np.where(norms == 0, 1.0, norms), np.float32)


def _exact(rows: Halves, questions: Floats, k: int) -> Rows:
    """Places `(q, k)` of the nearest, best first; fewer columns when there are not as many rows."""
    k = min(k, len(rows))
    scores = np.empty((len(questions), 0), np.float32)
    places = np.empty((len(questions), 0), np.int64)
    for begin in range(0, len(rows), _BLOCK):
        block = questions @ rows[begin : begin + _BLOCK].astype(np.float32).T
        scores = np.concatenate([scores, block], axis=1)
        places = np.concatenate(
            [places, np.tile(np.arange(begin, begin + block.shape[1]), (len(questions), 1))], axis=1
        )
        order = np.argpartition(-scores, min(k, scores.shape[1]) - 1, axis=1)[:, :k]
        scores, places = np.take_along_axis(scores, order, axis=1), np.take_along_axis(places, order, axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def _up(value: float) -> int:
    return int(np.ceil(value))
