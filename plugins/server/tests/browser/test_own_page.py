"""Tests of the link of ``detcore ui`` in Chromium."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from page_records import add_search
from playwright.sync_api import Browser, expect

from detcore.records import Database

from .conftest import Window


def test_link_opens_experiments(browser: Browser, tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        add_search(database, 1, 3, name="mine")
    process = subprocess.Popen(
        [sys.executable, "-m", "detcore", "ui", "--no-browser"],
        env={**os.environ, "DETCORE_HOME": str(tmp_path)}, text=True, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        link = next(line.strip() for line in process.stdout if line.strip().startswith("http"))
        window = Window(browser.new_context(), link.partition("/ui")[0])
        page = window.open(link.removeprefix(window.url))
        expect(page.get_by_role("link", name="mine")).to_be_visible()
        assert page.url == f"{window.url}/ui/experiments"
        assert [cookie["expires"] for cookie in window.context.cookies()] == [-1]
        # The script's requests also carry the cookie.
        expect(page.locator("#updated")).to_contain_text("updated")
        assert window.faults == []
        elsewhere = browser.new_page()
        elsewhere.goto(link)
        expect(elsewhere.get_by_text(re.compile("This link was already used"))).to_be_visible()
    finally:
        process.kill()
        process.communicate()
