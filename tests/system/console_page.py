"""Owns the two ends of the console's tests: a service in a thread, and Debian's Chromium that looks at it.

Must not know any test.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec.structs import replace
from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service as ChromeDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from appliance.answer.types import Event, Finished, Question
from appliance.config import Settings
from appliance.documents.ingest import Outcome
from appliance.http.app import create_app
from appliance.http.ports import Backend
from appliance.http.server import Server
from appliance.retrieval.types import SearchRequest, SearchResult
from appliance.store.attributes import Attributes
from appliance.store.keys import KeyTable
from appliance.store.records import Collection, Document
from appliance.telemetry.whole import Telemetry
from tests.integration.http.serving import settings
from tests.integration.program import free_port
from tests.unit.http.backend import DOCUMENT, PASSAGE, ScriptedBackend

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "Chromium and ChromeDriver are not installed (Debian: apt-get install chromium chromium-driver)"
PATIENCE_S = 20.0  # what the page does within a second may take this long on a busy machine

T = TypeVar("T")


class Shelf(ScriptedBackend):
    """The scripted backend with documents that come and go, and answers that may be ungrounded."""

    def __init__(self, configured: Settings, key_table: KeyTable | None = None) -> None:
        script = ("It takes ", "12 Nm [1].", "\n\n“the quote” [1]")
        super().__init__(*script, configured=configured, key_table=key_table)
        self.grounded = True
        self.degraded: tuple[str, ...] = ()
        self.shelf: list[Document] = [DOCUMENT]

    async def ask(self, question: Question) -> AsyncGenerator[Event]:
        async with contextlib.aclosing(super().ask(question)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    told = replace(event.report, grounded=self.grounded, degraded=self.degraded)
                    yield replace(event, report=told)
                else:
                    yield event

    async def search(self, request: SearchRequest) -> SearchResult:
        self._fail()
        self.searched.append(request)
        found = replace(PASSAGE, text="Before it. Here is the\nquote, and more.\n\nAfter it.")
        return SearchResult((replace(found, chunk_id=7, text="Another one."), found), {"total": 1.0}, ())

    async def ingest(
        self, collection: str, source: str, name: str, data: bytes, attributes: Attributes | None = None
    ) -> Outcome:
        outcome = await super().ingest(collection, source, name, data, attributes)
        if outcome.document is not None:
            self.shelf.append(
                replace(DOCUMENT, id=len(self.shelf) + 3, source=source, name=name, collection=collection)
            )
        return outcome

    async def collections(self) -> Sequence[Collection]:
        self._fail()
        return [Collection("default", len(self.shelf), 4, 2)]

    async def documents(self, collection: str | None) -> Sequence[Document]:
        self._fail()
        return list(self.shelf)

    async def delete_document(self, document_id: int) -> None:
        await super().delete_document(document_id)
        self.shelf = [document for document in self.shelf if document.id != document_id]


class ServiceThread:
    """A service on a port of its own that may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.telemetry: Telemetry | None = None  # of the next start
        self.settings = settings(folder, port=free_port())
        self.backend = Shelf(self.settings)
        self.url = f"http://127.0.0.1:{self.settings.server.port}/"
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None

    def renew(self, key_table: KeyTable | None = None) -> None:
        """Forget what was asked and scripted; with a table of keys, take no request without one."""
        required: Any = {} if key_table is None else {"require_keys": "tcp"}
        configured = replace(self.settings, server=replace(self.settings.server, **required))
        self.backend.__dict__.update(Shelf(configured, key_table).__dict__)

    def start(self, *, loading: bool = False) -> Callable[[], None]:
        """Start it; it listens when this returns. Returns what ends the loading."""
        listening = threading.Event()
        app = create_app(self.backend, loading=loading, telemetry=self.telemetry)

        async def serve(backend: Backend) -> None:
            with Server.bind(backend.settings) as server:
                self._loop, self._server = asyncio.get_running_loop(), server
                listening.set()
                await server.run(app)

        def run() -> None:
            with asyncio.Runner() as runner:
                runner.run(serve(self.backend))

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert listening.wait(PATIENCE_S)
        return app.lifecycle.loaded

    def stop(self) -> None:
        """Stop it at once: answers under way are cut."""
        if self._thread is None or self._loop is None or self._server is None:
            return
        for _ in range(2):
            self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._thread = None


