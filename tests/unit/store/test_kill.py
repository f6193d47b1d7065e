"""What was acknowledged survives kill -9, whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.store.db import Store

# Each version of a document has as many chunks as its number says, and names itself in every one of them.
WRITER = """
import pathlib, sys
import numpy as np
from appliance.store.db import Store
from appliance.store.records import NewChunk, NewDocument

store = Store.open(pathlib.Path(sys.argv[1]))
for version in range(1, 100000):
    source = f"s{version % 3}"
    count = 1 + version % 40
    text = f"{version}/{count} " + "filler " * 50
    chunks = [NewChunk(text, "", None, None, 0, 1, 1) for _ in range(count)]
    vectors = np.full((count, 8), version % 50, np.float16)
    document = NewDocument(source, source, "", str(version), "text/plain", 1, None, None)
    store.put("c", document, chunks, vectors, "e")
    print(version, flush=True)
"""


@pytest.mark.parametrize("acks_before_kill", [1, 7, 30])
def test_every_acknowledged_version_is_whole_after_a_kill(tmp_path: Path, acks_before_kill: int) -> None:
    path = tmp_path / "store.db"
    acked = 0
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            acked = int(line)
            if acked == acks_before_kill:
                # The writer is somewhere inside the next put now.
                process.send_signal(signal.SIGKILL)
        process.wait()
    assert acked >= acks_before_kill
    store = Store.open(path)
    try:
        assert store.check() == []
        # At most one put was under way when it died: it may have been committed, or not.
        assert store.generation() in (acked, acked + 1)
        for document in store.documents("c"):
            version = int(document.sha256)
            chunks = store.chunks(store.chunk_ids(document.id))
            assert len(chunks) == 1 + version % 40 == document.chunks
            assert {chunk.text.split("/")[0] for chunk in chunks} == {str(version)}
            assert (store.vectors([chunk.id for chunk in chunks]) == version % 50).all()
        newest = {int(document.sha256) for document in store.documents("c")}
        assert newest == set(range(max(1, store.generation() - 2), store.generation() + 1))
    finally:
        store.close()
