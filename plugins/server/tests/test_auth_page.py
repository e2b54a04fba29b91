"""Tests of response headers and of the cookie for browsers."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import Response
from page_client import PageClient
from running_server import RunningServer

from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore_server import ServerSettings, make_app
from detcore_server.users.authentication import _parse_origin, set_cookie


def test_headers_forbid_caching_and_framing(
    shared_server: RunningServer,
) -> None:
    browser = PageClient(shared_server.url)
    browser.log_in()
    for path in ("/ui/experiments", "/ui/login", "/api/detcore/v1/me", "/nowhere"):
        headers = browser.ask("GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        # Browsers revalidate pages and store nothing else.
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
def test_origin_format_matches_browsers(url: str, origin: str) -> None:
    assert _parse_origin(url) == origin


@pytest.mark.parametrize(
    ("public_url", "name", "is_secure"),
    [
        (None, "detcore-8080=", False),
        ("https://host.example", "__Host-detcore-8080=", True),
    ],
)
def test_cookie_is_hidden_from_scripts_and_sites(
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
