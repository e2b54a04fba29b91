"""Tests that a server's output contains no secrets."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest
from job_server import wait_for
from plain_http import PlainHttp, connect_to, read_to_the_end
from running_server import PASSWORD, USER, RunningServer

from detcore_server.http.server_log import LOGGER, configure_logging, hide_secrets
from detcore_server.server_database import ServerDatabase, token_digest
from detcore_server.users.accounts import prehash

WRONG = "Wrong-horse-9"
NEW = "Newer-horse-10"


def test_log_contains_no_secrets(tmp_path: Path) -> None:
    server = RunningServer(tmp_path, "--log-level", "debug")
    # Reading this invalid row causes an internal server error.
    with ServerDatabase.open(server.database_url) as database:
        database.create_experiment(
            config={"name": "one"}, config_text=None, model_dir="/m", name="one"
        )
    with sqlite3.connect(tmp_path / "detcore.db") as connection:
        connection.execute("UPDATE experiments SET name = x'ff'")
    connection.close()
    tokens = []
    with server:
        http = PlainHttp(server.url)
        for path, body in (
            ("/api/detcore/v1/login", {"username": USER, "password": WRONG}),
            (
                "/api/v1/auth/login",
                {"username": USER, "password": prehash(WRONG), "isHashed": True},
            ),
            ("/api/detcore/v1/login", {"username": [USER], "password": PASSWORD}),
        ):
            assert http.ask("POST", path, body).status in (403, 422)
        tokens = [server.token(), server.token()]
        fields = {"username": "bob", "password": NEW}
        assert http.ask("POST", "/api/detcore/v1/users", fields, token=tokens[0]).status == 201
        for path in (
            f"/api/detcore/v1/me?token={tokens[0]}",
            f"/nowhere/{tokens[0]}",
            f"/ui/login?next={tokens[0]}",
        ):
            http.ask("GET", path, token=tokens[1])
        failed = http.ask("GET", "/api/detcore/v1/experiments/1", token=tokens[0])
        assert failed.status == 500
        assert failed.json["error"]["type"] == "ServerError"
        number = failed.error.partition("fault ")[2].split()[0]
        with connect_to(server.url) as raw:
            raw.sendall(f"NONSENSE {tokens[0]}\r\nauthorization: Bearer {tokens[0]}\r\n".encode())
            raw.shutdown(1)
            read_to_the_end(raw)
        http.ask("POST", "/api/detcore/v1/logout", token=tokens[1])
        http.close()
        with ServerDatabase.open(server.database_url) as database:
            hashes = [str(user.password_hash) for user in database.list_users()]
    log = server.log.read_text()
    assert f"fault {number}: GET /api/detcore/v1/experiments/1" in log
    assert "Traceback" in log
    assert f"{USER} POST /api/detcore/v1/logout 204" in log
    assert "Traceback" not in failed.error
    secrets = [PASSWORD, WRONG, NEW, *map(prehash, (PASSWORD, WRONG, NEW)), *tokens]
    secrets += [*map(token_digest, tokens), *hashes, "Bearer detcore"]
    assert [secret for secret in secrets if secret in log] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a detcore_" + "Ab_-9" * 8 + " b", "a detcore_*** b"),
        ("{'authorization': 'Bearer abc.def'}", "{'authorization': 'Bearer ***'}"),
        ("Authorization: basic dXNlcg==", "Authorization: basic ***"),
        ("hash '$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA' kept", "hash '***' kept"),
        (prehash(PASSWORD), "***"),
        (
            "detcore_ray is a package; a bearer of news",
            "detcore_ray is a package; a bearer *** news",
        ),
    ],
)
def test_hide_secrets(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def test_secrets_in_tracebacks_are_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    root, logger = logging.getLogger(), logging.getLogger(LOGGER)
    before = (root.handlers, root.level, logger.level)
    try:
        configure_logging("debug")
        try:
            raise ValueError(f"unexpected: Bearer detcore_{'x' * 43}")
        except ValueError:
            logger.exception("fault %s", "1")
            logging.getLogger("sqlalchemy.engine.Engine").info("INSERT ... [parameters]")
            logging.getLogger("anything").debug("body")
    finally:
        root.handlers, root.level = before[:2]
        logger.setLevel(before[2])
    output = capsys.readouterr().err
    assert "ValueError: unexpected: Bearer ***" in output
    assert "xxx" not in output
    assert "parameters" not in output
    assert "body" not in output


def test_log_entry_is_one_line(shared_server: RunningServer) -> None:
    with connect_to(shared_server.url) as raw:
        path = "/a%0A2030-01-01%20INFO%20forged" + "b" * 1000
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        read_to_the_end(raw)
    log = shared_server.log
    (line,) = wait_for(lambda: [one for one in log.read_text().splitlines() if "forged" in one])
    assert "GET /a%0A2030-01-01%20INFO%20forgedbbb" in line
    assert len(line) < 400
