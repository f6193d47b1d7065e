"""Owns what is known of each question of the sets: its candidates, which are relevant, what the reranker says.

Must not know how scores are mixed: whoever asks for reranking gives the order.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.config import ModelSettings
from appliance.inference.embedder import OnnxEmbedder
from appliance.inference.protocols import Embedder, Reranker
from appliance.inference.reranker import OnnxReranker
from appliance.packs.specs import ResolvedPack
from appliance.retrieval.analyzer import Analyzer
from build_scripts.train_reranker.data import is_telling

from .bed import Bed, Candidates, Floats
from .cached import CachedEmbedder, CachedReranker, Rows
from .sets import Question, QuestionSet

_TWIN = 0.95  # cosine from which two passages may say the same


class Row(msgspec.Struct, frozen=True):
    """One question in one pool."""

    pool: str  # the set whose passages were searched
    language: str
    question: Question
    candidates: Candidates
    # `(n,)`: whether a candidate may answer: it is relevant, has an answer in it, or is nearly such a passage.
    answering: npt.NDArray[np.bool_]
    own: bool  # the question is of that set; otherwise nothing in the pool is known to answer it

    def grades(self) -> Floats:
        """`(n,)`, 0 where a candidate is not relevant."""
        known = self.question.grades if self.own else {}
        return np.array([known.get(int(place), 0) for place in self.candidates.places], np.float64)

    def without_answers(self) -> Row:
        """The same question with everything taken away that may answer it."""
        keep = ~self.answering
        return msgspec.structs.replace(
            self, candidates=self.candidates.only(keep), answering=self.answering[keep], own=False
        )


class Models:
    """Encoders behind caches."""

    def __init__(
        self, embedder: Embedder, reranker: Reranker | None, label: str, folder: Path, say: Callable[[str], None]
    ) -> None:
        """`label` tells rerankers apart; the caches lie in `folder`."""
        self._embedder, self._reranker, self._label = embedder, reranker, label
        self._folder, self._say = folder, say

    @classmethod
    def of(cls, pack: ResolvedPack, folder: Path, say: Callable[[str], None]) -> Models:
        """Those of a pack."""
        settings = ModelSettings()
        reranker = OnnxReranker(pack.reranker, settings) if pack.reranker else None
        label = pack.reranker.sha256 if pack.reranker else ""
        return cls(OnnxEmbedder(pack.embedder, settings), reranker, label, folder, say)

    def embedder(self, name: str) -> CachedEmbedder:
        """For the texts of one set."""
        rows = Rows(self._folder / f"{name}-{self._embedder.fingerprint[:8]}.npy")
        return CachedEmbedder(self._embedder, rows, self._say)

    def reranker(self, name: str) -> CachedReranker | None:
        """For the pairs of one set; None when there is none."""
        if self._reranker is None:
            return None
        rows = Rows(self._folder / f"{name}-{self._label[:8]}.npy")
        return CachedReranker(self._reranker, self._label, rows, self._say)


def rows(
    found: QuestionSet, embedder: Embedder, analyzer: Analyzer, own: Sequence[Question], others: Sequence[Question] = ()
) -> list[Row]:
    """What recall finds in the set's passages for its `own` questions, then for those of `others`."""
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(found, embedder, analyzer, Path(folder) / "lexical")
        try:
            both = [*own, *others]
            return [
                Row(
                    found.name,
                    found.language,
                    question,
                    candidates,
                    _answering(found, bed, question, candidates) if place < len(own) else _none(candidates),
                    place < len(own),
                )
                for place, (question, candidates) in enumerate(zip(both, bed.search(both), strict=True))
            ]
        finally:
            bed.close()


def logits(row: Row, order: Sequence[int], depth: int, passages: Sequence[str], reranker: CachedReranker) -> Floats:
    """`(n,)` of the reranker for the first `depth` candidates in `order`, NaN for the rest."""
    found = np.full(len(row.candidates.places), math.nan)
    best = list(order[:depth])
    if best:
        texts = [passages[int(row.candidates.places[place])] for place in best]
        found[best] = reranker.logits(row.question.text, texts)
    return found


def _answering(found: QuestionSet, bed: Bed, question: Question, candidates: Candidates) -> npt.NDArray[np.bool_]:
    relevant = list(question.grades)
    near = (bed.vectors[candidates.places] @ bed.vectors[relevant].T).max(axis=1) > _TWIN
    telling = [answer.strip() for answer in question.answers if is_telling(answer.strip())]
    holds = [any(answer in found.passages[int(place)] for answer in telling) for place in candidates.places]
    return np.asarray(near | np.array(holds, bool) | np.isin(candidates.places, relevant))


def _none(candidates: Candidates) -> npt.NDArray[np.bool_]:
    return np.zeros(len(candidates.places), bool)
