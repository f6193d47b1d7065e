"""Owns the running of tesseract: in which languages, for how long, and what its table of words says.

Must not know where pictures come from. It runs below the parse worker, and so within its limits (no network, memory,
size of files), and ends with it.
"""

from __future__ import annotations

import csv
import ctypes
import io
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from appliance.documents.model import join_lines, one_line
from appliance.documents.ocr import Picture, Recognised, Unrecognised

NOT_INSTALLED = (
    "Text in images is read where tesseract is installed (on Debian and Ubuntu: apt install tesseract-ocr "
    "tesseract-ocr-chi-sim)."
)
OFF = "The setting documents.ocr is off."
_PROGRAM = "tesseract"
_PREFERRED = ("chi_sim", "eng")
_ORIENTATION = "osd"
_UPRIGHT, _ANY_WAY_UP = 3, 1  # page segmentation modes
# Percent; below, other ways are tried: both languages at once make nonsense of some Chinese lines (confidence 67
# instead of 80 to 87 for the same page), and a page may lie on its side.
_SURE = 80.0
_NOISE = 35.0  # percent; a paragraph below is a stain or a drawing
_PR_SET_PDEATHSIG = 1
_NICE = 10  # questions go first
_LIST_TIMEOUT_S = 10.0


class _Word(msgspec.Struct, frozen=True):
    paragraph: tuple[str, str]
    line: str
    text: str
    confidence: float


def installed() -> bool:
    """Whether there is a tesseract to run."""
    return shutil.which(_PROGRAM) is not None


class Tesseract:
    """Reads the pictures of one document."""

    def __init__(self, pages_most: int, page_s: float, before_page: Callable[[], None]) -> None:
        """`before_page` is called before each picture, which then takes at most `page_s` seconds."""
        self._most = self._left = pages_most
        self._page_s = page_s
        self._before_page = before_page
        self._languages: list[str] | None = None

    def read(self, picture: Callable[[], Picture]) -> Recognised:
        """The text of a picture.

        Raises:
            Unrecognised: tesseract is not there, failed, or has read as many as it may.
        """
        if self._languages is None:
            self._languages = _languages()
        used = [name for name in _PREFERRED if name in self._languages]
        used = used or [name for name in self._languages if name != _ORIENTATION][:1]
        if not used:
            raise Unrecognised("tesseract has no language to read in (apt install tesseract-ocr-eng).")
        if self._left <= 0:
            raise Unrecognised(f"Only {self._most} images of a document are read (setting documents.ocr_pages).")
        self._left -= 1
        self._before_page()
        began = time.monotonic()
        made = picture()
        best = self._run(made, "+".join(used), _UPRIGHT, began)
        ways = [(used[0], _UPRIGHT)] if len(used) > 1 else []
        ways += [("+".join(used), _ANY_WAY_UP)] if _ORIENTATION in self._languages else []
        for languages, mode in ways:
            if best.confidence < _SURE:
                try:
                    best = max(best, self._run(made, languages, mode, began), key=lambda found: found.confidence)
                except Unrecognised:  # no time, or too little on it to tell which way is up
                    break
        return best

    def _run(self, picture: Picture, languages: str, mode: int, began: float) -> Recognised:
        options = ["-l", languages, "--psm", str(mode), *(["--dpi", str(picture.dpi)] if picture.dpi else []), "tsv"]
        image = b"P5 %d %d 255\n" % (picture.width, picture.height) + picture.pixels
        left_s = max(self._page_s - (time.monotonic() - began), 0.1)
        said = _tesseract(["stdin", "stdout", *options], image, left_s)
        return _text(_words(said), languages)


def _languages() -> list[str]:
    if not installed():
        raise Unrecognised(NOT_INSTALLED)
    return _tesseract(["--list-langs"], b"", _LIST_TIMEOUT_S).split("\n")[1:]


def _tesseract(arguments: Sequence[str], data: bytes, timeout_s: float) -> str:
    environment = {name: os.environ[name] for name in ("PATH", "TESSDATA_PREFIX") if name in os.environ}
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def bind() -> None:
        # The main thread starts it, and ends with the worker: no other may, or the signal comes with that one's end.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.nice(_NICE)

    try:
        done = subprocess.run(
            [_PROGRAM, *arguments],
            input=data,
            capture_output=True,
            timeout=timeout_s,
            env=environment | {"OMP_THREAD_LIMIT": "1", "LC_ALL": "C"},
            preexec_fn=bind,  # the one other thread of a worker holds no locks
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unrecognised("Reading it took too long (setting documents.ocr_page_timeout_s).") from None
    except OSError as error:
        raise Unrecognised(f"tesseract cannot be started: {error.strerror}.") from error
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it gave no reason"]
        raise Unrecognised(f"tesseract failed ({done.returncode}): {one_line(words[-1])}.")
    return done.stdout.decode("utf-8", "replace")


def _words(table: str) -> Iterable[_Word]:
    for row in csv.DictReader(io.StringIO(table), delimiter="\t", quoting=csv.QUOTE_NONE):
        text = one_line(row.get("text") or "")
        try:
            confidence = float(row["conf"])
        except (KeyError, TypeError, ValueError):
            continue
        if text and confidence >= 0:
            yield _Word((row["block_num"], row["par_num"]), row["line_num"], text, confidence)


def _text(words: Iterable[_Word], languages: str) -> Recognised:
    paragraphs: dict[tuple[str, str], list[_Word]] = {}
    for word in words:
        paragraphs.setdefault(word.paragraph, []).append(word)
    kept = {place: own for place, own in paragraphs.items() if _mean(own) >= _NOISE}
    texts = [_joined(own) for own in kept.values()]
    return Recognised(
        [text for text in texts if any(map(str.isalnum, text))],
        _mean([word for own in kept.values() for word in own]),
        languages,
        len(paragraphs) - len(kept),
    )


def _mean(words: Sequence[_Word]) -> float:
    """Mean confidence, by letters; 0 for none."""
    letters = sum(len(word.text) for word in words)
    return sum(word.confidence * len(word.text) for word in words) / letters if letters else 0.0


def _joined(words: Sequence[_Word]) -> str:
    lines: dict[str, list[str]] = {}
    for word in words:
        lines.setdefault(word.line, []).append(word.text)
    text = ""
    for line in map(join_lines, lines.values()):
        if text.endswith("-") and text[-2:-1].isalpha() and line[:1].islower():
            text = text[:-1] + line
        else:
            text = join_lines((text, line))
    return text
