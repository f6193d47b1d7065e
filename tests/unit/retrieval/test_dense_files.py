"""The files of the graphs: a save that ends anywhere leaves a whole one, and strangers are not loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.retrieval.dense import files as dense_files
from appliance.retrieval.dense.files import load_graphs, save_graphs
from appliance.retrieval.dense.graph import GraphTier, as_unit

DIM = 8


def graph(count: int, seed: int) -> GraphTier:
    tier = GraphTier(DIM)
    tier.add(np.arange(count), as_unit(np.random.default_rng(seed).standard_normal((count, DIM))))
    return tier


def sizes(folder: Path, label: str = "store", dim: int = DIM, newest: int = 9) -> dict[str, int]:
    return {name: len(tier) for name, tier in load_graphs(folder, label, dim, newest).items()}


@pytest.mark.parametrize("step", range(1, 6))
def test_a_save_that_ends_at_any_step_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    save_graphs(tmp_path, "store", DIM, 1, {"a": graph(10, 0), "b": graph(20, 1)})
    steps = 0
    sync = dense_files._sync

    def ending(path: Path) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            raise OSError("the disk went away")
        sync(path)

    monkeypatch.setattr(dense_files, "_sync", ending)
    if step < 5:
        with pytest.raises(OSError, match="went away"):
            save_graphs(tmp_path, "store", DIM, 2, {"a": graph(30, 2), "b": graph(40, 3)})
    else:
        save_graphs(tmp_path, "store", DIM, 2, {"a": graph(30, 2), "b": graph(40, 3)})
    # Synced in this order: both graphs, the manifest, and after its rename the folder.
    assert sizes(tmp_path) == ({"a": 10, "b": 20} if step < 4 else {"a": 30, "b": 40})
    monkeypatch.setattr(dense_files, "_sync", sync)
    save_graphs(tmp_path, "store", DIM, 3, {"a": graph(50, 4)})
    assert sizes(tmp_path) == {"a": 50}
    assert len(list(tmp_path.iterdir())) == 2


def test_graphs_of_another_store_size_or_later_time_are_not_loaded(tmp_path: Path) -> None:
    save_graphs(tmp_path, "store", DIM, 5, {"a": graph(10, 0)})
    assert sizes(tmp_path) == {"a": 10}
    assert sizes(tmp_path, label="other") == {}
    assert sizes(tmp_path, dim=DIM + 1) == {}
    assert sizes(tmp_path, newest=4) == {}
    assert sizes(tmp_path / "absent") == {}


def test_no_graphs_is_a_whole_state_too(tmp_path: Path) -> None:
    save_graphs(tmp_path, "store", DIM, 1, {"a": graph(10, 0)})
    save_graphs(tmp_path, "store", DIM, 2, {})
    assert sizes(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
