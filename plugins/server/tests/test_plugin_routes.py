"""Tests of routes that plugins add to a server."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import run_detcore, write_distribution
from running_server import USER, RunningServer

PLUGIN = """
from detcore import hookimpl
from detcore.plugins import RoutesType

@hookimpl
def detcore_register_routes():
    return [
        RoutesType(name="counter", make_router="detcore_bakery.routes:make_counter"),
        RoutesType(name="shop", make_router="detcore_bakery.routes:make_shop", has_guards=True),
    ]
"""
ROUTES = """
from fastapi import APIRouter

from detcore.errors import NotFoundError
from detcore_server import Records, Requester

def make_counter():
    router = APIRouter(prefix="/api/bakery/v1")

    @router.get("/loaves")
    def count_loaves():
        return 3

    @router.get("/mine")
    def count_mine(records: Records, requester: Requester):
        mine = records.submitted_by(requester.user_name)
        return {requester.user_name: records.count_experiments(where=mine)}

    @router.get("/loaves/{number}")
    def find_loaf(number: int):
        raise NotFoundError(f"no loaf {number}.\\nLoaves here: 1, 2.")

    return router

def make_shop():
    router = APIRouter()

    @router.get("/api/bakery/v1/open")
    def is_open():
        return True

    @router.get("/api/bakery/v1/orders")
    def list_orders(requester: Requester):
        return []

    @router.get("/api/detcore/v1/me")
    def lie():
        return {"name": "somebody else"}

    return router
"""


def install(site: Path, routes: str = ROUTES) -> Path:
    modules = {"detcore_bakery.plugin": PLUGIN, "detcore_bakery.routes": routes}
    write_distribution(site, "detcore-bakery", modules=modules, requires=["detcore-server"])
    return site


@pytest.fixture(scope="module")
def bakery(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bakery")
    with RunningServer(folder, PYTHONPATH=str(install(folder / "site"))) as server:
        yield server


def status_of(server: RunningServer, path: str, token: str = "") -> int:
    try:
        server.ask("GET", path, token=token)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def test_plugin_routes_require_login(bakery: RunningServer) -> None:
    path = "/api/bakery/v1/loaves"
    assert status_of(bakery, path) == 401
    assert bakery.ask("GET", path, token=bakery.token()) == 3


def test_plugin_routes_get_records_and_user(bakery: RunningServer) -> None:
    assert bakery.ask("GET", "/api/bakery/v1/mine", token=bakery.token()) == {USER: 0}


def test_plugin_route_errors_look_like_server_errors(bakery: RunningServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        bakery.ask("GET", "/api/bakery/v1/loaves/7", token=bakery.token())
    assert b"no loaf 7" in caught.value.read()
    assert status_of(bakery, "/api/bakery/v1/loaves/rye", bakery.token()) == 422


def test_guarded_plugin_routes_decide_access(bakery: RunningServer) -> None:
    assert bakery.ask("GET", "/api/bakery/v1/open") is True
    assert status_of(bakery, "/api/bakery/v1/orders") == 401
    assert bakery.ask("GET", "/api/bakery/v1/orders", token=bakery.token()) == []


def test_plugin_routes_cannot_replace_server_routes(bakery: RunningServer) -> None:
    assert status_of(bakery, "/api/detcore/v1/me") == 401
    assert bakery.ask("GET", "/api/detcore/v1/me", token=bakery.token())["name"] == USER


def test_openapi_includes_plugin_routes(bakery: RunningServer) -> None:
    paths = bakery.ask("GET", "/openapi.json", token=bakery.token())["paths"]
    assert "/api/bakery/v1/mine" in paths


@pytest.mark.parametrize(
    ("routes", "told"),
    [
        ("def make_counter(): return {}", "TypeError: expected a fastapi.APIRouter"),
        ("def make_counter(): raise OSError('no flour')", "OSError: no flour ("),
        ("", "has no attribute 'make_counter'"),
    ],
)
def test_invalid_plugin_routes_prevent_start(tmp_path: Path, routes: str, told: str) -> None:
    site = install(tmp_path / "site", routes)
    result = run_detcore(
        "serve", "--port", "0", sites=[site], only=["bakery", "server"],
        variables={"DETCORE_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert result.returncode == 1
    assert (
        "the server cannot start: the plugin bakery (detcore-bakery 1.0) fails to create "
        "its routes 'counter' (detcore_bakery.routes:make_counter): "
    ) in result.stderr
    assert told in result.stderr
    assert result.stderr.endswith("Start without the plugin: detcore --no-plugin bakery serve\n")
    assert "detcore serves at" not in result.stdout
