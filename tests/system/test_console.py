"""The console in a real browser, as people use it."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium_axe_python.axe import Axe

from appliance.documents.ingest import Outcome
from appliance.http.ports import ComponentState
from appliance.store.db import Store
from appliance.store.keys import NewKey
from appliance.store.records import Loss
from appliance.telemetry.metrics import BY_NAME, Metrics, Reading
from appliance.telemetry.whole import Options, Telemetry
from tests.system.console_page import CHROMEDRIVER, CHROMIUM, MISSING, Page, ServiceThread, browser
from tests.unit.http.backend import DOCUMENT

pytestmark = pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason=MISSING)
LONG_S = 30.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    service = ServiceThread(tmp_path_factory.mktemp("console"))
    service.start()
    try:
        with browser() as driver:
            yield Page(driver, service)
    finally:
        service.stop()


@pytest.fixture
def page(shared: Page) -> Iterator[Page]:
    """A browser that was never here; at the end the page must have had no error and broken no policy."""
    shared.service.renew()
    shared.forget()
    yield shared
    assert shared.errors() == []


def test_ask_and_open_the_source(page: Page) -> None:
    page.service.backend.script = ("It takes <b>12</b> Nm", " [1]. Not [7].", "\n\n“the quote” [1]")
    page.open()
    page.script(
        """window.told = [];
        const status = document.getElementById("status");
        new MutationObserver(() => told.push(status.textContent)).observe(status, {childList: true});"""
    )
    page.ask("How tight?")
    assert page.text(".turn .question") == "How tight?"
    # What looks like markup is text; a number that names no source is no link.
    assert page.text(".turn .text p") == "It takes <b>12</b> Nm1. Not [7]."
    assert page.text(".turn blockquote") == "“the quote”1"
    assert page.texts(".sources .name") == ["手册.pdf"]
    # A screen reader hears the whole answer once, and no piece of it before.
    told = page.script("return told")
    assert len(told) == 2
    assert "It takes <b>12</b> Nm. Not" in told[1] and "[1]" not in told[1]

    cite = page.one(".text .cite")
    assert cite.get_attribute("aria-label") == "Source 1: 手册.pdf page 7 · Safety › Locks"
    cite.click()
    assert page.texts("#source dd") == ["手册.pdf", "Manual", "7", "Safety › Locks"]
    page.until(lambda: "Before it." in page.text("#source .passage"))
    # The passage that was quoted, not the best of the search; its line break is no difference.
    assert page.text("#source mark") == "the\nquote"
    assert page.service.backend.searched[-1].query == "How tight?"
    assert page.script("return document.activeElement.id") == "source-title"
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.until(lambda: not page.script("return document.getElementById('source').open"))
    assert page.script("return document.activeElement.className") == "cite"


def test_a_follow_up_goes_with_what_was_said_and_the_conversation_is_kept(page: Page) -> None:
    page.open()
    page.ask("How tight?")
    page.ask("And when hot?")
    first, second = page.service.backend.asked
    assert len(first.messages) == 1
    assert [(message.role, message.content) for message in second.messages] == [
        ("user", "How tight?"),
        ("assistant", "It takes 12 Nm.\n\n“the quote”"),
        ("user", "And when hot?"),
    ]
    assert second.collection == "default"
    assert page.text(".turn:last-child blockquote") == "“the quote”1"

    page.open()  # another visit
    page.click("#conversations button")
    assert page.texts(".turn .question") == ["How tight?", "And when hot?"]
    page.click("#new-conversation")
    assert page.all(".turn") == []
    page.click("#conversations button[aria-label^=Delete]")
    assert page.all("#conversations li") == []
    page.open()
    assert page.all("#conversations li") == []


def test_what_is_not_in_the_documents_and_what_an_answer_lacks_is_said_in_words(page: Page) -> None:
    page.service.backend.grounded = False
    page.service.backend.degraded = ("rerank_skipped: the 7 ms that are left are for the answer", "novel: in few words")
    page.open()
    page.ask("How tight?")
    assert page.text(".badge.not_found") == "Not in your documents"
    notes = page.texts(".notes li")
    assert notes == ["There was no time to order the passages: a better one may stand further down.", "in few words"]
    page.service.backend.degraded = ("unsupported: no source bears the generated text out; quotations added",)
    page.ask("And now?")
    assert page.text(".badge.unsupported").startswith("Not borne out by your documents")


def test_stop_keeps_what_came_and_ends_the_work(page: Page) -> None:
    backend = page.service.backend
    backend.script = ("The first part, ", LONG_S, "never")
    page.open()
    page.type("#question", "How tight?")
    # An input method that is open takes Enter for itself.
    page.script(
        """document.getElementById("question").dispatchEvent(
            new KeyboardEvent("keydown", {key: "Enter", isComposing: true, bubbles: true, cancelable: true}))"""
    )
    assert backend.asked == []
    page.type("#question", Keys.ENTER)
    page.until(lambda: "first part" in page.text(".turn .text"))
    assert page.one(".answer").get_attribute("aria-busy") == "true"
    page.click("#stop")
    page.until(lambda: page.text(".badge.stopped"))
    assert page.text(".turn .text p") == "The first part,"
    page.until(backend.closed.is_set)
    page.one("#send")
    assert page.script("return document.activeElement.id") == "send"


def test_a_restart_in_the_middle_of_an_answer(page: Page) -> None:
    service = page.service
    service.backend.script = ("Half of ", LONG_S)
    page.open()
    page.type("#question", "How tight?\n")
    page.until(lambda: "Half of" in page.text(".turn .text"))
    service.stop()
    page.until(lambda: "cannot be reached" in page.text("#banner"))
    assert "asked again" in page.text(".badge.offline")
    service.backend.script = ("A whole one [1].",)
    loaded = service.start(loading=True)
    page.until(lambda: "is starting" in page.text("#banner"))
    assert page.all(".turn .text p") == []
    loaded()
    page.until(lambda: page.text(".turn .text p") == "A whole one1.")
    page.one(".answer[aria-busy=false]")
    page.until(lambda: page.text("#banner") == "The service is back.")
    assert len(page.all(".turn")) == 1


def test_a_page_that_is_opened_while_the_service_loads(page: Page) -> None:
    page.service.stop()
    page.service.backend.components = {"store": ComponentState("ready"), "engine": ComponentState("loading", "x")}
    loaded = page.service.start(loading=True)
    page.open("documents")
    page.until(lambda: page.text("#banner") == "The service is starting. Language model: loading")
    page.service.backend.components = {"store": ComponentState("ready")}
    loaded()
    page.until(lambda: page.text("#list .name") == "手册.pdf")


def test_upload_with_losses_and_a_failure(page: Page, tmp_path: Path) -> None:
    backend = page.service.backend
    page.open("documents")
    good, bad = tmp_path / "pump manual.pdf", tmp_path / "bad.txt"
    good.write_bytes(b"%PDF " * 1000)
    bad.write_bytes(b"\0" * 99)
    losses = (Loss("image_skipped", "3 images"), Loss("page_without_text", "", 4))
    backend.outcome = Outcome("x", "added", document=DOCUMENT, chunks=4, losses=losses)
    page.all("#files")[0].send_keys(str(good))
    page.until(lambda: page.text(".upload.done .told") == "Added")
    assert backend.ingested == [("default", "pump manual.pdf", "pump manual.pdf", good.read_bytes())]
    page.click(".upload summary")
    assert page.texts(".upload .losses li") == ["Images 3 images", "A page without text page 4"]
    page.until(lambda: page.text("#list-title") == "2 documents")

    backend.outcome = Outcome("x", "failed", "It is damaged.")
    page.all("#files")[0].send_keys(str(bad))
    page.until(lambda: "It cannot be read: It is damaged." in page.text(".upload.failed .told"))
    backend.outcome = None
    page.click(".upload.failed button")
    page.until(lambda: page.text(".upload.done .told"))

    page.script(
        """const dropped = new DataTransfer();
        dropped.items.add(new File(["# Valve"], "valve.md"));
        const drop = new DragEvent("drop", {dataTransfer: dropped, bubbles: true, cancelable: true});
        document.getElementById("drop").dispatchEvent(drop);"""
    )
    page.until(lambda: backend.ingested[-1] == ("default", "valve.md", "valve.md", b"# Valve"))
    page.until(lambda: page.text("#list-title") == "4 documents")


def test_an_upload_that_a_restart_breaks_off_is_sent_again(page: Page, tmp_path: Path) -> None:
    page.open("documents")
    file = tmp_path / "valve.md"
    file.write_text("# Valve")
    page.service.stop()
    page.all("#files")[0].send_keys(str(file))
    page.until(lambda: page.text(".upload.offline .told"))
    page.service.start()
    page.until(lambda: page.text(".upload.done .told") == "Added")
    assert [name for _, name, _, _ in page.service.backend.ingested] == ["valve.md"]


def test_search_and_delete(page: Page) -> None:
    backend = page.service.backend
    page.open("documents")
    page.type("#query", "valve\n")
    page.until(lambda: len(page.all("#results li")) == 2)
    page.click("#results li:last-child button")
    assert "Here is the" in page.text("#source .passage")
    page.click("#source .close")
    page.click("#list .danger")
    assert page.text("#asking h2") == "Delete 手册.pdf"
    page.click("#asking button:not(.primary)")
    assert backend.deleted == []
    page.click("#list .danger")
    page.click("#asking .primary")
    page.until(lambda: backend.deleted == [DOCUMENT.id])
    page.until(lambda: "Nothing is in this collection yet." in page.text("#list"))


def test_a_key_is_asked_for_where_the_service_wants_one(page: Page, tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "store.sqlite3")) as store:
        page.service.renew(store.keys)
        secret = store.keys.create(NewKey("site", ("query",))).secret
        page.open()
        page.type("#asking-line", "apl_wrong\n")
        page.until(lambda: "does not take this key" in page.text("#asking .hint"))
        page.type("#asking-line", f"{secret}\n")
        page.ask("How tight?")
        assert page.text(".turn blockquote") == "“the quote”1"
        assert page.script("return Object.values(sessionStorage)") == [secret]
        assert secret not in page.script("return JSON.stringify(localStorage)")
        page.click('[data-view="documents"]')
        page.click("#list .danger")
        page.click("#asking .primary")
        page.until(lambda: "Your key is not for this." in page.text("#list .failure"))
        page.click('[data-view="system"]')
        page.until(lambda: "smol" in page.text("#facts"))
        assert page.service.backend.deleted == []
        page.service.renew()


def test_languages(page: Page) -> None:
    page.service.backend.degraded = ("rerank_skipped: x",)
    page.speak("zh-CN")
    page.open()
    assert page.script("return document.documentElement.lang") == "zh-CN"
    assert page.texts(".tabs a") == ["提问", "文档", "系统"]
    page.ask("牛米？")
    assert page.text(".notes li").startswith("来不及给段落排序")
    page.click("#language")
    page.until(lambda: page.script("return document.documentElement.lang") == "en")
    assert page.text(".notes li").startswith("There was no time")
    assert page.script("return document.title") == "Ask · Appliance"
    page.open("system")  # the choice outlasts the visit, and weighs more than the browser's language
    assert page.text("#system-title") == "System"
    page.until(lambda: "smol" in page.text("#facts"))


def test_operators_see_what_is_ready_and_where_the_time_went(page: Page) -> None:
    page.service.backend.components["engine"] = ComponentState("degraded", "runs on the CPU")
    page.open()
    page.ask("How tight?")
    page.click('[data-view="system"]')
    page.until(lambda: "works, but not fully" in page.text("#facts"))
    assert "runs on the CPU" in page.text("#facts")
    page.click("#facts details.times summary")
    assert page.texts("#facts .waterfall th") == ["Waiting for a turn", "In all"]
    assert page.texts("#facts .waterfall td:last-child") == ["0.1 ms", "12 ms"]
    assert page.script("return document.activeElement.tagName") == "SUMMARY"


def test_operators_see_the_requests_of_all_and_what_stages_take(page: Page, tmp_path: Path) -> None:
    service = page.service
    telemetry = Telemetry(Options(folder=tmp_path, version="1"))
    service.stop()
    telemetry.start()
    service.telemetry = telemetry
    service.start()
    try:
        telemetry.metrics.measure("appliance.stage.duration", 0.2, "recall.dense")
        telemetry.metrics.watch(lambda: [Reading("appliance.queue.length", 3, ("recall",))])
        page.open()
        page.ask("How tight?")
        service.backend.failure = RuntimeError("broken")
        page.click(".cite")  # a search, which fails
        page.until(lambda: "went wrong" in page.text("#source .failure"))
        service.backend.failure = None
        page.click("#source .close")
        page.click('[data-view="system"]')
        page.until(lambda: "POST /v1/ask" in page.text("#facts"))
        failed = next(text for text in page.texts("#facts summary") if "POST /v1/search" in text)
        assert failed.endswith("failed")
        assert not any("GET /v1/" in text for text in page.texts("#facts summary")), "the page's own looking"
        page.click("#facts details.times summary")
        page.until(lambda: "http.response.status_code=500" in page.text("#facts .waterfall"))
        rows = [" ".join(text.split()) for text in page.texts("#facts tr")]
        assert "Search by meaning1175 ms249 ms" in rows
        assert "Waitingsearch: 3" in rows
    finally:
        service.stop()
        telemetry.stop()
        service.telemetry = None
        service.start()


def test_stages_lie_one_after_the_other_and_both_searches_side_by_side(page: Page) -> None:
    timings = {
        "decode": 50,
        "recall_lexical": 3,
        "recall_dense": 4,
        "embed_query": 10,
        "novel": 1,
        "queue": 2,
        "total": 70,
    }
    bars = page.module("return (await import('/console/waterfall.js')).layOut(arguments[0]);", timings)
    assert [(bar["name"], bar["start"]) for bar in bars] == [
        ("queue", 0),
        ("embed_query", 2),
        ("recall_dense", 12),
        ("recall_lexical", 2),
        ("novel", 16),
        ("decode", 17),
    ]


def test_events_are_the_same_however_the_bytes_are_cut(page: Page) -> None:
    stream = ': ping\n\nevent: delta\ndata: {"text": "牛米🙂"}\n\n'
    stream += "data: a\r\ndata:  b\r\n\r\nid: 1\rdata:c\r\rdata\n\nevent: x\n\n"
    raw = list(stream.encode())
    draw = random.Random(7)
    cuts = [sorted(draw.sample(range(len(raw)), draw.randint(0, len(raw)))) for _ in range(60)]
    pieces = [[raw[a:b] for a, b in zip([0, *cut], [*cut, len(raw)], strict=True)] for cut in cuts]
    read = page.module(
        """
        const { events } = await import("/console/sse.js");
        const found = [];
        for (const pieces of arguments[0]) {
          const body = new ReadableStream({
            start(sink) {
              for (const piece of pieces) sink.enqueue(new Uint8Array(piece));
              sink.close();
            },
          });
          const read = [];
          for await (const { name, data } of events(body)) read.push([name, data]);
          found.push(read);
        }
        return found;
        """,
        pieces,
    )
    wanted = [["delta", '{"text": "牛米🙂"}'], ["message", "a\n b"], ["message", "c"], ["message", ""]]
    assert all(found == wanted for found in read), read


def test_figures_are_read_as_they_are_meant(page: Page) -> None:
    metrics = Metrics()
    draw = random.Random(3)
    took = sorted(draw.lognormvariate(-3, 1.5) for _ in range(200))
    for seconds in took:
        metrics.measure("appliance.stage.duration", seconds, 'a "stage"\\')
    metrics.measure("appliance.stage.duration", 1e6, "endless")
    found = page.module(
        """
        const { histograms, parse } = await import("/console/prometheus.js");
        const found = histograms(parse(arguments[0]), "appliance_stage_duration_seconds", "stage");
        return [...found].map(([name, { count, quantile }]) => [name, count, [0.01, 0.5, 0.9, 0.99].map(quantile)]);
        """,
        metrics.text().decode(),
    )
    bounds = [0.0, *BY_NAME["appliance.stage.duration"].buckets]
    (name, count, quantiles), endless = sorted(found)
    assert (name, count) == ('a "stage"\\', 200)
    for share, told in zip((0.01, 0.5, 0.9, 0.99), quantiles, strict=True):
        true = took[math.ceil(share * 200) - 1]
        above = bisect.bisect_left(bounds, true)
        assert bounds[above - 1] <= told <= bounds[above], share
    assert endless == ["endless", 1, [bounds[-1]] * 4], "no longer than can be told"


def test_the_page_reaches_nothing_else_and_runs_nothing_that_was_put_into_it(page: Page) -> None:
    page.open()
    page.ask("How tight?")
    loaded = page.script("return performance.getEntriesByType('resource').map(({name}) => name)")
    assert loaded and all(url.startswith(page.service.url) for url in loaded)
    refused, ran = page.module(
        """
        const refused = [];
        const attempt = (name, work) => {
          try {
            work();
          } catch {
            refused.push(name);
          }
        };
        const told = new Promise((resolve) => {
          const heard = ({ effectiveDirective }) => effectiveDirective === "connect-src" && resolve();
          document.addEventListener("securitypolicyviolation", heard);
        });
        const made = document.createElement("img");
        attempt("handler", () => made.setAttribute("onerror", "window.ran = true"));
        attempt("markup", () => document.body.insertAdjacentHTML("beforeend", "<p>x</p>"));
        await fetch("http://127.0.0.1:9/").catch(() => refused.push("request"));
        await told; // it was the policy that refused it
        return [refused, window.ran ?? false];
        """
    )
    assert refused == ["handler", "markup", "request"]
    assert not ran
    page.errors()  # those that were provoked


def test_no_serious_fault_of_accessibility(page: Page, tmp_path: Path) -> None:
    page.service.backend.grounded = False
    page.service.backend.degraded = ("rerank_skipped: x",)
    page.open()
    axe = Axe(page.driver)
    axe.inject()  # type: ignore[no-untyped-call]

    def check(where: str) -> None:
        for colours, rules in (("dark", {"runOnly": ["color-contrast"]}), ("light", {})):
            page.script("document.documentElement.dataset.theme = arguments[0]", colours)
            found = axe.run(options={"resultTypes": ["violations"], **rules})["violations"]
            serious = [fault for fault in found if fault["impact"] in ("serious", "critical")]
            told = [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in serious]
            assert told == [], f"{where}, {colours}"

    check("an empty conversation")
    page.ask("How tight?")
    page.click(".after details.times summary")
    page.click(".cite")
    page.until(lambda: "Before it." in page.text("#source .passage"))
    check("an answer with its source")
    page.click("#source .close")
    page.click('[data-view="documents"]')
    file = tmp_path / "x.md"
    file.write_text("x")
    page.service.backend.outcome = Outcome("x", "failed", "It is damaged.")
    page.all("#files")[0].send_keys(str(file))
    page.until(lambda: page.text(".upload.failed .told"))
    page.type("#query", "valve\n")
    page.until(lambda: len(page.all("#results li")) == 2)
    check("documents")
    page.click("#list .danger")
    check("a question in return")
    page.click("#asking button:not(.primary)")
    page.click('[data-view="system"]')
    page.until(lambda: "smol" in page.text("#facts"))
    check("the system")


def test_on_a_phone_nothing_sticks_out_and_the_source_covers_the_page(page: Page) -> None:
    page.screen(360, 640, mobile=True)
    page.open()
    page.ask("How tight is " + "verylongword" * 20)
    page.click(".after details.times summary")

    def fits() -> bool:
        return bool(page.script("return document.documentElement.scrollWidth <= innerWidth"))

    assert fits()
    page.script("scrollTo(0, 0)")
    page.click("#history-toggle")
    page.one("#new-conversation")
    assert fits()
    page.click(".cite")
    assert page.script("return document.getElementById('source').matches(':modal')")
    page.click("#source .close")
    for view in ("documents", "system"):
        page.click(f'[data-view="{view}"]')
        page.one(f"#{view} h2")
        assert fits(), view
    page.module(
        """
        const { chart } = await import("/console/waterfall.js");
        const bars = [{ name: "name ".repeat(20), start: 0, ms: 1, told: "told".repeat(99) }];
        document.getElementById("facts").append(chart(bars, [], 1));
        """
    )
    assert fits(), "a span with long attributes"
    lines = page.script("return [...document.querySelectorAll('.top a, .top button')].map((one) => one.clientHeight)")
    assert max(lines) <= page.script("return document.querySelector('.top').clientHeight"), "no word is broken in two"


def test_by_keyboard_alone(page: Page) -> None:
    page.open()
    page.script("document.activeElement.blur()")

    def press(*keys: str) -> None:
        for key in keys:
            page.driver.switch_to.active_element.send_keys(key)

    press(Keys.TAB)
    assert page.script("return document.activeElement.className") == "skip"
    press(Keys.TAB, Keys.TAB, Keys.ENTER)
    page.until(lambda: page.script("return document.activeElement.id") == "documents-title")
    assert page.all('[data-view="documents"][aria-current=page]')
