"""The contract of every dense tier, and what only the graph must bear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.retrieval.dense.graph import ExactTier, GraphTier, as_unit
from appliance.retrieval.dense.types import DenseTier, Floats

DIM = 24
MakeTier = Callable[[int], DenseTier]
tiers = pytest.mark.parametrize("make", [ExactTier, GraphTier])


def unit(count: int, seed: int = 0) -> Floats:
    return as_unit(np.random.default_rng(seed).standard_normal((count, DIM)))


def exact(vectors: dict[int, Floats], query: Floats, k: int) -> list[int]:
    return sorted(vectors, key=lambda i: (-float(vectors[i] @ query), i))[:k]


@tiers
def test_nearest_by_cosine_best_first(make: MakeTier) -> None:
    tier = make(DIM)
    vectors = unit(300)
    tier.add(np.arange(10, 310), vectors)
    for query in unit(20, seed=1):
        ids, scores = tier.search(query, 5)
        assert ids.tolist() == exact({10 + n: v for n, v in enumerate(vectors)}, query, 5)
        assert scores == pytest.approx([float(vectors[i - 10] @ query) for i in ids], abs=1e-5)


@tiers
def test_an_empty_tier_and_more_wanted_than_there_are(make: MakeTier) -> None:
    tier = make(DIM)
    query = unit(1)[0]
    assert tier.search(query, 5)[0].tolist() == []
    assert np.isnan(tier.cosines(query, np.array([1, 2]))).all()
    tier.add(np.empty(0, np.int64), np.empty((0, DIM), np.float32))
    tier.add(np.array([7, 9]), unit(2))
    assert sorted(tier.search(query, 50)[0].tolist()) == [7, 9]
    tier.remove(np.array([7, 9, 11]))
    assert len(tier) == 0
    assert tier.search(query, 5)[0].tolist() == []


@tiers
def test_nearly_all_deleted_gives_the_rest(make: MakeTier) -> None:
    tier = make(DIM)
    vectors = unit(600)
    tier.add(np.arange(600), vectors)
    tier.remove(np.array(range(590)))
    ids, _ = tier.search(unit(1, seed=2)[0], 200)
    assert sorted(ids.tolist()) == list(range(590, 600))


@tiers
def test_delete_most_of_a_full_tier_and_add_as_many_again(make: MakeTier) -> None:
    tier = make(DIM)
    tier.add(np.arange(1024), unit(1024))
    for turn in range(1, 4):
        tier.remove(np.array([i for i in tier.ids().tolist() if i % 10]))
        fresh = np.arange(turn * 10_000, turn * 10_000 + 900)
        tier.add(fresh, unit(900, seed=turn))
    query = unit(1, seed=9)[0]
    assert len(tier.search(query, 100)[0]) == 100
    assert set(tier.search(query, 100)[0].tolist()) <= set(tier.ids().tolist())


@tiers
def test_an_id_that_comes_back_has_its_new_vector(make: MakeTier) -> None:
    tier = make(DIM)
    vectors = unit(20)
    tier.add(np.arange(10), vectors[:10])
    tier.remove(np.array([3, 4]))
    tier.add(np.array([4, 11, 3]), vectors[[10, 11, 12]])
    assert sorted(tier.ids().tolist()) == [*range(10), 11]
    assert tier.search(vectors[12], 1)[0].tolist() == [3]
    assert tier.search(vectors[10], 1)[0].tolist() == [4]
    assert tier.cosines(vectors[11], np.array([11, 99]))[0] == pytest.approx(1.0, abs=1e-5)


@tiers
@pytest.mark.parametrize("spoiled", [0.0, np.nan, np.inf, 3.0])
def test_what_is_no_unit_vector_is_refused_and_the_others_stay(make: MakeTier, spoiled: float) -> None:
    tier = make(DIM)
    vectors = unit(10)
    tier.add(np.arange(10), vectors)
    with pytest.raises(ValueError, match="a vector is not"):
        tier.add(np.array([10, 11]), np.stack([unit(1, seed=5)[0], np.full(DIM, spoiled, np.float32)]))
    assert tier.ids().tolist() == list(range(10))
    assert tier.search(vectors[3], 1)[0].tolist() == [3]


@tiers
def test_the_same_id_twice_is_refused(make: MakeTier) -> None:
    tier = make(DIM)
    tier.add(np.array([1]), unit(1))
    with pytest.raises(ValueError, match="already"):
        tier.add(np.array([1]), unit(1, seed=1))


@tiers
def test_ties_are_broken_by_id(make: MakeTier) -> None:
    tier = make(DIM)
    same = np.repeat(unit(1), 8, axis=0)
    tier.add(np.array([5, 3, 8, 1, 9, 2, 7, 4]), same)
    assert tier.search(same[0], 8)[0].tolist() == [1, 2, 3, 4, 5, 7, 8, 9]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([ExactTier, GraphTier]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60),
)
def test_any_order_of_adding_and_removing_is_like_a_dict(
    make: type[ExactTier] | type[GraphTier], steps: list[tuple[bool, int]]
) -> None:
    tier = make(DIM)
    mirror: dict[int, Floats] = {}
    for seed, (adding, chunk_id) in enumerate(steps):
        if adding and chunk_id not in mirror:
            mirror[chunk_id] = unit(1, seed=seed)[0]
            tier.add(np.array([chunk_id]), mirror[chunk_id][None, :])
        elif not adding:
            mirror.pop(chunk_id, None)
            tier.remove(np.array([chunk_id]))
        assert tier.ids().tolist() == sorted(mirror)
    query = unit(1, seed=999)[0]
    assert tier.search(query, 5)[0].tolist() == exact(mirror, query, 5)


def test_a_graph_is_the_same_after_saving_and_loading(tmp_path: Path) -> None:
    graph = GraphTier(DIM)
    vectors = unit(400)
    graph.add(np.arange(400), vectors)
    graph.remove(np.arange(0, 400, 3))
    deleted = graph.save(tmp_path / "graph")
    loaded = GraphTier.load(tmp_path / "graph", DIM, deleted)
    assert loaded.ids().tolist() == graph.ids().tolist()
    for query in unit(10, seed=3):
        assert loaded.search(query, 10)[0].tolist() == graph.search(query, 10)[0].tolist()
    loaded.add(np.arange(1000, 1800), unit(800, seed=4))
    assert loaded.search(unit(800, seed=4)[5], 1)[0].tolist() == [1005]


def test_an_empty_graph_saves_and_loads(tmp_path: Path) -> None:
    deleted = GraphTier(DIM).save(tmp_path / "graph")
    loaded = GraphTier.load(tmp_path / "graph", DIM, deleted)
    loaded.add(np.array([1]), unit(1))
    assert loaded.search(unit(1)[0], 3)[0].tolist() == [1]


def test_the_graph_finds_what_the_exact_scan_finds() -> None:
    centres = np.random.default_rng(0).standard_normal((40, DIM))
    points = np.repeat(centres, 75, axis=0) + 0.7 * np.random.default_rng(1).standard_normal((3000, DIM))
    vectors = as_unit(points)
    graph, scan = GraphTier(DIM), ExactTier(DIM)
    graph.add(np.arange(3000), vectors)
    scan.add(np.arange(3000), vectors)
    hits = [len(set(graph.search(v, 10)[0]) & set(scan.search(v, 10)[0])) for v in vectors[::100]]
    assert sum(hits) / (10 * len(hits)) >= 0.98
