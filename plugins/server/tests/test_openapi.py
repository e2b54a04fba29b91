"""Tests the OpenAPI document and, with schemathesis, each route.

The tests use the real application with a few records. For a longer test:
``DETCORE_SCHEMA_EXAMPLES=200 pytest plugins/server/tests/test_openapi.py``.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_store import ClientStore
from fastapi import FastAPI
from http_face import make_token, served, served_app
from plain_http import PlainHttp

from detcore.client.http import Session
from detcore.environment import read_environment
from detcore_server.server_database import ServerDatabase

EXAMPLES = os.environ.get("DETCORE_SCHEMA_EXAMPLES", "3")
CONFIG = Path(__file__).with_name("schemathesis.toml")
# These would invalidate the token of the test.
LOGOUT = "logout"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """URL and token of a server."""
    home = tmp_path_factory.mktemp("home")
    environment = read_environment(
        {"DETCORE_HOME": str(home), "DETCORE_PLUGINS": "core,determined"}
    )
    with ServerDatabase.open(environment.database_url) as database:
        # The tests change and deactivate users with small numbers.
        for number in range(100):
            database.create_user(f"user{number}", password_hash=None)
        store = ClientStore(home, database)
        uuid = store.checkpoint(store.trial(store.experiment()), 10, {"loss": 1.0})
        database.create_model("digits", description="d", labels=["a"])
        database.register_version("digits", uuid)
    token = make_token(environment.database_url)
    with served(environment) as url:
        yield url, token


@pytest.fixture(scope="module")
def document(running: tuple[str, str]) -> dict[str, Any]:
    url, token = running
    schema: dict[str, Any] = Session(url, token).request("GET", "/openapi.json")
    return schema


def schemathesis(url: str, token: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run",
        f"{url}/openapi.json", "--header", f"Authorization: Bearer {token}", "--no-color",
        "--max-examples", EXAMPLES, "--seed", "8", "--generation-database", "none",
        "--phases", "examples,coverage,fuzzing", *options,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def numbers(output: str) -> tuple[int, ...]:
    """Return the number of existing, selected and tested operations."""
    selected = re.search(r"Selected: (\d+)/(\d+)\n\s+Tested: (\d+)", output)
    assert selected is not None, output[-5000:]
    return int(selected[2]), int(selected[1]), int(selected[3])


def test_method_error_lists_allowed_methods(
    running: tuple[str, str], document: dict[str, Any]
) -> None:
    """Must run before the next test, which invalidates the token."""
    url, token = running
    with contextlib.closing(PlainHttp(url)) as server:
        for template, operations in document["paths"].items():
            path = re.sub(r"\{\w+\}", "1", template)
            answer = server.ask("OPTIONS", path, token=token)
            allowed = {method.lower() for method in answer.headers["allow"].split(", ")}
            assert (answer.status, allowed) == (405, set(operations)), path


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.long
def test_schemathesis_finds_nothing(running: tuple[str, str], document: dict[str, Any]) -> None:
    url, token = running
    result = schemathesis(url, token, "--exclude-path-regex", LOGOUT)
    assert result.returncode == 0, result.stdout[-20_000:]
    there = sum(len(operations) for operations in document["paths"].values())
    of_logout = sum(
        len(operations) for path, operations in document["paths"].items() if LOGOUT in path
    )
    assert numbers(result.stdout) == (there, there - of_logout, there - of_logout)
    # The token was valid to the end.
    assert Session(url, token).request("GET", "/api/detcore/v1/me")["name"] == "grace"
    # Now the routes that invalidate it.
    result = schemathesis(url, token, "--include-path-regex", LOGOUT)
    assert result.returncode == 0, result.stdout[-20_000:]
    assert numbers(result.stdout) == (there, of_logout, of_logout)


@pytest.mark.soak
def test_schemathesis_finds_faulty_application() -> None:
    """Run the same command on an application that violates its document."""
    app = FastAPI()

    @app.get("/number/{number}")
    def divide(number: int) -> int:
        return 1 // number

    with served_app(app) as url:
        result = schemathesis(url, "x")
    assert result.returncode == 1, result.stdout
    assert "Server error" in result.stdout


def test_openapi_document_is_valid(document: dict[str, Any]) -> None:
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path.startswith("/api/detcore/")
    ]
    assert len(operations) > 30
    assert len({operation["operationId"] for _, _, operation in operations}) == len(operations)
    for path, method, operation in operations:
        where = f"{method} {path}"
        assert operation.get("description") or operation.get("summary"), where
        assert operation.get("tags"), where
        answers = operation["responses"]
        assert any(status.startswith("4") for status in answers), where
        good = [answer for status, answer in answers.items() if status.startswith("2")]
        assert good, where
        for answer in good:
            for kind in answer.get("content", {}).values():
                assert kind["schema"], where
