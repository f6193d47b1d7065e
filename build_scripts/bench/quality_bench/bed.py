"""Owns one set laid out for searching: the product's lexical index and the exact vectors of its passages.

Must not know how candidates are scored together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.config import RecallSettings
from appliance.inference.protocols import Embedder
from appliance.retrieval.analyzer import Analyzer
from appliance.retrieval.lexical import LexicalIndex, LexicalText

from .sets import Question, QuestionSet

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class Candidates(msgspec.Struct, frozen=True):
    """What both halves of recall find for a question, by place. All arrays `(n,)`."""

    places: Places
    bm25: Floats  # NaN where the lexical half did not find it
    cosine: Floats
    mass: float  # `LexicalView.mass` of the question

    def only(self, keep: npt.NDArray[np.bool_]) -> Candidates:
        """Those of `keep` `(n,)`."""
        return Candidates(self.places[keep], self.bm25[keep], self.cosine[keep], self.mass)


class Bed:
    """The passages of one set, indexed in a folder of its own."""

    def __init__(self, found: QuestionSet, embedder: Embedder, analyzer: Analyzer, folder: Path) -> None:
        self._found = found
        self._settings = RecallSettings()
        self._embedder = embedder
        self.vectors = embedder.embed_passages(found.passages)
        self._lexical = LexicalIndex(folder, analyzer, found.name)
        self._lexical.create()
        self._lexical.add(LexicalText(place, found.name, text) for place, text in enumerate(found.passages))
        self._lexical.commit(1)

    def close(self) -> None:
        """Let go of the files."""
        self._lexical.close()

    def search(self, questions: Sequence[Question]) -> list[Candidates]:
        """The candidates of each question, whichever set it is from."""
        vectors = self._embedder.embed_queries([one.text for one in questions])
        return [self._candidates(one.text, vector) for one, vector in zip(questions, vectors, strict=True)]

    def _candidates(self, text: str, vector: npt.NDArray[np.float32]) -> Candidates:
        hits = self._lexical.view().search(text, self._found.name, self._settings.lexical_candidates)
        bm25 = {hit.chunk_id: hit.score for hit in hits}
        cosine = self.vectors @ vector
        nearest = np.argsort(-cosine, kind="stable")[: self._settings.dense_candidates]
        places = np.array(sorted({*bm25, *nearest.tolist()}), np.int64)
        return Candidates(
            places,
            np.array([bm25.get(int(place), np.nan) for place in places], np.float64),
            cosine[places].astype(np.float64),
            self._lexical.view().mass(text, self._found.name),
        )
