"""A document's whole way with real files and the real parse worker; the embedder is a small deterministic one."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from appliance.config import DocumentSettings
from appliance.documents.ingest import Ingester, Outcome, read_or_say
from appliance.documents.parser import Parser
from appliance.documents.walk import find_files
from appliance.errors import EmbedderChanged, Unavailable, UnreadableDocument
from appliance.inference.protocols import Embeddings
from appliance.store.db import Store
from appliance.store.records import Change, Chunk


class HashEmbedder:
    """Vectors from the hashes of words: equal texts get equal vectors."""

    dim = 16
    max_tokens = 512

    def __init__(self, fingerprint: str = "hash") -> None:
        self.fingerprint = fingerprint

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [sum(4 if c > "\u2e7f" else 1 for c in text) // 4 + bool(text) for text in texts]

    def embed_queries(self, texts: Sequence[str]) -> Embeddings:
        return self.embed_passages(texts)

    def embed_passages(self, texts: Sequence[str]) -> Embeddings:
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
        vectors = np.array([np.random.default_rng(seed).normal(size=self.dim) for seed in seeds], np.float32)
        unit: Embeddings = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


class Bench:
    """A store, an ingester, and what it told the indexes."""

    def __init__(self, folder: Path, **settings: float) -> None:
        self.store = Store.open(folder / "store.db")
        self.changes: list[Change] = []
        self.settings = msgspec.convert(settings, DocumentSettings)
        self.ingester = Ingester(self.store, HashEmbedder(), self.settings, self.changes.append)

    def ingest(self, *paths: Path) -> dict[str, Outcome]:
        """Outcomes by file name."""
        return {Path(o.source).name: o for o in self.each(*paths)}

    def each(self, *paths: Path, meanwhile: Callable[[], object] = lambda: None) -> Iterator[Outcome]:
        """Find the files, then read and ingest one after the other; `meanwhile` runs before each."""
        for found in list(find_files(paths)):
            meanwhile()
            data = read_or_say(found, self.settings.max_file_bytes)
            if isinstance(data, bytes):
                yield self.ingester.ingest_bytes("c", found.source, found.name, data)
            else:
                yield data

    def chunks(self, outcome: Outcome) -> list[Chunk]:
        assert outcome.document is not None, outcome
        return self.store.chunks(self.store.chunk_ids(outcome.document.id))

    def text(self, outcome: Outcome) -> str:
        return "\n".join(chunk.text for chunk in self.chunks(outcome))

    def close(self) -> None:
        self.ingester.close()
        self.store.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "data").mkdir()
    made = Bench(tmp_path / "data", parse_timeout_s=60)
    yield made
    assert made.store.check() == []
    assert made.store.changes_since(0) == made.changes
    made.close()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def pdf(pages: Sequence[str] = ("Hello pump.",), **options: object) -> bytes:
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, **options)
    for text in pages:
        canvas.setFont("Helvetica", 11)
        canvas.drawString(72, 700, text)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


# -- the whole way ----------------------------------------------------------------------------------------


def test_the_same_file_is_skipped_a_changed_one_replaced_a_deleted_one_gone(bench: Bench, files: Path) -> None:
    file = files / "a.txt"
    file.write_text("The torque is 25 Nm.")
    first = bench.ingest(file)["a.txt"]
    assert (first.status, first.chunks, bench.text(first)) == ("added", 1, "The torque is 25 Nm.")
    assert first.document and first.document.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    again = bench.ingest(files)["a.txt"]
    assert again.status == "unchanged" and again.document == first.document and len(bench.changes) == 1
    file.write_text("The torque is 30 Nm.")
    replaced = bench.ingest(file)["a.txt"]
    assert replaced.status == "replaced" and bench.text(replaced) == "The torque is 30 Nm."
    assert bench.changes[1].removed == bench.changes[0].added
    assert bench.store.chunks(bench.changes[0].added) == []
    assert replaced.document
    bench.changes.append(bench.store.delete([replaced.document.id]))
    assert bench.store.documents("c") == [] and bench.ingest(file)["a.txt"].status == "added"


def test_bytes_are_ingested_under_their_source(bench: Bench) -> None:
    outcome = bench.ingester.ingest_bytes("manuals", "upload/a.md", "a.md", b"# Pump\n\nStop it.")
    assert outcome.status == "added" and outcome.document
    assert outcome.document.title == "Pump" and outcome.document.media_type == "text/markdown"
    assert [(c.heading, c.text) for c in bench.chunks(outcome)] == [("Pump", "Stop it.")]
    vector = bench.store.vectors(bench.store.chunk_ids(outcome.document.id))[0]
    expected = HashEmbedder().embed_passages(["Pump\nStop it."])[0]
    assert np.allclose(vector, expected, atol=1e-3)


def test_another_embedder_is_refused(bench: Bench) -> None:
    bench.ingester.ingest_bytes("c", "a", "a.txt", b"one")
    other = Ingester(bench.store, HashEmbedder("other"), bench.settings, bench.changes.append)
    with pytest.raises(EmbedderChanged):
        other.ingest_bytes("c", "a", "a.txt", b"one")
    other.close()


# -- formats ----------------------------------------------------------------------------------------------


def test_docx_keeps_tables_among_paragraphs(bench: Bench, files: Path) -> None:
    from docx import Document

    document = Document()
    document.add_heading("Spare parts", 1)
    document.add_paragraph("Before the table.")
    table = document.add_table(2, 2)
    for r, row in enumerate((("A1", "B1"), ("A2", "B2"))):
        for c, text in enumerate(row):
            table.cell(r, c).text = text
    document.add_paragraph("After the table.")
    document.add_paragraph("First point", style="List Bullet")
    document.save(str(files / "a.docx"))
    outcome = bench.ingest(files)["a.docx"]
    (chunk,) = bench.chunks(outcome)
    assert chunk.heading == "Spare parts" and chunk.page_first is None
    assert chunk.text.split("\n") == [
        "Before the table.", "", "A1 | B1", "A2 | B2", "", "After the table.", "", "First point",
    ]  # fmt: skip


def test_docx_whose_facts_are_in_tables_only_merged_and_nested(bench: Bench, files: Path) -> None:
    from docx import Document

    document = Document()
    table = document.add_table(3, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "Symptom", "Cause"
    table.cell(1, 0).merge(table.cell(2, 0)).text = "Leak"
    table.cell(1, 1).text = "Seal worn"
    inner = table.cell(2, 1).add_table(1, 2)
    inner.cell(0, 0).text, inner.cell(0, 1).text = "Gasket", "aged"
    document.save(str(files / "a.docx"))
    lines = bench.text(bench.ingest(files)["a.docx"]).split("\n")
    assert lines == ["Symptom | Cause", "Leak | Seal worn", "Leak | Gasket | aged"]


def test_html(bench: Bench, files: Path) -> None:
    (files / "a.html").write_text(
        "<!doctype html><html><head><title>Pump page</title><style>p{}</style><script>alert('x')</script></head>"
        "<body><nav>Home Contact</nav><h1>Pump</h1><p>Open the\nvalve.</p><ul><li>One<li>Two</ul>"
        "<table><tr><th>Part<th>No<tr><td rowspan=2>Seal<td>1<tr><td>2</table>"
        "<p>切断\n电源。</p><img alt='a drawing'></body></html>",
        encoding="utf-8",
    )
    outcome = bench.ingest(files)["a.html"]
    (chunk,) = bench.chunks(outcome)
    assert chunk.title == "Pump page" and chunk.heading == "Pump"
    for piece in ("Open the valve.", "One\nTwo", "Part | No\nSeal | 1\nSeal | 2", "切断电源。", "a drawing"):
        assert piece in chunk.text
    assert "alert" not in chunk.text and "Contact" not in chunk.text
    assert {loss.kind for loss in outcome.losses} == {"navigation_skipped", "image_skipped"}


def test_html_by_its_declared_encoding(bench: Bench, files: Path) -> None:
    page = "<html><head><meta charset=gb2312></head><body><p>拧紧力矩为六十五牛米。</p></body></html>"
    (files / "a.html").write_bytes(page.encode("gb18030"))
    outcome = bench.ingest(files)["a.html"]
    assert "拧紧力矩为六十五牛米。" in bench.text(outcome)
    assert outcome.document and outcome.document.encoding == "gb18030"


def test_markdown(bench: Bench, files: Path) -> None:
    (files / "a.md").write_text(
        "---\ntitle: Battery\n---\n# Safety\n\nWear *gloves*,\nalways.\n\n## Steps\n\n1. Open `Q3`.\n2. Close.\n\n"
        "| Step | Limit |\n|---|---|\n| 1 | 10 ms |\n\n```sh\necho  a\n```\n<b>bold</b> end\n",
        encoding="utf-8",
    )
    outcome = bench.ingest(files)["a.md"]
    safety, steps = bench.chunks(outcome)
    assert (safety.title, safety.heading, safety.text) == ("Battery", "Safety", "Wear gloves, always.")
    assert steps.heading == "Safety › Steps"
    assert steps.text.split("\n\n") == [
        "Open Q3.\nClose.",
        "Step | Limit\n1 | 10 ms",
        "echo  a",
        "bold end",
    ]


TEXT_ZH = "打开泵壳之前必须切断电源。主机的拧紧力矩为一百二十牛米，分三次对角拧紧。"
TEXT_FR = "Le café coûte 5 € : « déjà vu », naïve “quoted” text – à côté de l’été."


@pytest.mark.parametrize(
    ("text", "encoding", "mark"),
    [
        (TEXT_ZH, "utf-8", b""),
        (TEXT_ZH, "utf-8", codecs.BOM_UTF8),
        (TEXT_ZH, "gb18030", b""),
        (TEXT_ZH, "utf-16-le", codecs.BOM_UTF16_LE),
        (TEXT_ZH, "utf-16-be", codecs.BOM_UTF16_BE),
        (TEXT_ZH, "utf-16-le", b""),
        (TEXT_ZH, "utf-16-be", b""),
        ("Plain English about a pump.", "utf-16-le", b""),
        ("Plain English about a pump.", "utf-16-be", b""),
        (TEXT_FR, "cp1252", b""),
        ("Ærø færge: 40 kr., også på søndag.", "cp1252", b""),
        ("扭矩", "gb18030", b""),
        ("打開泵殼之前必須切斷電源。主機的擰緊力矩為一百二十牛米，設備運轉時不得拆卸防護罩。" * 3, "big5", b""),
        ("ポンプを開ける前に必ず電源を切ってください。締め付けトルクは百二十です。" * 3, "cp932", b""),
        ("펌프를 열기 전에 반드시 전원을 차단하십시오. 조임 토크는 백이십입니다." * 3, "cp949", b""),
        ("Перед открытием корпуса насоса отключите питание. " * 3 + "Момент.", "cp1251", b""),
    ],
)
def test_text_in_any_encoding(bench: Bench, files: Path, text: str, encoding: str, mark: bytes) -> None:
    (files / "a.txt").write_bytes(mark + text.encode(encoding))
    outcome = bench.ingest(files)["a.txt"]
    assert bench.text(outcome) == text
    assert outcome.document and outcome.document.encoding == encoding and outcome.losses == ()


def test_undecodable_bytes_are_counted(bench: Bench, files: Path) -> None:
    (files / "a.txt").write_bytes(codecs.BOM_UTF8 + b"The torque is \xff\xff 25 Nm. " * 3 + b"More text here.")
    outcome = bench.ingest(files)["a.txt"]
    assert outcome.status == "added" and [loss.kind for loss in outcome.losses] == ["characters_replaced"]


def test_no_control_characters_reach_the_store(bench: Bench, files: Path) -> None:
    (files / "a.md").write_text("e\ufb03cient \ufb01t\u00ad of the\u200b pump \u2f00\n", encoding="utf-8")
    assert bench.text(bench.ingest(files)["a.md"]) == "efficient fit of the pump 一"


# -- what bad input gets ----------------------------------------------------------------------------------


def test_a_folder_full_of_bad_files_costs_only_them(bench: Bench, files: Path) -> None:
    (files / "good.txt").write_text("A good file.")
    (files / "empty.txt").write_bytes(b"")
    (files / "blank.txt").write_bytes(b" \n\t\n")
    (files / "zeros.txt").write_bytes(b"\0" * 2_000_000)
    (files / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (files / "image.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    (files / "locked.pdf").write_bytes(pdf(encrypt=_encryption("user", "owner")))
    (files / "owner.pdf").write_bytes(pdf(encrypt=_encryption("", "owner")))
    (files / "nothing.pdf").write_bytes(_pdf_without_pages())
    (files / "scan.pdf").write_bytes(pdf(pages=[""]))
    (files / "cut.pdf").write_bytes(pdf()[:300])
    (files / "text.pdf").write_bytes(b"this is no PDF")
    (files / "text.docx").write_bytes(b"this is no DOCX")
    (files / "old.docx").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    (files / "bomb.docx").write_bytes(_zip_bomb())
    (files / "laughs.docx").write_bytes(_billion_laughs())
    (files / "drawing.dwg").write_bytes(b"AC10")
    (files / "noextension").write_text("x")
    (files / ".hidden.txt").write_text("x")
    (files / "loop").symlink_to("loop")
    (files / "folder").mkdir()
    (files / "folder" / "up").symlink_to(files)
    (files / "gone.txt").symlink_to(files / "nowhere.txt")
    os.mkfifo(files / "pipe.txt")
    with (files / "sparse.txt").open("wb") as sparse:
        sparse.truncate(1 << 30)
    (files / os.fsdecode(b"caf\xe9.txt")).write_text("Not UTF-8 by name.")

    found = bench.ingest(files)
    reasons = {name: outcome.reason for name, outcome in found.items() if outcome.status == "failed"}
    expected = {
        "empty.txt": "It is empty.",
        "blank.txt": "It is empty.",
        "zeros.txt": "It is not text: it holds binary data.",
        "binary.txt": "It is not text: it holds binary data.",
        "image.txt": "It is named as text, but it is a PNG image.",
        "locked.pdf": "It is encrypted; remove its password first.",
        "nothing.pdf": "It has no pages.",
        "scan.pdf": "None of its pages holds text; it may be a scan.",
        "cut.pdf": "It is damaged or not a PDF file.",
        "text.pdf": "It is damaged or not a PDF file.",
        "old.docx": "It is encrypted with a password, or an old Office file.",
        "loop": "It is a symbolic link that leads back to itself.",
        "up": "It is a symbolic link back to a folder that it is in.",
        "gone.txt": "It does not exist.",
    }
    assert {name: reasons.get(name) for name in expected} == expected
    assert reasons["text.docx"].startswith("It is damaged or not a DOCX file")
    assert "ZIP bomb" in reasons["bomb.docx"]
    assert "amplification" in reasons["laughs.docx"]
    assert reasons["sparse.txt"].startswith("It has 1024 MB; at most 100 MB are read.")
    assert set(reasons) == {*expected, "text.docx", "bomb.docx", "laughs.docx", "sparse.txt"}
    skipped = {name: outcome.reason for name, outcome in found.items() if outcome.status == "skipped"}
    assert set(skipped) == {"drawing.dwg", "noextension", "pipe.txt"}
    assert "not supported yet" in skipped["drawing.dwg"] and "a pipe" in skipped["pipe.txt"]
    added = {name for name, outcome in found.items() if outcome.status == "added"}
    assert added == {"good.txt", "owner.pdf", r"caf\xe9.txt"}
    for document in bench.store.documents("c"):
        document.source.encode()  # each is valid Unicode
    assert all(outcome.reason.count("\n") == 0 for outcome in found.values())


def _encryption(user: str, owner: str) -> object:
    from reportlab.lib.pdfencrypt import StandardEncryption

    return StandardEncryption(user, owner, canPrint=0)


def _pdf_without_pages() -> bytes:
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 0 >>"]
    out = b"%PDF-1.4\n"
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 3\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + b"trailer << /Size 3 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start


def _zip_bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"<w>" + b" " * (300 << 20))
    return out.getvalue()


def _billion_laughs() -> bytes:
    from docx import Document

    plain = io.BytesIO()
    document = Document()
    document.add_paragraph("LAUGH")
    document.save(plain)
    entities = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
    bomb = f'<!DOCTYPE w [<!ENTITY l0 "lol">{entities}]>'
    out = io.BytesIO()
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "word/document.xml":
                head, _, body = data.partition(b"?>")
                data = head + b"?>" + bomb.encode() + body.replace(b"LAUGH", b"&l9;")
            target.writestr(name, data)
    return out.getvalue()


def test_paths_named_outright(bench: Bench, files: Path) -> None:
    (files / "drawing.dwg").write_bytes(b"AC")
    (files / "empty").mkdir()
    long = files / ("x" * 200) / ("y" * 4000)
    outcomes = list(bench.each(files / "drawing.dwg", files / "empty", files / "no.txt", long, Path("/dev/null")))
    assert [outcome.status for outcome in outcomes] == ["failed"] * 5
    assert [outcome.reason.split(";")[0] for outcome in outcomes] == [
        ".dwg files are not supported yet",
        "It is an empty folder.",
        "It does not exist.",
        "Its path is too long.",
        "It is a device, not a file.",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_told(bench: Bench, files: Path) -> None:
    (files / "a.txt").write_text("x")
    (files / "a.txt").chmod(0)
    assert bench.ingest(files)["a.txt"].reason == "It may not be read by this user."


def test_a_file_that_vanishes_between_listing_and_reading(bench: Bench, files: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (files / name).write_text(name)
    outcomes = bench.each(files, meanwhile=lambda: (files / "a.txt").unlink(missing_ok=True))
    assert [(o.status, o.reason) for o in outcomes] == [("failed", "It does not exist."), ("added", "")]


def test_a_file_over_the_limit_is_not_read(tmp_path: Path, files: Path) -> None:
    (tmp_path / "small").mkdir()
    small = Bench(tmp_path / "small", max_file_bytes=100)
    (files / "a.txt").write_text("x" * 101)
    (files / "b.txt").write_text("x" * 100)
    found = small.ingest(files)
    assert found["a.txt"].status == "failed" and found["b.txt"].status == "added"
    assert small.ingester.ingest_bytes("c", "a", "a.txt", b"x" * 101).status == "failed"
    small.close()


# -- the parse worker -------------------------------------------------------------------------------------

WORKER = """
import os, sys, time
import appliance.documents.worker as worker
from appliance.documents.model import Block, Parsed

