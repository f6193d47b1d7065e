"""The vectors of a collection against a dict that is searched exactly, whatever parts they lie in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance.retrieval.dense.policy import Limits
from appliance.retrieval.dense.tiered import TieredVectors
from appliance.retrieval.dense.types import TARGETS, Asked, Floats, Ids
from appliance.retrieval.dense.vectors import as_unit

DIM = 24
SIZES = Limits(exact=40, seal=300, largest=10_000)


def unit(count: int, seed: int = 0) -> Floats:
    """Unit vectors as the store gives them: rounded to float16."""
    drawn = as_unit(np.random.default_rng(seed).standard_normal((count, DIM)))
    return drawn.astype(np.float16).astype(np.float32)


def clustered(count: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((40, DIM))
    drawn = as_unit(2 + centres[rng.integers(0, 40, count)] + 0.7 * rng.standard_normal((count, DIM)))
    return drawn.astype(np.float16).astype(np.float32)


def exact(vectors: Floats, query: Floats, k: int, ids: Ids | None = None) -> list[int]:
    ids = np.arange(len(vectors)) if ids is None else ids
    scores = vectors.astype(np.float64) @ query
    return [int(i) for i in ids[np.lexsort((ids, -scores))][:k]]


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[TieredVectors]:
    opened = TieredVectors(tmp_path / "tier", DIM, limits=SIZES)
    yield opened
    opened.close()


def spread(tier: TieredVectors, vectors: Floats) -> None:
    """Into a segment, a graph and a tail that is scanned."""
    third = len(vectors) // 3
    tier.add(np.arange(third), vectors[:third])
    tier.settle()
    tier.add(np.arange(third, 2 * third), vectors[third : 2 * third])
    while tier.maintain():
        pass
    tier.add(np.arange(2 * third, len(vectors)), vectors[2 * third :])


def test_the_parts_are_asked_and_told(tier: TieredVectors) -> None:
    vectors = clustered(600)
    spread(tier, vectors)
    notes: list[Asked] = []
    ids, scores = tier.search(vectors[5], 5, target=0.9, notes=notes)
    assert ids[0] == 5
    assert scores[0] == pytest.approx(1.0, abs=1e-3)
    assert sum(note.vectors for note in notes) == 600
    assert [note.part.split()[0] for note in notes] == ["cold", *["hot"] * (len(notes) - 1)]
    assert notes[0].method == "graph"
    assert notes[0].ef >= notes[0].rescored >= 5


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_is_reached(tier: TieredVectors, target: float) -> None:
    vectors = clustered(1500)
    spread(tier, vectors)
    for k in (1, 10, 60):
        questions = as_unit(vectors[::30] + 0.15 * np.random.default_rng(1).standard_normal((50, DIM)))
        found = [set(tier.search(q, k, target=target)[0].tolist()) & set(exact(vectors, q, k)) for q in questions]
        assert sum(map(len, found)) / (k * len(questions)) >= target - 0.005


def test_a_target_that_is_none_is_refused(tier: TieredVectors) -> None:
    with pytest.raises(ValueError, match="target"):
        tier.search(unit(1)[0], 5, target=0.8)


def test_an_empty_tier_and_more_wanted_than_there_are(tmp_path: Path) -> None:
    tier = TieredVectors(tmp_path, DIM, limits=SIZES)
    query = unit(1)[0]
    assert tier.search(query, 5)[0].tolist() == []
    assert np.isnan(tier.cosines(query, np.array([1, 2]))).all()
    tier.add(np.empty(0, np.int64), np.empty((0, DIM), np.float32))
    tier.settle()
    tier.close()
    tier = TieredVectors(tmp_path, DIM, limits=SIZES)
    assert (len(tier), tier.search(query, 5)[0].tolist()) == (0, [])
    tier.add(np.array([7, 9]), unit(2))
    assert sorted(tier.search(query, 50)[0].tolist()) == [7, 9]
    tier.remove(np.array([7, 9, 11]))
    tier.settle()
    assert (len(tier), tier.search(query, 5)[0].tolist()) == (0, [])
    tier.close()


@pytest.mark.parametrize("target", TARGETS)
def test_nearly_all_removed_gives_the_rest(tier: TieredVectors, target: float) -> None:
    vectors = unit(900)
    spread(tier, vectors)
    left = np.arange(0, 900, 90)
    tier.remove(np.setdiff1d(np.arange(900), left))
    for k in (3, 200):
        ids, _ = tier.search(unit(1, seed=2)[0], k, target=target)
        assert ids.tolist() == exact(vectors[left], unit(1, seed=2)[0], k, left)


def test_remove_most_and_add_as_many_again(tier: TieredVectors) -> None:
    tier.add(np.arange(1024), unit(1024))
    for turn in range(1, 4):
        tier.settle()
        tier.remove(np.array([i for i in tier.ids().tolist() if i % 10]))
        tier.add(np.arange(turn * 10_000, turn * 10_000 + 900), unit(900, seed=turn))
    query = unit(1, seed=9)[0]
    assert len(tier.search(query, 100)[0]) == 100
    assert set(tier.search(query, 100)[0].tolist()) <= set(tier.ids().tolist())


def test_an_id_that_comes_back_has_its_new_vector(tier: TieredVectors) -> None:
    vectors = unit(20)
    tier.add(np.arange(10), vectors[:10])
    tier.settle()
    tier.remove(np.array([3, 4]))
    tier.add(np.array([4, 11, 3]), vectors[[10, 11, 12]])
    tier.remove(np.array([3]))
    tier.add(np.array([3]), vectors[13:14])
    for _ in range(2):
        assert tier.ids().tolist() == [*range(10), 11]
        assert tier.search(vectors[13], 1)[0].tolist() == [3]
        assert tier.search(vectors[10], 1)[0].tolist() == [4]
        assert tier.cosines(vectors[11], np.array([11, 99]))[0] == pytest.approx(1.0, abs=1e-3)
        tier.settle()


@pytest.mark.parametrize("spoiled", [0.0, np.nan, np.inf, 3.0])
def test_what_is_no_unit_vector_is_refused_and_the_others_stay(tier: TieredVectors, spoiled: float) -> None:
    vectors = unit(10)
    tier.add(np.arange(10), vectors)
    with pytest.raises(ValueError, match="a vector is not"):
        tier.add(np.array([10, 11]), np.stack([unit(1, seed=5)[0], np.full(DIM, spoiled, np.float32)]))
    assert tier.ids().tolist() == list(range(10))
    assert tier.search(vectors[3], 1)[0].tolist() == [3]


def test_the_same_id_twice_is_refused_wherever_it_lies(tier: TieredVectors) -> None:
    tier.add(np.array([1]), unit(1))
    for _ in range(2):
        for ids in ([1], [2, 2]):
            with pytest.raises(ValueError, match="already"):
                tier.add(np.array(ids), unit(len(ids), seed=1))
        tier.settle()
    assert tier.ids().tolist() == [1]


def test_ties_are_broken_by_id_within_and_across_parts(tier: TieredVectors) -> None:
    same = np.repeat(unit(1), 60, axis=0)
    order = np.random.default_rng(0).permutation(60)
    tier.add(order[:20], same[:20])
    tier.settle()
    tier.add(order[20:], same[20:])
    for k in (8, 30, 60):
        assert tier.search(same[0], k)[0].tolist() == list(range(k))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.6])
def test_a_filter_costs_no_recall(tier: TieredVectors, target: float, share: float) -> None:
    vectors = clustered(1200)
    spread(tier, vectors)
    allowed = np.flatnonzero(np.random.default_rng(3).random(1200) < share)
    found = 0
    for query in vectors[:200:5]:
        ids = tier.search(query, 10, target=target, within=allowed)[0]
        assert np.isin(ids, allowed).all()
        found += len(set(ids.tolist()) & set(exact(vectors[allowed], query, 10, allowed)))
    assert found / (40 * min(10, len(allowed))) >= target - 0.005


def test_a_filter_that_leaves_out_all_that_is_near(tier: TieredVectors) -> None:
    vectors = clustered(1200)
    spread(tier, vectors)
    for query in vectors[:60:10]:
        far = np.sort(np.argsort(vectors @ query)[:400])
        assert tier.search(query, 10, target=0.9, within=far)[0].tolist() == exact(vectors[far], query, 10, far)
    assert tier.search(vectors[0], 5, within=np.empty(0, np.int64))[0].tolist() == []
    assert tier.search(vectors[0], 5, within=np.array([5000, 6000]))[0].tolist() == []


def test_where_a_vector_lies_does_not_change_its_cosine(tier: TieredVectors) -> None:
    vectors = clustered(500)
    tier.add(np.arange(500), vectors)
    query = unit(1, seed=8)[0]
    before = tier.cosines(query, np.arange(500))
    hits = tier.search(query, 500, target=1.0)
    tier.settle()
    assert np.array_equal(before, tier.cosines(query, np.arange(500)))
    assert np.array_equal(before[::-1], tier.cosines(query, np.arange(500)[::-1]))
    after = tier.search(query, 500, target=1.0)
    assert np.array_equal(hits[0], after[0])
    assert np.array_equal(hits[1], after[1])


def test_the_same_changes_give_the_same_answers(tmp_path: Path) -> None:
    vectors = clustered(900)
    answers = []
    for name in ("one", "two"):
        tier = TieredVectors(tmp_path / name, DIM, limits=SIZES)
        spread(tier, vectors)
        answers.append([tier.search(query, 20, target=0.9) for query in vectors[:50]])
        tier.close()
    for (ids, scores), (own_ids, own_scores) in zip(*answers, strict=True):
        assert np.array_equal(ids, own_ids)
        assert np.array_equal(scores, own_scores)


def test_small_segments_become_larger_ones_and_half_dead_ones_small(tmp_path: Path) -> None:
    tier = TieredVectors(tmp_path, DIM, limits=Limits(exact=10, seal=50, largest=10_000))
    vectors = unit(1000)
    for begin in range(0, 1000, 50):
        tier.add(np.arange(begin, begin + 50), vectors[begin : begin + 50])
        tier.settle()
    assert len(tier._view.segments) <= 6
    tier.remove(np.arange(0, 800))
    tier.settle()
    assert sum(one.size for one in tier._view.segments) < 400
    assert tier.ids().tolist() == list(range(800, 1000))
    tier.close()


def test_what_comes_faster_than_it_is_sealed_is_sealed_by_who_adds(tier: TieredVectors) -> None:
    for begin in range(0, 6000, 1000):
        tier.add(np.arange(begin, begin + 1000), unit(1000, seed=begin))
    assert len(tier._view.hots) <= 6
    assert len(tier) == 6000


def test_expected_vectors_are_found_before_and_after_they_are_read(tmp_path: Path) -> None:
    stored = dict(enumerate(unit(700).astype(np.float16)))

    def fetch(ids: Ids) -> np.ndarray[tuple[int, int], np.dtype[np.float16]]:
        gone = np.full(DIM, np.nan, np.float16)
        return np.array([stored.get(int(i), gone) for i in ids], np.float16)

    tier = TieredVectors(tmp_path, DIM, limits=SIZES, fetch=fetch)
    tier.add(np.array([3]), unit(700)[3:4])
    tier.expect(np.arange(800))
    tier.remove(np.array([17]))
    del stored[17]
    query = unit(1, seed=4)[0]
    wanted = [i for i in exact(unit(700), query, 700) if i != 17]
    assert tier.search(query, 40)[0].tolist() == wanted[:40]
    assert tier.search(query, 5, within=np.arange(100, 200))[0].tolist() == [i for i in wanted if 100 <= i < 200][:5]
    cosines = tier.cosines(query, np.array([17, 18, 750]))
    assert np.isnan(cosines).tolist() == [True, False, True]
    while tier.maintain():
        pass
    assert tier.ids().tolist() == sorted(wanted)
    assert tier.search(query, 40, target=1.0)[0].tolist() == wanted[:40]
    assert tier.cosines(query, np.array([18]))[0] == cosines[1]
    tier.close()


def test_searches_never_fail_nor_miss_what_stays_while_everything_changes(tier: TieredVectors) -> None:
    vectors = clustered(4000)
    tier.add(np.arange(500), vectors[:500])
    stopped = threading.Event()
    faults: list[BaseException | str] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not stopped.is_set():
                place = int(rng.integers(0, 500))
                ids, scores = tier.search(vectors[place], 5, target=float(rng.choice(TARGETS)))
                if place not in ids.tolist() and scores[-1] < 0.999:
                    faults.append(f"{place} was not found")
                if len(set(ids.tolist())) != len(ids) or np.any(np.diff(scores) > 0):
                    faults.append("not a ranking")
        except BaseException as fault:
            faults.append(fault)

    def maintain() -> None:
        try:
            while not stopped.is_set():
                if not tier.maintain():
                    stopped.wait(0.001)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)] + [threading.Thread(target=maintain)]
    for thread in threads:
        thread.start()
    for begin in range(500, 4000, 50):
        tier.add(np.arange(begin, begin + 50), vectors[begin : begin + 50])
        tier.remove(np.arange(begin, begin + 50, 3))
    stopped.set()
    for thread in threads:
        thread.join()
    assert faults == []
    gone = {i for begin in range(500, 4000, 50) for i in range(begin, begin + 50, 3)}
    assert tier.ids().tolist() == sorted(set(range(4000)) - gone)


def test_a_view_stays_what_it_was_whatever_happens_to_its_tier(tmp_path: Path) -> None:
    """Cold, hot and pending vectors that are removed, sealed, merged and replaced under it."""
    vectors = clustered(700, seed=9)
    stored = vectors.astype(np.float16)
    tier = TieredVectors(tmp_path, DIM, limits=SIZES, fetch=lambda ids: stored[ids])
    spread(tier, vectors[:600])
    tier.expect(np.arange(600, 700))
    view, query = tier.view(), vectors[5]
    before = {target: view.search(query, 50, target=target)[0].tolist() for target in TARGETS}
    for gone in (np.arange(0, 700, 2), np.arange(1, 700, 4)):
        tier.remove(gone)
        tier.add(gone + 1000 * (1 + gone[0]), vectors[gone])
        tier.settle()
        assert len(view) == 700 and view.ids().tolist() == list(range(700))
        assert {target: view.search(query, 50, target=target)[0].tolist() for target in TARGETS} == before
        assert view.cosines(query, np.array([4, 5, 650, 1000])) == pytest.approx(
            [*(vectors[[4, 5, 650]] @ query), np.nan], abs=2e-3, nan_ok=True
        )
    assert len(tier) == 700 and not set(tier.ids().tolist()) & set(range(0, 700, 2))
    tier.close()
