"""What is merged, and the effort that reaches a target, as decisions over plain data."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from appliance.retrieval.dense.effort import Effort, effort_for, measure
from appliance.retrieval.dense.policy import Limits, SegmentSize, segments_to_merge
from appliance.retrieval.dense.quantize import Quantizer
from appliance.retrieval.dense.types import TARGETS, Floats
from appliance.retrieval.dense.vectors import Halves, Query, Rows
from tests.unit.retrieval.test_dense import DIM, clustered, exact

LIMITS = Limits(exact=10, seal=100, largest=10_000)
sizes = st.lists(
    st.integers(1, 20_000).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total))), max_size=30
).map(lambda drawn: [SegmentSize(total, alive) for total, alive in drawn])


@given(sizes, st.booleans())
def test_merging_ends_with_few_segments_and_none_half_dead(segments: list[SegmentSize], quiet: bool) -> None:
    written = 0
    while chosen := segments_to_merge(segments, LIMITS, quiet=quiet):
        assert len(set(chosen)) == len(chosen)
        alive = sum(segments[place].alive for place in chosen)
        assert len(chosen) == 1 or alive <= LIMITS.largest
        written += alive
        segments = [one for place, one in enumerate(segments) if place not in chosen]
        segments += [SegmentSize(alive, alive)] if alive else []
    assert all(one.alive * 2 >= one.total for one in segments)
    assert len([one for one in segments if one.alive <= 200]) < 4
    assert written <= 12 * 30 * 20_000
    if quiet and segments and sum(one.alive for one in segments) <= LIMITS.largest:
        assert sum(one.alive for one in segments) <= 1.125 * max(one.alive for one in segments)


def test_effort_grows_with_k_and_is_unknown_where_a_depth_is() -> None:
    efforts = tuple(Effort(0.9, k, ef, rescored, 0.9) for k, ef, rescored in ((10, 16, 15), (100, 128, 150)))
    assert effort_for(efforts, 0.9, 1) == (16, 15)
    assert effort_for(efforts, 0.9, 10) == (16, 15)
    assert effort_for(efforts, 0.9, 55) == (72, 83)
    assert effort_for(efforts, 0.9, 200) == (256, 300)
    assert effort_for(efforts, 0.95, 10) is None
    assert effort_for(efforts[:1], 0.9, 10) is None


def test_a_target_that_no_walk_reaches_has_no_effort() -> None:
    rows = clustered(400).astype(np.float16)
    blind = np.random.default_rng(0)

    def walk_all(questions: Floats, ef: int) -> Rows:
        return np.stack([blind.permutation(400)[:ef] for _ in questions])

    assert all(effort.recall >= effort.target and effort.ef > 300 for effort in measure(rows, walk_all))

    def scan_all(questions: Floats, ef: int) -> Rows:
        return np.argsort(-(questions @ rows.astype(np.float32).T), axis=1)[:, :ef]

    efforts = measure(rows, scan_all)
    assert {effort.target for effort in efforts} == set(TARGETS[:-1])
    assert {(effort.k, effort.ef, effort.rescored) for effort in efforts} == {(10, 10, 10), (100, 128, 100)}


def test_codes_of_the_difference_order_as_cosines_do() -> None:
    vectors = clustered(2000)
    quantizer = Quantizer.fit(vectors.astype(np.float16))
    encode = quantizer.encoder()
    codes = encode(vectors).astype(np.int32)
    assert np.abs(codes).max() <= 127
    assert 0 <= quantizer.clipped < 0.01
    found = 0
    for question in clustered(50, seed=1):
        distances = ((codes - encode(question).astype(np.int32)) ** 2).sum(axis=1)
        found += len(set(np.argsort(distances)[:20].tolist()) & set(exact(vectors, question, 10)))
    assert found >= 495


def test_codes_of_equal_vectors_do_not_divide_by_nothing() -> None:
    same: Halves = np.repeat(clustered(1).astype(np.float16), 5, axis=0)
    assert np.array_equal(Quantizer.fit(same).encoder()(same), np.zeros((5, DIM), np.int8))


@given(st.integers(0, 100), st.sampled_from([1, 10, 700, 6000]))
def test_a_long_scan_finds_what_a_short_one_would(seed: int, k: int) -> None:
    """From some thousands of rows on, half of the question's digits choose whose cosines are computed."""
    rows = np.repeat(clustered(500, seed=seed % 3), 10, axis=0).astype(np.float16)
    query = Query(clustered(1, seed=seed)[0])
    alive = np.random.default_rng(seed).random(5000) < 0.7
    places, scores = query.nearest(rows, k, alive)
    cosines = query.cosines(rows)
    assert np.array_equal(scores, cosines[places])
    wanted = np.flatnonzero(alive)
    if k < len(wanted):
        wanted = wanted[cosines[wanted] >= np.sort(cosines[wanted])[-k]]
    assert sorted(places.tolist()) == wanted.tolist()
