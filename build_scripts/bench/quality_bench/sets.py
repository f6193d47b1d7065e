"""Owns reading the retrieval sets and choosing, by hashes alone, which questions and passages of them are used.

Must not know how anything is ranked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from appliance.errors import BadRequest
from build_scripts.train_reranker.data import MEASURE_ONLY, held_out, is_converted

Row = TypeVar("Row", bound=msgspec.Struct)


class Question(msgspec.Struct, frozen=True):
    """A question, the passages that are relevant to it, and strings that a passage with the answer contains."""

    text: str
    grades: dict[int, int]  # place in the set's passages → grade, at least 1
    answers: tuple[str, ...]
    held_out: bool  # from the training of the reranker


class QuestionSet(msgspec.Struct, frozen=True):
    """A pool of passages and the questions over them."""

    name: str
    language: str  # "en", "zh"
    train: bool  # weights may be fitted on it; its questions that are not held out may have trained the reranker
    passages: tuple[str, ...]
    questions: tuple[Question, ...]
    of_passages: int  # how many the whole set has
    of_questions: int

    def measured(self, most: int) -> tuple[Question, ...]:
        """The first `most` questions that a figure may be made of."""
        return tuple(one for one in self.questions if one.held_out or not self.train)[:most]

    def fitted(self, most: int) -> tuple[Question, ...]:
        """The first `most` questions that the first stage's weights may be fitted on; none of a measuring set."""
        return tuple(one for one in self.questions if self.train and not one.held_out)[:most]


class _Meta(msgspec.Struct):
    lang: str = "en"
    use: str = "eval"


class _Text(msgspec.Struct):
    id: str
    text: str
    title: str = ""


class _Answers(msgspec.Struct):
    qid: str
    answers: list[str]


def folders(data: Path, only: Sequence[str] = ()) -> list[Path]:
    """The folders of a data folder that hold a set, by name; those named in `only`, if anything is.

    Raises:
        BadRequest: there is none, or not one that is named.
    """
    found = sorted(path.parent for path in data.glob("*/queries.jsonl"))
    if not found:
        raise BadRequest(f"There is no set of questions in {data}.", remedy="Name the data folder with --data.")
    names = [folder.name for folder in found]
    for name in only:
        if name not in names:
            raise BadRequest(f"There is no set {name} in {data}.", remedy=f"There are {', '.join(names)}.")
    return [folder for folder in found if not only or folder.name in only]


def read(folder: Path, letters: int) -> QuestionSet:
    """A set cut to passages of so many `letters` together, an ideograph counting as three: those that answer measured
    questions first, then others; which, a hash decides.

    Passages of the same text are one passage. Titles are left out: not every set has them. A question whose
    relevant passages are not all in the pool is left out.

    Raises:
        BadRequest: a file is missing or cannot be read.
    """
    try:
        meta = msgspec.json.decode((folder / "meta.json").read_bytes(), type=_Meta)
        documents = _rows(folder / "corpus.jsonl", _Text)
        asked = {one.id: one.text.strip() for one in _rows(folder / "queries.jsonl", _Text)}
        answers = {one.qid: tuple(one.answers) for one in _rows(folder / "answers.jsonl", _Answers)}
        grades = _grades(folder / "qrels.tsv")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise BadRequest(f"The set {folder} cannot be read: {error}.") from error
    train = meta.use == "train" and folder.name not in MEASURE_ONLY
    texts = {one.id: one.text.strip() for one in documents if one.text.strip()}
    learnt_otherwise = {one.id for one in documents if is_converted(folder.name, one.title)}
    right = {
        query: {texts[document]: grade for document, grade in grades.get(query, {}).items() if document in texts}
        for query, text in asked.items()
        if text
    }
    held = {
        query: held_out(asked[query]) and learnt_otherwise.isdisjoint(grades[query]) for query in right if right[query]
    }
    known = sorted(held, key=lambda query: (train and not held[query], _order(asked[query])))
    pool = _pool(known, right, texts.values(), letters)
    questions = tuple(
        Question(asked[query], {pool[t]: g for t, g in right[query].items()}, answers.get(query, ()), held[query])
        for query in known
        if all(text in pool for text in right[query])
    )
    return QuestionSet(folder.name, meta.lang[:2], train, tuple(pool), questions, len(texts), len(known))


def _pool(
    queries: Sequence[str], right: dict[str, dict[str, int]], texts: Iterable[str], letters: int
) -> dict[str, int]:
    """Text → place; a quarter of a cut pool at least answers nothing that is asked."""
    pool: dict[str, int] = {}
    size = 0
    for query in queries:
        new = {text: _letters(text) for text in right[query] if text not in pool}
        if size + sum(new.values()) <= letters * 3 // 4:
            size += sum(new.values())
            pool |= {text: len(pool) + n for n, text in enumerate(new)}
    for text in sorted(set(texts) - pool.keys(), key=_order):
        if size + _letters(text) <= letters:
            size += _letters(text)
            pool[text] = len(pool)
    return pool


def _letters(text: str) -> int:
    return len(text) + 2 * sum(character >= "\u2e80" for character in text)


def _rows(path: Path, kind: type[Row]) -> list[Row]:
    decoder = msgspec.json.Decoder(kind)
    lines = path.read_bytes().split(b"\n") if path.exists() or kind is not _Answers else []
    return [decoder.decode(line) for line in lines if line.strip()]


def _grades(path: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for line in path.read_text("utf-8").splitlines():
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            found.setdefault(query, {})[document] = int(grade)
    return found


def _order(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
