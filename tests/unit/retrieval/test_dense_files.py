"""The files of a tier: whatever ends anywhere, what was saved before is whole, and strangers are not believed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.retrieval.dense import files
from appliance.retrieval.dense.effort import measure
from appliance.retrieval.dense.policy import Limits
from appliance.retrieval.dense.tiered import TieredVectors
from tests.unit.retrieval.test_dense import DIM, unit

SIZES = Limits(exact=10, seal=50, largest=1000)


class Crash(BaseException):
    """The process ended here."""


def opened(folder: Path, **more: Any) -> TieredVectors:
    return TieredVectors(folder, DIM, limits=SIZES, **more)


def filled(folder: Path) -> TieredVectors:
    """With a segment, removed rows and hot vectors, all saved."""
    tier = opened(folder)
    tier.add(np.arange(60), unit(60))
    tier.settle()
    tier.remove(np.arange(0, 20))
    tier.add(np.arange(60, 75), unit(75)[60:])
    tier.close()
    return opened(folder)


def step_by_step(monkeypatch: pytest.MonkeyPatch, crash_at: int) -> list[str]:
    """Count what changes the disk; end before the step with number `crash_at`, and so does what would clean up."""
    seen: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            if len(seen) >= crash_at:
                raise Crash(name)
            return real(*args, **kwargs)

        return step

    for owner, name in (
        (os, "fsync"),
        (os, "link"),
        (Path, "rename"),
        (Path, "unlink"),
        (Path, "mkdir"),
        (files, "write_synced"),
        (shutil, "rmtree"),
    ):
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return seen


def change(tier: TieredVectors) -> None:
    tier.remove(np.arange(20, 50))  # now the segment is half dead
    tier.add(np.arange(100, 180), unit(80, seed=1))
    tier.settle()
    tier.close()


def test_a_change_that_ends_at_any_step_leaves_what_was_or_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(range(20, 75))
    after = (before - set(range(20, 50))) | set(range(100, 180))
    vectors = np.concatenate([unit(75), np.zeros((25, DIM), np.float32), unit(80, seed=1)])
    filled(tmp_path / "whole").close()
    shutil.copytree(tmp_path / "whole", tmp_path / "0")
    tier = opened(tmp_path / "0")
    with monkeypatch.context() as patched:
        seen = step_by_step(patched, sys.maxsize)
        change(tier)
    assert {"fsync", "link", "rename", "unlink", "mkdir", "write_synced", "rmtree"} <= set(seen)
    for crash_at in range(1, len(seen) + 1):
        folder = tmp_path / str(crash_at)
        shutil.copytree(tmp_path / "whole", folder)
        tier = opened(folder)
        with monkeypatch.context() as patched:
            step_by_step(patched, crash_at)
            with pytest.raises(Crash):
                change(tier)
        again = opened(folder)
        found = set(again.ids().tolist())
        # Hot vectors of a crash are added again by the owner, and what was removed is removed again.
        assert found <= before | after
        assert set(range(50, 60)) <= found
        again.remove(np.array(sorted(found - after)))
        missing = np.array(sorted(after - found), np.int64)
        again.add(missing, vectors[missing])
        assert again.search(unit(80, seed=1)[7], 1)[0].tolist() == [107]
        again.settle()
        again.close()
        last = opened(folder)
        assert set(last.ids().tolist()) == after
        assert last.verify() == []
        last.close()
        assert not list(folder.glob("*.tmp"))
        assert len(list(folder.glob("manifest-*"))) == 1


def test_a_killed_writer_leaves_a_folder_that_opens(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        import numpy as np
        from appliance.retrieval.dense.policy import Limits
        from appliance.retrieval.dense.tiered import TieredVectors
        from tests.unit.retrieval.test_dense import DIM, unit
        tier = TieredVectors(Path(sys.argv[1]), DIM, limits=Limits(exact=10, seal=50, largest=1000))
        begin = int(tier.ids().max(initial=-1)) + 1
        print("go", flush=True)
        for begin in range(begin, begin + 100_000, 50):
            tier.add(np.arange(begin, begin + 50), unit(50, seed=begin))
            tier.settle()
            print(begin + 50, flush=True)
    """
    for turn in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(3 + turn)]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.read().splitlines()
        child.wait()
        child.stdout.close()
        sealed = int([line for line in lines if line.strip().isdecimal()][-1])
        tier = opened(tmp_path)
        assert set(range(sealed)) <= set(tier.ids().tolist())
        assert tier.verify() == []
        assert tier.search(unit(50, seed=sealed - 50)[9], 1)[0].tolist() == [sealed - 41]
        tier.close()