def parse(name, data, ocr):
    if name == "crash.txt": os.abort()
    if name == "hang.txt": time.sleep(1000)
    if name == "spin.txt":
        while True: pass
    if name == "swell.txt": return bytearray(1 << 40)
    if name == "leave.txt": sys.exit(3)
    if name == "print.txt": print("noise on standard output", flush=True); os.write(1, b"noise")
    if name == "fault.txt": raise KeyError("a bug")
    return Parsed("t", "text/plain", (Block("paragraph", str(os.getpid())),))

worker.parse = parse
worker.main()
"""


def test_a_worker_that_crashes_or_swells_costs_one_file() -> None:
    parser = Parser(DocumentSettings(), [sys.executable, "-c", WORKER])

    def failure(name: str) -> str:
        with pytest.raises(UnreadableDocument) as caught:
            parser.parse(name, b"x")
        return caught.value.message

    try:
        first = parser.parse("a.txt", b"x").blocks[0].text
        assert parser.parse("print.txt", b"x").blocks[0].text == first  # kept alive between files
        assert failure("fault.txt") == "It could not be read (KeyError: 'a bug')."
        assert failure("swell.txt") == "Reading it needs more memory than is allowed."
        assert parser.parse("a.txt", b"x").blocks[0].text == first
        assert failure("crash.txt") == "The program that reads it crashed (SIGABRT)."
        second = parser.parse("a.txt", b"x").blocks[0].text
        assert second != first
        assert failure("leave.txt").startswith("The program that reads it ended with code 3.")
        assert parser.parse("a.txt", b"x").blocks[0].text != second
    finally:
        parser.close()


@pytest.mark.parametrize("name", ["hang.txt", "spin.txt"])
def test_a_worker_that_does_not_end_is_ended(name: str) -> None:
    parser = Parser(DocumentSettings(parse_timeout_s=1.5), [sys.executable, "-c", WORKER])
    try:
        with pytest.raises(UnreadableDocument) as caught:
            parser.parse(name, b"x")
        assert caught.value.message == "Reading it took longer than 1.5 seconds."
    finally:
        parser.close()


def test_closing_ends_the_worker() -> None:
    parser = Parser(DocumentSettings(), [sys.executable, "-c", WORKER])
    pid = int(parser.parse("a.txt", b"x").blocks[0].text)
    parser.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert parser.parse("a.txt", b"x").blocks  # and it can be used again
    parser.close()


@pytest.mark.parametrize("name", ["hang.txt", "spin.txt"])
def test_a_stop_does_not_wait_for_the_document_that_is_read(tmp_path: Path, name: str) -> None:
    store = Store.open(tmp_path / "store.db")
    ingester = Ingester(store, HashEmbedder(), DocumentSettings(), lambda _: None)
    ingester._parser = Parser(DocumentSettings(), [sys.executable, "-c", WORKER])
    ingester.ingest_bytes("c", "a", "a.txt", b"x")
    timer = threading.Timer(0.3, ingester.give_up)
    timer.start()
    with pytest.raises(Unavailable, match="stopping"):
        ingester.ingest_bytes("c", "b", name, b"x")
    with pytest.raises(Unavailable, match="stopping"):
        ingester.ingest_bytes("c", "b", "a.txt", b"y")
    ingester.close()
    assert [document.source for document in store.documents("c")] == ["a"]
    store.close()


def test_a_stop_does_not_wait_for_the_vectors_of_a_large_document(tmp_path: Path) -> None:
    class Stopping(HashEmbedder):
        def embed_passages(self, texts: Sequence[str]) -> Embeddings:
            ingester.give_up()
            return super().embed_passages(texts)

    store = Store.open(tmp_path / "store.db")
    ingester = Ingester(store, Stopping(), DocumentSettings(), lambda _: None)
    large = "\n\n".join(f"# Part {i}\n\n" + "some words about pumps. " * 30 for i in range(200))
    with pytest.raises(Unavailable, match="nothing of the document was stored"):
        ingester.ingest_bytes("c", "a", "a.md", large.encode())
    ingester.close()
    assert store.documents() == []
    store.close()


LEFT_ALONE = """
import sys
from appliance.config import DocumentSettings
from appliance.documents.parser import Parser
from appliance.documents.walk import find_files
parser = Parser(DocumentSettings(), [sys.executable, "-c", sys.argv[1]])
print(parser.parse("a.txt", b"x").blocks[0].text, flush=True)
parser.parse(sys.argv[2], b"x")
"""


@pytest.mark.parametrize("name", ["hang.txt", "spin.txt"])
def test_a_worker_does_not_outlive_the_program_that_asked(name: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEFT_ALONE, WORKER, name], stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        worker = psutil.Process(int(asking.stdout.readline()))
        asking.kill()
    worker.wait(timeout=10)  # raises when it is still there


def test_memory_is_limited_for_real(files: Path) -> None:
    parser = Parser(DocumentSettings(parse_memory_bytes=300 << 20))
    try:
        with pytest.raises(UnreadableDocument, match=r"memory|crashed"):
            parser.parse("a.txt", b"word and more " * (10 << 20))
        assert parser.parse("a.txt", b"A small one.").blocks[0].text == "A small one."
    finally:
        parser.close()


# -- killed in the middle ---------------------------------------------------------------------------------

INGEST = """
import pathlib, sys
sys.path.insert(0, sys.argv[3])
from test_documents import Bench
bench = Bench(pathlib.Path(sys.argv[1]))
for outcome in bench.each(pathlib.Path(sys.argv[2])):
    print(outcome.source, outcome.status, flush=True)
"""


def test_kill_during_ingest_keeps_every_acknowledged_file_whole(tmp_path: Path, files: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for i in range(30):
        (files / f"{i:02}.txt").write_text(f"Document {i}. " + f"It says {i} again and again. " * 60)
    acked: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", INGEST, str(data), str(files), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout
        for line in process.stdout:
            acked.append(Path(line.split()[0]).name)
            if len(acked) == 8:
                process.send_signal(signal.SIGKILL)
    assert len(acked) >= 8
    again = Bench(data)
    try:
        assert again.store.check() == []
        stored = {document.name: document for document in again.store.documents("c")}
        assert set(acked) <= set(stored) and len(stored) <= len(acked) + 1
        found = again.ingest(files)
        assert {name for name, outcome in found.items() if outcome.status == "unchanged"} == set(stored)
        assert len(again.store.documents("c")) == 30 and again.store.check() == []
    finally:
        again.close()
