"""The frozen program, where one was built: `TEST_PROGRAM=build/frozen/…/appliance build_scripts/test tests/system`.

With `TEST_PROGRAM` set, all tests that start the program start that one, those of the HTTP service too.
"""

from __future__ import annotations

import csv
import io
import json
import time
import zipfile
from email.message import EmailMessage
from pathlib import Path

import httpx
import pytest

from appliance import samples
from appliance.packs import ResolvedPack
from tests.integration.program import TEST_PROGRAM, run, run_json, serving

pytestmark = pytest.mark.skipif(not TEST_PROGRAM, reason="TEST_PROGRAM names no frozen program")

VERSION_LIMIT_S = 0.5
TEXT = "The relief valve of line {name} opens at 7.5 bar."


def spreadsheet(name: str) -> bytes:
    import xlsxwriter

    out = io.BytesIO()
    with xlsxwriter.Workbook(out, {"in_memory": True}) as book:
        sheet = book.add_worksheet("valves")
        sheet.write_row(0, 0, ["valve", "note"])
        sheet.write_row(1, 0, ["relief", TEXT.format(name=name)])
    return out.getvalue()


def slides(name: str) -> bytes:
    from pptx import Presentation

    out = io.BytesIO()
    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "Valves"
    slide.placeholders[1].text = TEXT.format(name=name)
    presentation.save(out)
    return out.getvalue()


def book(name: str) -> bytes:
    out = io.BytesIO()
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>'
        '<rootfile full-path="b.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><manifest>'
        '<item id="c" href="c.xhtml" media-type="application/xhtml+xml"/></manifest>'
        '<spine><itemref idref="c"/></spine></package>'
    )
    chapter = (
        f'<html xmlns="http://www.w3.org/1999/xhtml"><body><h1>Valves</h1><p>{TEXT.format(name=name)}</p></body></html>'
    )
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("b.opf", package)
        archive.writestr("c.xhtml", chapter)
    return out.getvalue()


def mail(name: str) -> bytes:
    message = EmailMessage()
    message["Subject"] = "Valves"
    message["From"] = "a@example.org"
    message.set_content(TEXT.format(name=name))
    return message.as_bytes()


def rows(name: str) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows([["valve", "note"], ["relief", TEXT.format(name=name)]])
    return out.getvalue().encode()


def write_all(folder: Path) -> list[str]:
    """One file of each kind that is read in the program itself, beside the sample manuals; their names."""
    chinese = "泄压阀在 7.5 bar 时打开。请按操作手册第三章检查密封圈与弹簧，并记录压力表读数。"
    files = {
        "v.xlsx": spreadsheet("xlsx"),
        "v.pptx": slides("pptx"),
        "v.epub": book("epub"),
        "v.eml": mail("eml"),
        "v.csv": rows("csv"),
        "v.txt": (chinese * 5).encode("gb18030"),
        "v.rst": f"Valves\n======\n\n.. note:: {TEXT.format(name='rst')}\n".encode(),
        "v.adoc": f"= Valves\n\nNOTE: {TEXT.format(name='adoc')}\n".encode(),
        "v.json": json.dumps({"valves": [{"note": TEXT.format(name="json")}]}).encode(),
        "v.xml": f"<valves><valve><note>{TEXT.format(name='xml')}</note></valve></valves>".encode(),
        "v.py": f'def relief():\n    """{TEXT.format(name="py")}"""\n'.encode(),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return list(files)


def test_the_program_starts_at_once(tmp_path: Path) -> None:
    taken = []
    for _ in range(5):
        began = time.monotonic()
        assert run(tmp_path, "--version").returncode == 0
        taken.append(time.monotonic() - began)
    assert min(taken) < VERSION_LIMIT_S


def test_every_format_is_read_and_found(pocket: ResolvedPack, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    names = write_all(folder)
    data_dir = tmp_path / "data"
    outcomes = run_json(data_dir, "ingest", str(folder), *map(str, samples.manuals()))["outcomes"]
    assert {(outcome["source"].rpartition("/")[2], outcome["status"]) for outcome in outcomes} >= {
        (name, "added") for name in names
    }, outcomes
    assert {outcome["status"] for outcome in outcomes} == {"added"}
    found = run_json(data_dir, "search", "relief valve opens at 7.5 bar 泄压阀", "--top-k", "30")
    documents = {passage["document"] for passage in found["passages"]}
    assert set(names) - {"v.json"} <= documents


def test_the_service_answers_and_serves_its_page(pocket: ResolvedPack, tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text(f"# Valves\n\n{TEXT.format(name='md')}\n")
    with serving(tmp_path / "data", tmp_path / "log") as service:
        assert run(tmp_path / "data", "ingest", str(tmp_path / "note.md")).returncode == 0
        body = {"question": "When does the relief valve open?", "stream": False}
        reply = httpx.post(f"{service.url}/v1/ask", json=body, timeout=60).json()
        assert reply["appliance"]["sources"][0]["document"] == "note.md"
        assert reply["appliance"]["tokens"]["generated"] > 0
        page = httpx.get(f"{service.url}/")
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        assert httpx.get(f"{service.url}/openapi.json").status_code == 200
        assert service.stop() == 0