def test_an_old_handle_never_overwrites_a_newer_index(tmp_path: Path) -> None:
    old = filled(tmp_path)
    new = opened(tmp_path)
    new.add(np.arange(200, 260), unit(60, seed=2))
    new.settle()
    new.close()
    kept = sorted(tmp_path.iterdir())
    old.remove(np.arange(75))
    old.add(np.arange(300, 360), unit(60, seed=3))
    old.settle()
    assert not old.maintain()
    assert old.search(unit(60, seed=3)[1], 1)[0].tolist() == [301]
    old.close()
    assert sorted(tmp_path.iterdir()) == kept
    again = opened(tmp_path)
    assert set(again.ids().tolist()) == set(range(20, 75)) | set(range(200, 260))
    again.close()


@pytest.mark.parametrize(
    ("strange", "known"), [({"label": "other"}, False), ({"newest": 4}, False), ({"newest": 5}, True)]
)
def test_what_is_of_another_store_or_later_time_is_not_believed_now_nor_later(
    tmp_path: Path, strange: dict[str, Any], known: bool
) -> None:
    tier = opened(tmp_path)
    tier.generation = 5
    tier.add(np.arange(60), unit(60))
    tier.close()
    tier = opened(tmp_path, **strange)
    assert len(tier) == (60 if known else 0)
    # It ends without a word; by now the store may have come to the generation of what was there.
    again = opened(tmp_path, label=strange.get("label", ""), newest=6)
    assert len(again) == (60 if known else 0)


def test_a_folder_of_another_length_is_not_believed(tmp_path: Path) -> None:
    filled(tmp_path).close()
    assert len(TieredVectors(tmp_path, DIM + 1)) == 0


def test_damage_anywhere_is_found_and_the_rest_is_kept(tmp_path: Path) -> None:
    filled(tmp_path / "whole").close()
    names = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    assert {name.name.split("-")[0] for name in names} == {
        "manifest",
        "hot",
        "dead",
        "header",
        "graph",
        "vectors",
        "ids",
    }
    for name in names:
        for damage in ("flip", "cut", "lose"):
            folder = tmp_path / f"{name.name}-{damage}"
            shutil.copytree(tmp_path / "whole", folder)
            data = bytearray((folder / name).read_bytes())
            data[len(data) // 2] ^= 0x15
            if damage == "lose":
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(data if damage == "flip" else data[: len(data) // 2])
            tier = opened(folder)
            found = set(tier.ids().tolist())
            assert found <= set(range(75))
            assert found != set(range(20, 75))
            tier.remove(np.array(sorted(found - set(range(20, 75)))))
            missing = np.array(sorted(set(range(20, 75)) - found), np.int64)
            tier.add(missing, unit(75)[missing])
            for place in range(20, 75):
                assert tier.search(unit(75)[place], 1)[0].tolist() == [place]
            tier.settle()
            tier.close()
            again = opened(folder)
            assert again.ids().tolist() == list(range(20, 75))
            again.close()


def test_a_large_segment_is_verified_after_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from appliance.retrieval.dense import state

    filled(tmp_path).close()
    monkeypatch.setattr(state, "_SMALL", 0)
    tier = opened(tmp_path)
    assert tier.maintain()
    assert not tier.damaged
    tier.close()
    [vectors] = tmp_path.rglob("vectors")
    data = bytearray(vectors.read_bytes())
    data[77] ^= 1
    vectors.write_bytes(data)
    tier = opened(tmp_path)
    assert len(tier) == 55
    assert tier.verify() == [f"{vectors.parent.name} is damaged"]
    assert tier.maintain()
    assert tier.damaged
    assert tier.ids().tolist() == list(range(60, 75))
    tier.close()


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = filled(tmp_path)
    tier.add(np.arange(100, 180), unit(80, seed=1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "refer_synced", full)
        with pytest.raises(OSError, match="No space"):
            tier.settle()
    assert not list(tmp_path.glob("*.tmp"))
    assert tier.search(unit(80, seed=1)[7], 1)[0].tolist() == [107]
    tier.settle()
    tier.close()
    assert len(opened(tmp_path)) == 135


def test_closing_does_not_wait_for_a_segment_that_is_being_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(tmp_path)
    tier.add(np.arange(60), unit(60))
    begun, go_on = threading.Event(), threading.Event()

    def slow(rows: Any, walk: Callable[[Any, int], Any]) -> Any:
        begun.set()
        go_on.wait()
        walk(unit(1), 10)
        return measure(rows, walk)

    monkeypatch.setattr("appliance.retrieval.dense.segment.measure", slow)
    worker = threading.Thread(target=tier.settle)
    worker.start()
    begun.wait()
    closer = threading.Thread(target=tier.close)
    closer.start()
    while not tier._closing:
        pass
    go_on.set()
    worker.join()
    closer.join()
    again = opened(tmp_path)
    assert again.ids().tolist() == list(range(60))
    assert not list(tmp_path.glob("*.tmp"))
    again.close()