@contextlib.contextmanager
def browser() -> Iterator[Chrome]:
    """Chromium without a screen."""
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    # The sandbox cannot be used by root, as whom container tests run; the pages are our own.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeDriver(str(CHROMEDRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The console in a browser, as a person uses it: everything waits until it is there."""

    def __init__(self, driver: Chrome, service: ServiceThread) -> None:
        self.driver = driver
        self.service = service

    def open(self, view: str = "ask") -> None:
        """Load the page anew and wait until it has its words."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.service.url}#/{view}")
        self.until(lambda: self.text(f"#{view}-title, #{view} h1"))

    def forget(self) -> None:
        """Be a browser that was never here: nothing kept, English, light, a desk's screen."""
        self.driver.get(f"{self.service.url}healthz")
        self.script("localStorage.clear(); sessionStorage.clear();")
        self.speak("en-US")
        self.colours("light")
        self.screen(1280, 860)
        self.errors()

    def speak(self, language: str) -> None:
        """What the browser's user speaks."""
        agent = self.script("return navigator.userAgent")
        self.command("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=language)

    def colours(self, wanted: str) -> None:
        """What the system's colours are: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": wanted}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def screen(self, width: int, height: int, *, mobile: bool = False) -> None:
        """The size of the screen."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.command("Emulation.setDeviceMetricsOverride", **metrics)

    def command(self, name: str, **parameters: Any) -> None:
        """A command of the browser's own protocol."""
        self.driver.execute_cdp_cmd(name, parameters)

    def script(self, text: str, *arguments: Any) -> Any:
        """What a function body gives."""
        return self.driver.execute_script(text, *arguments)

    def module(self, text: str, *arguments: Any) -> Any:
        """What the body of an async function gives; it may import the console's modules."""
        done = "arguments[arguments.length - 1]"
        body = f"const done = {done}; (async () => {{ {text} }})().then(done, (error) => done(String(error.stack)));"
        return self.driver.execute_async_script(body, *arguments)

    def until(self, wanted: Callable[[], T | Literal[False]]) -> T:
        """What `wanted` gives as soon as that is true; an element that is made anew meanwhile is looked up again."""
        passing = (StaleElementReferenceException, ElementClickInterceptedException)
        waiting = WebDriverWait(self.driver, PATIENCE_S, 0.03, passing)
        return waiting.until(lambda _: wanted())

    def all(self, selector: str) -> list[WebElement]:
        """The elements of a selector, now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The first element of a selector, as soon as it is there and can be seen."""
        return self.until(lambda: self._seen(selector))

    def _seen(self, selector: str) -> WebElement | Literal[False]:
        return next((element for element in self.all(selector) if element.is_displayed()), False)

    def text(self, selector: str) -> str:
        """The text of the first element of a selector, seen or not; empty where there is none."""
        script = "return document.querySelector(arguments[0])?.textContent ?? ''"
        return str(self.script(script, selector))

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements of a selector, of one moment."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        return list(self.script(script, selector))

    def click(self, selector: str) -> None:
        """Click on what can be seen, brought to the middle of the screen as a person would."""

        def clicked() -> bool:
            if seen := self._seen(selector):
                self.script("arguments[0].scrollIntoView({block: 'center'})", seen)
                seen.click()
            return bool(seen)

        self.until(clicked)

    def type(self, selector: str, text: str) -> None:
        """Write into a field."""
        self.one(selector).send_keys(text)

    def ask(self, question: str) -> None:
        """Ask, and wait for the end of the answer."""
        before = len(self.all(".turn"))
        self.type("#question", question)
        self.click("#send")
        done = ".answer[aria-busy=false]"
        self.until(lambda: len(self.all(f".turn {done}")) > before)

    def errors(self) -> list[str]:
        """What the browser complained of since the last call; failed requests are no fault of the page."""
        logged = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in logged if entry["source"] != "network"]
