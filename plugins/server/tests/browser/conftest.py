"""Chromium, a server with records, and checks for every opened page."""

from __future__ import annotations

import dataclasses
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_records import add_search, save_checkpoint
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from running_server import PASSWORD, USER, RunningServer

from detcore.records import Database
from detcore.types import ExperimentState

_SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@dataclasses.dataclass
class Site:
    """A server and its records."""

    server: RunningServer
    database: Database
    searched: int
    running: int
    single: int
    failed: int
    empty: int
    checkpoint: str
    damaged: str


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("home")
    server = RunningServer(home)
    store = home / "store"
    with Database.open(server.database_url) as database, server:
        storage = {"type": "shared_fs", "host_path": str(store)}
        single = add_search(database, 1, 20, name="one trial", checkpoint_storage=storage)
        trial = database.list_trials(single)[0].id
        checkpoint, damaged = (
            save_checkpoint(database, trial, store, home / "files", step) for step in (100, 200)
        )
        (store / damaged / "weights.bin").write_bytes(bytes(256 * 40))
        model = database.create_model("digits", description="Reads digits.", labels=["vision"])
        database.register_version(model.name, checkpoint, name="first", notes="Good.")
        searched = add_search(database, 24, 12, name="digits, random search")
        labeled = database.list_trials(searched)[3].id
        database.update_trial(labeled, labels=["baseline", "<b>"], notes="Old split.\nRepeat it.")
        yield Site(
            server=server,
            database=database,
            searched=searched,
            running=add_search(
                database, 3, 5, name="still running", state=ExperimentState.RUNNING
            ),
            single=single,
            failed=add_search(database, 2, 3, name="failed", state=ExperimentState.ERROR),
            empty=database.create_experiment(
                config={"name": "begun"}, config_text=None, model_dir="/code", name="just begun"
            ),
            checkpoint=checkpoint,
            damaged=damaged,
        )  # fmt: skip


# Playwright runs an event loop in this thread, which other tests must not use.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=30_000)  # for a busy machine; the default is 5 s
    path = shutil.which("chromium")
    assert path is not None, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_SWITCHES)
        yield browser
        browser.close()


class Window:
    """A browser window that collects its errors.

    Attributes:
        page: Playwright page.
        faults: Console messages, failed requests and requests to other hosts.
    """

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.host = urllib.parse.urlsplit(url).netloc
        self.context = context
        self.page: Page = context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda said: self.faults.append(f"console: {said.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", lambda request: self._look(request.url))

    def _look(self, url: str) -> None:
        if urllib.parse.urlsplit(url).netloc != self.host:
            self.faults.append(f"asked of another host: {url}")

    def open(self, path: str) -> Page:
        """Open a page."""
        self.page.goto(self.url + path)
        return self.page

    def overflow(self) -> int:
        """Return the number of pixels by which the page is wider than the window."""
        width: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return width


@pytest.fixture(scope="module")
def signed_in(browser: Browser, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Log in once with the keyboard only. Returns the file that stores the cookie."""
    window = Window(browser.new_context(), site.server.url)
    page = window.open("/ui/experiments")
    assert page.url.endswith("/ui/login?next=%2Fui%2Fexperiments")
    assert page.evaluate("document.activeElement.id") == "name"
    page.keyboard.type(USER)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/experiments")
    assert window.faults == []
    path = tmp_path_factory.mktemp("cookies") / "state.json"
    window.context.storage_state(path=path)
    window.context.close()
    return path


@pytest.fixture
def window(
    browser: Browser, site: Site, signed_in: Path, request: pytest.FixtureRequest
) -> Iterator[Window]:
    """Window of a logged-in user. Tests may pass settings with ``indirect``."""
    settings = {"viewport": {"width": 1200, "height": 800}, **getattr(request, "param", {})}
    context = browser.new_context(storage_state=signed_in, **settings)
    window = Window(context, site.server.url)
    yield window
    context.close()
    assert window.faults == []
