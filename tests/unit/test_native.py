"""Native libraries live together in one process, whichever is wanted first."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import appliance

OTHERS = ("hnswlib", "numkong", "tantivy", "llama_cpp", "tokenizers", "rjieba", "lxml.etree", "pypdfium2")


@pytest.mark.parametrize("order", list(itertools.permutations(("load_usearch", "load_onnxruntime"))), ids="-".join)
def test_usearch_and_onnxruntime_in_either_order(order: tuple[str, str]) -> None:
    program = f"""
import importlib, numpy as np
from appliance.native import {", ".join(order)}
for load in ({", ".join(order)}):
    load()
for name in {OTHERS!r}:
    importlib.import_module(name)
index = load_usearch().Index(ndim=8, metric="l2sq", dtype="i8")
index.add(np.arange(20), np.eye(20, 8, dtype=np.float32))
assert len(index.search(np.ones(8, np.float32), 3).keys) == 3
assert "CPUExecutionProvider" in load_onnxruntime().get_available_providers()
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]


def test_nothing_loads_them_but_the_module_that_knows_their_order() -> None:
    root = Path(appliance.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        types_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if id(node) not in types_only and any(name.split(".")[0] in ("usearch", "onnxruntime") for name in names):
                found.append(str(path.relative_to(root)))
    assert found == []
