"""Owns the checks that the sample manuals say what their questions claim, and that they can be rebuilt.

Must not know the appliance's own parsers: pages are read with pypdfium2, DOCX with python-docx.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import docx
import pypdfium2
import pytest

from appliance.samples import FOLDER, SampleQuestion, manuals, questions

ROOT = FOLDER.parent.parent
ANSWERABLE = [question for question in questions() if question.answerable]
PDF_PAGES = {"hx-200-pump-manual.pdf": 12, "kc-75-compressor-manual-zh.pdf": 10}
CJK_FONT = Path("/usr/share/fonts/truetype/wqy/wqy-microhei.ttc")


def pdf_pages(path: Path) -> list[str]:
    document = pypdfium2.PdfDocument(path)
    try:
        return [page.get_textpage().get_text_bounded() for page in document]
    finally:
        document.close()


def docx_sections(path: Path) -> dict[str, str]:
    """Text by the heading right above it, tables included, in document order."""
    sections: dict[str, str] = {}
    heading = ""
    for part in docx.Document(str(path)).iter_inner_content():
        if isinstance(part, docx.table.Table):
            text = "\n".join(" | ".join(cell.text for cell in row.cells) for row in part.rows)
        elif part.style is not None and str(part.style.name).startswith("Heading"):
            heading, text = part.text, ""
        else:
            text = part.text
        sections[heading] = f"{sections.get(heading, '')}\n{text}"
    return sections


def marked_sections(path: Path) -> dict[str, str]:
    """The same for HTML and Markdown, split at their headings."""
    text = path.read_text(encoding="utf-8")
    heading = r"<h[1-6]>(.*?)</h[1-6]>" if path.suffix == ".html" else r"(?m)^#+ (.*)$"
    parts = re.split(heading, text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_is_one_manual_of_each_kind() -> None:
    assert Counter(path.suffix for path in manuals()) == {".pdf": 2, ".docx": 1, ".html": 1, ".md": 1}
    assert sum(path.stat().st_size for path in manuals()) < 1_000_000


def test_the_questions_are_ten_and_two_in_each_language() -> None:
    counts = Counter((question.lang, question.answerable) for question in questions())
    assert counts == {("en", True): 10, ("zh", True): 10, ("en", False): 2, ("zh", False): 2}
    assert len({question.id for question in questions()}) == 24
    for lang in ("en", "zh"):
        assert sum(q.lang == lang and q.document.endswith(".pdf") for q in ANSWERABLE) >= 8


def test_an_unanswerable_question_names_no_place() -> None:
    for question in questions():
        if not question.answerable:
            assert (question.answer, question.document, question.page, question.heading) == ("", "", None, "")


@pytest.mark.parametrize("question", ANSWERABLE, ids=lambda question: question.id)
def test_the_answer_stands_at_its_place_and_nowhere_else(question: SampleQuestion) -> None:
    path = FOLDER / question.document
    if path.suffix == ".pdf":
        pages = pdf_pages(path)
        found = [number for number, text in enumerate(pages, 1) if question.answer in text]
        assert found == [question.page]
        assert question.heading in pages[found[0] - 1]
        return
    assert question.page is None
    sections = docx_sections(path) if path.suffix == ".docx" else marked_sections(path)
    assert [heading for heading, text in sections.items() if question.answer in text] == [question.heading]


@pytest.mark.parametrize("name", PDF_PAGES)
def test_a_pdf_has_pages_numbers_outline_and_clean_text(name: str) -> None:
    pages = pdf_pages(FOLDER / name)
    total = len(pages)
    assert total >= PDF_PAGES[name]
    for number, text in enumerate(pages[1:], 2):
        assert re.search(rf"Page {number} of {total}|第 {number} 页 *共 {total} 页", text)
        # No private-use, replacement or ligature characters, which a lexical index could not match.
        assert not re.search("[\ue000-\uf8ff\ufb00-\ufb06\ufffd\ufffe\uffff]", text)
    document = pypdfium2.PdfDocument(FOLDER / name)
    outline = [(item.level, item.get_title(), item.get_dest().get_index()) for item in document.get_toc()]
    document.close()
    assert sum(level == 0 for level, _, _ in outline) >= 10
    assert all(title in pages[index] for _, title, index in outline)


def test_no_line_of_the_chinese_manual_starts_with_a_closing_mark() -> None:
    for text in pdf_pages(FOLDER / "kc-75-compressor-manual-zh.pdf"):
        assert not re.search(r"(?m)^[\uff0c\u3002\uff1b\uff1a\uff01\uff1f\u3001\u201d\uff09]", text)


def build(out: Path) -> dict[str, bytes]:
    command = [sys.executable, "-m", "build_scripts.make_samples", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.skipif(not (ROOT / "build_scripts").is_dir(), reason="an installed package has no build scripts")
def test_a_rebuild_gives_the_shipped_bytes(tmp_path: Path) -> None:
    pytest.importorskip("reportlab")
    built = build(tmp_path)
    assert "hx-200-pump-manual.pdf" in built
    assert ("kc-75-compressor-manual-zh.pdf" in built) == CJK_FONT.is_file()
    if zlib.ZLIB_RUNTIME_VERSION.endswith(".zlib-ng"):
        pytest.skip("this Python deflates in another way than the one that built the shipped files")
    for name, data in built.items():
        assert data == (FOLDER / name).read_bytes(), f"{name}: run python -m build_scripts.make_samples"
