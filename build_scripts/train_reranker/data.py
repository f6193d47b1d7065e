"""Owns reading the retrieval sets, cutting their documents into passages and splitting their queries.

Must not know models.
"""

from __future__ import annotations

import collections
import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

SENTENCE = re.compile(r"(?<=[\u3002\uff01\uff1f\uff1b])|(?<=[.!?;])\s+|\n")
# Sets whose own licence forbids training a model that ships; the folder's `use` says train for one of them.
MEASURE_ONLY = ("wikiqa_dev", "wikiqa_test")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of a training set is used, and whether documents are cut into parts.

    The first `queries` questions choose documents; all questions about these are used.
    """

    name: str
    queries: int
    documents: int
    cut: bool = False
    simplified: bool = False  # convert traditional characters


TRAIN = (
    Plan("cmrc_train", 1800, 700, cut=True),
    Plan("drcd_dev", 1000, 500, cut=True),
    Plan("drcd_dev", 1000, 500, cut=True, simplified=True),
    Plan("dureader_checklist_train", 280, 559),
    Plan("boolq", 1000, 1200),
    Plan("cmu_qa", 800, 1000),
    Plan("covidqa", 800, 900, cut=True),
    Plan("pubmedqa", 400, 400),
    Plan("covid_faq_en", 224, 210),
)


@dataclass(slots=True)
class Query:
    """One question, the passages (numbers) that answer it and the strings an answering passage contains."""

    text: str
    right: dict[int, int]
    answers: list[str] = field(default_factory=list)
    held_out: bool = False


@dataclass(slots=True)
class RetrievalSet:
    """Passages of one pool with the document each comes from, and the questions over them."""

    name: str
    passages: list[str]
    owners: list[str]
    queries: list[Query]


def read(
    folder: Path,
) -> tuple[list[dict[str, str]], dict[str, str], dict[str, dict[str, int]], dict[str, list[str]]]:
    """`corpus, query texts, grades by query, answers by query` of one folder."""

    def rows(name: str) -> list[dict[str, str]]:
        path = folder / name
        lines = path.read_text("utf-8").split("\n") if path.exists() else []  # splitlines would break at U+2028
        return [json.loads(line) for line in lines if line]

    grades: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for line in (folder / "qrels.tsv").read_text("utf-8").splitlines():
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            grades[query][document] = int(grade)
    answers = {row["qid"]: list(row["answers"]) for row in rows("answers.jsonl")}
    return rows("corpus.jsonl"), {q["id"]: q["text"] for q in rows("queries.jsonl")}, grades, answers


def cut_text(text: str, tokens: int, tokenizer: Tokenizer) -> list[str]:
    """Whole sentences packed up to `tokens`; a short tail joins the passage before it."""
    parts: list[str] = []
    current, size = "", 0
    for sentence in filter(str.strip, SENTENCE.split(text)):
        length = len(tokenizer.encode(sentence, add_special_tokens=False).ids)
        if current and size + length > tokens:
            parts.append(current.strip())
            current, size = "", 0
        current += (" " if current and current[-1].isascii() else "") + sentence
        size += length
    if current.strip():
        if parts and size < tokens // 4:
            parts[-1] += current
        else:
            parts.append(current.strip())
    return parts


def training_set(root: Path, plan: Plan, tokenizer: Tokenizer, seed: int) -> RetrievalSet:
    """The part of a set that `plan` asks for, one query in twelve held out (by a hash of its text)."""
    folder = root / plan.name
    if json.loads((folder / "meta.json").read_text("utf-8"))["use"] != "train" or plan.name in MEASURE_ONLY:
        raise ValueError(f"{plan.name} is not for training")
    corpus, texts, grades, answers = read(folder)
    rng = random.Random(f"{seed} {plan.name} {plan.simplified}")
    if plan.name == "drcd_dev":  # one half of the articles in each script: scripts never mix in one pool
        corpus = [d for d in corpus if is_converted(plan.name, d["title"]) == plan.simplified]
    convert = _simplifier() if plan.simplified else _same
    by_id = {d["id"]: d for d in corpus}
    chosen = [q for q in texts if grades.get(q) and next(iter(grades[q])) in by_id]
    rng.shuffle(chosen)
    documents: dict[str, None] = {}
    kept: list[str] = []
    for query in chosen:
        owner = next(iter(grades[query]))
        if len(kept) < plan.queries and (owner in documents or len(documents) < plan.documents * 9 // 10):
            documents[owner] = None
            kept.append(query)
    # What else is asked about these documents costs no further passage.
    known = set(kept)
    kept += [q for q in chosen if q not in known and next(iter(grades[q])) in documents]
    rest = [d for d in by_id if d not in documents]
    rng.shuffle(rest)
    for document in rest[: max(0, plan.documents - len(documents))]:
        documents[document] = None
    passages: list[str] = []
    owners: list[str] = []
    places: dict[str, list[int]] = {}
    for document in documents:
        row = by_id[document]
        body = convert(row["text"])
        # Varied sizes, so that no one length is learnt; later parts carry the title, as chunks do.
        parts = cut_text(body, rng.choice((90, 120, 150)), tokenizer) if plan.cut else [body]
        title = convert(row["title"])
        places[document] = list(range(len(passages), len(passages) + len(parts)))
        passages += [f"{title}\n{part}" if number and title else part for number, part in enumerate(parts)]
        owners += [row["title"] or document] * len(parts)
    queries: list[Query] = []
    for query in kept:
        mine = places[next(iter(grades[query]))]
        wanted = [convert(a).strip() for a in answers.get(query, [])]
        wanted = [a for a in wanted if is_telling(a)]
        holding = [n for n in mine if any(a in passages[n] for a in wanted)]
        if len(mine) > 1 and not holding:
            continue
        text = convert(texts[query])
        right = dict.fromkeys(holding or mine, 1)
        queries.append(Query(text, right, wanted, held_out(text)))
    return RetrievalSet(plan.name + ("_simplified" if plan.simplified else ""), passages, owners, queries)


def held_out(question: str) -> bool:
    """Whether a question is kept out of training, one in twelve, by a hash of its text."""
    return _hash(question) % 12 == 0


def is_converted(name: str, title: str) -> bool:
    """Whether a document of that title is learnt in simplified characters; its questions are held out as converted."""
    return name == "drcd_dev" and _hash(title) % 2 == 1


def is_telling(answer: str) -> bool:
    """Whether finding the string in a passage says that the passage answers: not "yes", not a lone digit."""
    return len(answer) >= (4 if answer.isascii() else 2)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "big")


def _same(text: str) -> str:
    return text


def _simplifier() -> Callable[[str], str]:
    from opencc import OpenCC

    convert: Callable[[str], str] = OpenCC("t2s").convert
    return convert
