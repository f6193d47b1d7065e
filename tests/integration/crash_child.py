"""Stores documents and tells the indexes, one after another, until it is killed; prints what was acknowledged.

Run by `test_recall.py` as a program of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from appliance.store.db import Store
from tests.unit.retrieval.fakes import put, recall_over


def main(folder: Path, exact_limit: int) -> None:
    store = Store.open(folder / "store.sqlite3")
    recall = recall_over(store, folder / "index", exact_limit=exact_limit)
    turn = store.generation()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    while True:
        turn += 1
        number = turn % 7
        if turn % 5 == 4 and (document := store.find("manuals", f"{number}.txt")):
            recall.apply(store.delete([document.id]))
            sys.stdout.write(f"gone {number}\n")
        else:
            recall.apply(put(store, f"{number}.txt", [f"word{turn} part {part}" for part in range(4)]))
            sys.stdout.write(f"put {number} word{turn}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
