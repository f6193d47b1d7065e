"""Any order of adding, replacing, removing, sealing, merging, crashing and restarting is like a dict."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.retrieval.dense.policy import Limits
from appliance.retrieval.dense.tiered import TieredVectors
from appliance.retrieval.dense.types import TARGETS, Floats, Ids
from appliance.retrieval.dense.vectors import Halves
from tests.unit.retrieval.test_dense import DIM, clustered, exact

SIZES = Limits(exact=8, seal=24, largest=200)
POOL = clustered(4000, seed=5)


class Crash(BaseException):
    """The process ended here."""


class TierAndDict(RuleBasedStateMachine):
    """The owner of a tier: a store that has everything, and mends the tier when it opens it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stored: dict[int, Floats] = {}
        self.next_id = 0
        self.tier = self.open()

    def open(self) -> TieredVectors:
        return TieredVectors(self.folder, DIM, limits=SIZES, fetch=self.fetch)

    def fetch(self, ids: Ids) -> Halves:
        gone = np.full(DIM, np.nan, np.float32)
        return np.array([self.stored.get(int(i), gone) for i in ids], np.float16).reshape(len(ids), DIM)

    @rule(count=st.integers(1, 40), backwards=st.booleans(), apart=st.integers(1, 3))
    def add(self, count: int, backwards: bool, apart: int) -> None:
        ids = np.arange(self.next_id, self.next_id + count * apart, apart)
        self.next_id += count * apart
        ids = ids[::-1].copy() if backwards else ids
        vectors = POOL[ids % len(POOL)]
        self.stored.update(zip(ids.tolist(), vectors, strict=True))
        self.tier.add(ids, vectors)

    @rule(data=st.data(), share=st.sampled_from([0.1, 0.5, 1.0]))
    def remove(self, data: st.DataObject, share: float) -> None:
        seed = data.draw(st.integers(0, 100))
        gone = [
            i
            for i, lot in zip(self.stored, np.random.default_rng(seed).random(len(self.stored)), strict=True)
            if lot < share
        ]
        for i in gone:
            del self.stored[i]
        self.tier.remove(np.array([*gone, 10**9], np.int64))

    @rule(seed=st.integers(0, 100))
    def replace(self, seed: int) -> None:
        """The same ids with other vectors."""
        if self.stored:
            ids = np.unique(np.random.default_rng(seed).choice(list(self.stored), 5))
            vectors = POOL[(ids * 7 + seed) % len(POOL)]
            self.tier.remove(ids)
            self.tier.add(ids, vectors)
            self.stored.update(zip(ids.tolist(), vectors, strict=True))

    @rule()
    def maintain(self) -> None:
        self.tier.maintain()

    @rule()
    def settle(self) -> None:
        self.tier.settle()

    @rule(saved=st.booleans(), later=st.booleans())
    def restart(self, saved: bool, later: bool) -> None:
        if saved:
            self.tier.close()
        self.reopen(later)
        if saved and not later:
            assert self.tier.ids().tolist() == sorted(self.stored)

    @rule(step=st.integers(1, 25), closing=st.booleans())
    def crash(self, step: int, closing: bool) -> None:
        """End before the `step`-th call that changes the disk."""
        real = {(owner, name): getattr(owner, name) for owner, name in ((os, "fsync"), (os, "link"), (Path, "unlink"))}
        left = step

        def counted(call: Any) -> Any:
            def counting(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left <= 0:
                    raise Crash
                return call(*args, **kwargs)

            return counting

        for (owner, name), call in real.items():
            setattr(owner, name, counted(call))
        try:
            self.tier.settle()
            if closing:
                self.tier.close()
        except Crash:
            pass
        finally:
            for (owner, name), call in real.items():
                setattr(owner, name, call)
        self.reopen(later=False)

    def reopen(self, later: bool) -> None:
        """As the owner does: replaced vectors are told from what is in the files by their ids only, so they go."""
        self.tier = self.open()
        wanted = np.array(sorted(self.stored), np.int64)
        have = self.tier.ids()
        stale = [i for i in have.tolist() if i not in self.stored or self.is_stale(i)]
        self.tier.remove(np.array(stale, np.int64))
        missing = np.setdiff1d(wanted, self.tier.ids())
        if later:
            self.tier.expect(missing)
        elif len(missing):
            self.tier.add(missing, np.stack([self.stored[i] for i in missing.tolist()]))

    def is_stale(self, chunk_id: int) -> bool:
        return bool(self.tier.cosines(self.stored[chunk_id], np.array([chunk_id]))[0] < 0.9999)

    @invariant()
    def finds_what_a_dict_finds(self) -> None:
        ids = np.array(sorted(self.stored), np.int64)
        assert len(self.tier) == len(ids)
        assert self.tier.ids().tolist() == ids.tolist()
        vectors = np.array([self.stored[i] for i in ids.tolist()], np.float32).reshape(-1, DIM)
        query = POOL[(self.next_id * 31 + 1) % len(POOL)]
        for k, within in ((5, None), (1000, None), (5, ids[::3])):
            chosen = ids if within is None else within
            own = vectors if within is None else vectors[::3]
            found, scores = self.tier.search(query, k, target=1.0, within=within)
            wanted = exact(own, query, k, chosen)
            assert sorted(found.tolist()) == sorted(wanted) or np.allclose(
                scores, np.sort(own @ query)[::-1][:k], atol=1e-6
            )
            assert np.all(np.diff(scores) <= 0)
            for target in TARGETS[:-1]:
                rough = self.tier.search(query, k, target=target, within=within)[0]
                assert len(rough) == len(wanted)
                assert len(set(rough.tolist())) == len(rough)
                assert set(rough.tolist()) <= set(chosen.tolist())
        assert np.allclose(self.tier.cosines(query, ids), vectors @ query, atol=1e-5)

    def teardown(self) -> None:
        self.tier.settle()
        assert self.tier.verify() == []
        self.tier.close()
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("count", [SIZES.seal - 1, SIZES.seal, 4 * SIZES.seal + 1])
def test_hot_vectors_come_back_in_tiers_of_the_size_they_had(tmp_path: Path, count: int) -> None:
    """More may be hot than one tier holds; what was added after such a start was once there twice."""
    before = TieredVectors(tmp_path, DIM, limits=SIZES)
    before.add(np.arange(count), POOL[:count])
    before.close()
    after = TieredVectors(tmp_path, DIM, limits=SIZES)
    after.add(np.arange(count, count + 40), POOL[count : count + 40])
    assert after.ids().tolist() == list(range(count + 40))
    after.settle()
    assert after.ids().tolist() == list(range(count + 40))


TestTierAndDict = TierAndDict.TestCase
TestTierAndDict.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
