"""Tests that each route rejects requests without permission."""

from __future__ import annotations

import re
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import routing
from plain_http import PlainHttp
from running_server import RunningServer

from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore_server import ServerSettings, make_app
from detcore_server.server_database import ServerDatabase, new_token, token_digest

OPEN = {
    ("POST", "/api/detcore/v1/login"),
    # Determined's client calls these before it has a token.
    ("GET", "/info"),
    ("POST", "/api/v1/auth/login"),
    # A browser needs these to show the login form.
    ("GET", "/ui/login"),
    ("POST", "/ui/login"),
    ("GET", "/ui/static/{name:path}"),
    ("GET", "/ui/report.css"),
}


def all_routes(home: Path) -> list[tuple[str, str]]:
    """Return the method and path of each route."""
    environment = read_environment({"DETCORE_HOME": str(home)})
    settings = ServerSettings(environment=environment, plugins=PluginManager(environment))
    app = make_app(settings)
    routes = []
    for route in routing.iter_route_contexts(app.routes):
        assert route.path is not None, "what is mounted is not looked into: make it routes"
        routes += [(method, route.path) for method in sorted(route.methods or ())]
    app.state.detcore.database.close()
    return routes


def is_page(path: str) -> bool:
    """Whether a path is a page, which redirects to the login form."""
    return path in ("/", "/ui") or path.startswith("/ui/")


def fill(path: str) -> str:
    """Return a route's path with a value for each parameter."""
    return re.sub(r"\{\w+(:\w+)?\}", "1", path)


class Strangers:
    """Tokens that are invalid or that do not belong to a user."""

    def __init__(self, server: RunningServer) -> None:
        with ServerDatabase.open(server.database_url) as database:
            ada = database.list_users()[0].id
            bob = database.create_user("mallory", password_hash="none")
            later, now = time.time() + 3600, time.time()
            self.of_who_may_nothing = self._add(database, bob.id, later)
            database.update_user("mallory", is_active=False)
            self.expired = self._add(database, ada, now - 1)
            self.good = server.token()

    @staticmethod
    def _add(database: ServerDatabase, user_id: int, expires_at: float) -> str:
        token = new_token()
        database.add_token(token_digest(token), user_id=user_id, expires_at=expires_at)
        return token


@pytest.fixture(scope="module")
def strangers(shared_server: RunningServer) -> Strangers:
    return Strangers(shared_server)


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    return all_routes(tmp_path_factory.mktemp("routes"))


@pytest.fixture
def http(shared_server: RunningServer) -> Iterator[PlainHttp]:
    http = PlainHttp(shared_server.url)
    yield http
    http.close()


def test_open_routes_are_listed(routes: list[tuple[str, str]]) -> None:
    assert set(routes) >= OPEN
    assert len(routes) > 50


@pytest.mark.parametrize("who", ["nobody", "expired", "of_who_may_nothing", "made_up"])
def test_routes_reject_invalid_tokens(
    routes: list[tuple[str, str]], http: PlainHttp, strangers: Strangers, who: str
) -> None:
    tokens = {"nobody": "", "made_up": new_token()}
    token = tokens.get(who) if who in tokens else getattr(strangers, who)
    assert_rejected(routes, http, token=token or "", status=401)


def test_pages_use_cookies_and_api_uses_bearer(
    routes: list[tuple[str, str]], shared_server: RunningServer, strangers: Strangers
) -> None:
    port = shared_server.url.rpartition(":")[2]
    http = PlainHttp(shared_server.url)
    cookie = {"Cookie": f"detcore-{port}={strangers.good}"}
    assert http.ask("GET", "/ui/experiments", headers=cookie).status == 200
    api = [(method, path) for method, path in routes if not is_page(path)]
    assert_rejected(api, http, token="", status=401, headers=cookie)
    pages = [(method, path) for method, path in routes if is_page(path)]
    assert_rejected(pages, http, token=strangers.good, status=0)
    # Pages of other sites are rejected too, although their requests carry the cookie.
    for method, path in pages:
        if method != "GET":
            headers = {**cookie, "Origin": "http://evil.example"}
            assert http.ask(method, fill(path), headers=headers).status == 403, path
    http.close()


def assert_rejected(
    routes: list[tuple[str, str]],
    http: PlainHttp,
    *,
    token: str,
    status: int,
    headers: dict[str, str] | None = None,
) -> None:
    """Check that pages show the login form and other protected routes return the status."""
    wrong = []
    for method, path in routes:
        if (method, path) in OPEN:
            continue
        url = fill(path)
        # From the server's own page: the login is checked first.
        request_headers = {"Sec-Fetch-Site": "same-origin", **(headers or {})}
        answer = http.ask(method, url, token=token, headers=request_headers)
        if is_page(path):
            # Only a GET request is repeated after the login.
            back = f"?next={urllib.parse.quote(url, safe='')}" if method == "GET" else ""
            is_right = (answer.status, answer.headers.get("location")) == (303, f"/ui/login{back}")
        else:
            is_right = answer.status == status
            is_right &= (status == 401) == ("www-authenticate" in answer.headers)
        if not is_right:
            wrong.append(f"{method} {url}: {answer.status} {answer.body[:200]!r}")
    assert wrong == []
