"""Browsers: the cookie, the way to the log-in form, and what pages of other sites ask for."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fastapi import Response
from plain_http import Answer, PlainHttp
from running_server import PASSWORD, USER, RunningServer

from detcore.environment import read_environment
from detcore.hooks import PluginManager
from detcore_server import ServerSettings, make_app
from detcore_server._auth import _origin, set_cookie


class Browser:
    """Asks with a cookie, as a page of the server's own unless told otherwise."""

    def __init__(self, server: RunningServer) -> None:
        self.url = server.url
        self._http = PlainHttp(server.url)
        self.cookie = ""

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        return self.send(method, path, headers, body)

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookie:
            sent["Cookie"] = self.cookie
        return self._http.ask(method, path, body or None, headers=sent)

    def log_in(self, **headers: str) -> Answer:
        body = urllib.parse.urlencode({"name": USER, "password": PASSWORD}).encode()
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        answer = self.send("POST", "/ui/login", {**form, **headers}, body)
        self.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        return answer

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def browser(shared_server: RunningServer) -> Iterator[Browser]:
    browser = Browser(shared_server)
    yield browser
    browser.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "same-origin"},
        {"Origin": "{url}"},
        {"Origin": "{url}", "Sec_Fetch_Site": "same-origin"},
    ],
)
def test_a_page_of_the_server_may_log_in_and_out(browser: Browser, headers: dict[str, str]) -> None:
    own = {name: value.format(url=browser.url) for name, value in headers.items()}
    assert browser.log_in(**own).status == 303
    assert browser.ask("GET", "/ui/experiments").status == 200
    out = browser.send("POST", "/ui/logout", own)
    assert (out.status, "Max-Age=0" in out.headers["set-cookie"]) == (303, True)
    gone = browser.ask("GET", "/ui/experiments")
    assert (gone.status, gone.headers["location"]) == (303, "/ui/login?next=%2Fui%2Fexperiments")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "{url}.evil.example"},
        {"Origin": "{url}", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "https://evil.example", "Sec_Fetch_Site": "same-origin"},
    ],
)
def test_a_page_of_another_site_changes_nothing(browser: Browser, headers: dict[str, str]) -> None:
    foreign = {name: value.format(url=browser.url) for name, value in headers.items()}
    refused = browser.log_in(**foreign)
    assert (refused.status, "set-cookie" in refused.headers) == (403, False)
    assert browser.log_in(Origin=browser.url).status == 303
    assert browser.send("POST", "/ui/logout", foreign).status == 403
    assert browser.ask("GET", "/ui/experiments").status == 200


def test_whoever_has_not_logged_in_is_led_back_after_it(browser: Browser) -> None:
    answer = browser.ask("GET", "/ui/models?sort=name&x=%26")
    query = urllib.parse.urlsplit(answer.headers["location"]).query
    assert urllib.parse.parse_qs(query) == {"next": ["/ui/models?sort=name&x=%26"]}


def test_answers_are_kept_by_nobody_and_shown_in_no_other_page(browser: Browser) -> None:
    browser.log_in(Origin=browser.url)
    for path in ("/ui/experiments", "/ui/login", "/api/detcore/v1/me", "/nowhere"):
        headers = browser.ask("GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        # Pages are compared with what there is now; nothing else is kept at all.
        assert headers["cache-control"] in ("no-store", "private, no-cache"), path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert "server" not in headers


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Host.example:443/detcore", "https://host.example"),
        ("http://host.example:80", "http://host.example"),
        ("https://host.example:80", "https://host.example:80"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_origin_is_written_as_browsers_do(url: str, origin: str) -> None:
    assert _origin(url) == origin


@pytest.mark.parametrize(
    ("public_url", "name", "is_secure"),
    [
        (None, "detcore-8080=", False),
        ("https://host.example", "__Host-detcore-8080=", True),
    ],
)
def test_scripts_and_other_sites_do_not_get_the_cookie(
    tmp_path: Path, public_url: str | None, name: str, is_secure: bool
) -> None:
    environment = read_environment({"DETCORE_HOME": str(tmp_path)})
    plugins = PluginManager(environment)
    app = make_app(ServerSettings(environment=environment, plugins=plugins, public_url=public_url))
    response = Response()
    set_cookie(response, app.state.detcore, "t", 60)
    app.state.detcore.database.close()
    cookie = response.headers["set-cookie"]
    parts = {part.strip().lower() for part in cookie.split(";")}
    assert cookie.startswith(name)
    assert {"httponly", "samesite=strict", "path=/", "max-age=60"} <= parts
    assert ("secure" in parts) == is_secure
    assert not any(part.startswith("domain") for part in parts)
