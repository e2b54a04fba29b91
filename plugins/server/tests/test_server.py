"""Tests of ``detcore serve``: start, output, end and restart."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_distributions import run_detcore
from plain_http import PlainHttp
from running_server import USER, RunningServer

from detcore.cli import main
from detcore.cli.cli_context import CliContext
from detcore.environment import read_environment
from detcore_server import ServerSettings
from detcore_server.commands.serve_command import _list_warnings
from detcore_server.commands.serve_command import serve as serve_command
from detcore_server.server_database import ServerDatabase


@pytest.mark.cold
def test_server_restarts_after_kill_and_stops(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, "--token-lifetime", "1h").start()
    try:
        url, token = server.url, server.token()
        server.kill()
        server.start()
        assert server.url == url
        assert server.ask("GET", "/api/detcore/v1/me", token=token)["name"] == USER
        assert server.stop(signal.SIGTERM) == 0
    finally:
        server.kill()
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "warning" not in log


def test_openapi_document_requires_login(shared_server: RunningServer) -> None:
    http = PlainHttp(shared_server.url)
    assert http.ask("GET", "/openapi.json").status == 401
    document = http.ask("GET", "/openapi.json", token=shared_server.token()).json
    for path in ("/docs", "/redoc"):
        assert http.ask("GET", path).status == 404
    http.close()
    assert document["info"]["title"] == "detcore"
    open_paths = {"/api/detcore/v1/login", "/info", "/api/v1/auth/login"}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert ("security" in route) == (path not in open_paths), f"{method} {path}"


def test_forwarded_address_requires_trusted_proxy(
    tmp_path: Path, shared_server: RunningServer
) -> None:
    guess = {"username": "somebody", "password": "x"}

    def guesses(server: RunningServer, addresses: list[str]) -> list[int]:
        http = PlainHttp(server.url)
        path = "/api/detcore/v1/login"
        responses = [
            http.ask("POST", path, guess, headers={"X-Forwarded-For": address}).status
            for address in addresses
        ]
        http.close()
        return responses

    other_addresses = [f"10.0.0.{number}" for number in range(6)]
    with RunningServer(tmp_path, "--proxy", "127.0.0.1") as server:
        assert guesses(server, other_addresses) == [403] * 6
        assert server.stop(signal.SIGINT) == 130
    assert "10.0.0.5 - POST /api/detcore/v1/login 403" in server.log.read_text()
    assert guesses(shared_server, other_addresses) == [403] * 5 + [429]
    assert "10.0.0.5" not in shared_server.log.read_text()


def test_startup_warnings(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, "--host", "0.0.0.0")
    with ServerDatabase.open(server.database_url) as database:
        database.update_user(USER, is_active=False)
    with server:
        assert server.url.startswith("http://127.0.0.1:")
        log = server.log.read_text()
    assert "detcore user create NAME --admin" in log
    assert "warning: 0.0.0.0 is reachable from other machines without TLS" in log
    assert "--public-url" in log


@pytest.mark.parametrize(
    ("host", "public_url", "is_warned"),
    [
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("", None, True),
        ("0.0.0.0", "http://host:8080", False),
        ("192.0.2.1", None, False),
        ("192.0.2.1", "http://host:8080", False),
        ("127.0.0.1", None, False),
    ],
)
def test_missing_public_url_warning(
    tmp_path: Path, host: str, public_url: str | None, is_warned: bool
) -> None:
    obj = CliContext(environment=read_environment({"DETCORE_HOME": str(tmp_path)}))
    settings = ServerSettings(
        environment=obj.environment, plugins=obj.plugin_manager(), host=host, public_url=public_url
    )
    assert any("--public-url" in line for line in _list_warnings(obj, settings)) == is_warned


def test_settings_match_command_defaults(tmp_path: Path) -> None:
    obj = CliContext(environment=read_environment({"DETCORE_HOME": str(tmp_path)}))
    settings = ServerSettings(environment=obj.environment, plugins=obj.plugin_manager())
    options: dict[str | None, Any] = {one.name: one.default for one in serve_command.params}
    assert settings.max_body_bytes == options["max_body_mb"] * 2**20
    assert (settings.token_lifetime_s, options["token_lifetime"]) == (7 * 86400.0, "7d")
    for name in ("host", "port", "max_connections", "max_experiments", "log_level"):
        assert getattr(settings, name) == options[name], name


def serve(home: Path, *options: str) -> Result:
    """Start a server that cannot start."""
    environment = {"DETCORE_HOME": str(home), "DETCORE_DB": None}
    result = CliRunner().invoke(main, ["serve", *options], env=environment)
    assert "serves at" not in result.output
    return result


def test_port_in_use_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = serve(tmp_path, "--port", str(port))
    assert result.exit_code == 1
    assert f"port {port} of 127.0.0.1 is in use.\n" in result.output
    assert "--port" in result.output


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--host", "192.0.2.1"), 1, "'192.0.2.1' is not an address of this machine"),
        (("--host", "nowhere.invalid"), 1, "'nowhere.invalid' is not an address of this machine"),
        (("--port", "65536"), 2, "65536"),
        (("--public-url", "host:8080"), 2, "must start with http:// or https://"),
        (("--public-url", "http://a:b@host"), 2, "contains a user or a password"),
        (("--token-lifetime", "soon"), 2, "not a duration such as 90s, 30m, 12h or 7d"),
        (("--token-lifetime", "0"), 2, "not a duration such as"),
        (("--log-level", "trace"), 2, "trace"),
    ],
)
def test_invalid_serve_options(
    tmp_path: Path, options: tuple[str, ...], code: int, told: str
) -> None:
    result = serve(tmp_path, *options)
    assert told in result.output
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("serve", ()), ("user create", ("ada", "--admin")), ("user list", ())],
)
def test_disabled_server_plugin(tmp_path: Path, command: str, arguments: tuple[str, ...]) -> None:
    environment = {"DETCORE_HOME": str(tmp_path)}
    result = CliRunner().invoke(
        main, ["--no-plugin", "server", *command.split(), *arguments], env=environment
    )
    assert f"'detcore {command}' is part of detcore-server, whose plugin 'server'" in result.output
    assert "detcore plugins info server" in result.output
    assert result.exit_code == 1


def test_help_lists_password_commands() -> None:
    text = CliRunner().invoke(main, ["user", "--help"]).output
    for name in ("create", "password", "list", "login"):
        assert f"\n  {name} " in text


def test_unknown_launcher_prevents_start(tmp_path: Path) -> None:
    result = run_detcore(
        "serve", "--port", "0", "--launcher", "loca", only=["server"],
        variables={"DETCORE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert result.returncode == 2
    assert "unknown launcher 'loca'; installed: local.\n" in result.stderr
