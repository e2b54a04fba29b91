"""Tests of login, logout, passwords, tokens and user management."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import types
from collections.abc import Iterator
from typing import Any

import argon2
import pytest
from fastapi import HTTPException
from job_server import wait_for
from plain_http import Answer, PlainHttp
from running_server import PASSWORD, USER, RunningServer

from detcore.errors import DatabaseError
from detcore_server.server_database import ServerDatabase, token_digest
from detcore_server.users.accounts import hash_password, is_password, prehash
from detcore_server.users.authentication import find_token
from detcore_server.users.throttle import Throttle

API = "/api/detcore/v1"
NEW_PASSWORD = "Another-horse-8"


class Api:
    """Calls the user routes as one user."""

    def __init__(self, http: PlainHttp, token: str = "") -> None:
        self.http = http
        self.token = token

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        return self.http.ask(method, f"{API}{path}", body, token=self.token)

    def log_in(self, name: str, password: str) -> Answer:
        return self.ask("POST", "/login", {"username": name, "password": password})

    def token_of(self, name: str, password: str) -> str:
        answer = self.log_in(name, password)
        assert answer.status == 200, answer.body
        return str(answer.json["token"])

    def as_user(self, token: str) -> Api:
        return Api(self.http, token)


@pytest.fixture
def nobody(shared_server: RunningServer) -> Iterator[Api]:
    http = PlainHttp(shared_server.url)
    yield Api(http)
    http.close()


@pytest.fixture(scope="module")
def admin_token(shared_server: RunningServer) -> str:
    return shared_server.token()


@pytest.fixture
def admin(nobody: Api, admin_token: str) -> Api:
    return nobody.as_user(admin_token)


def make_user(admin: Api, name: str) -> tuple[int, Api]:
    """Create a user and log in as this user."""
    response = admin.ask("POST", "/users", {"username": name, "password": PASSWORD})
    assert response.status == 201, response.body
    return int(response.json["id"]), admin.as_user(admin.token_of(name, PASSWORD))


def test_logout_invalidates_token(nobody: Api) -> None:
    admin = nobody.as_user(nobody.token_of(USER, PASSWORD))
    other = nobody.as_user(nobody.token_of(USER, PASSWORD))
    me = admin.ask("GET", "/me")
    assert (me.json["name"], me.json["is_admin"]) == (USER, True)
    lifetime_s = me.json["expires_at"] - time.time()
    assert 6 * 86400 < lifetime_s <= 7 * 86400
    assert admin.ask("POST", "/logout").status == 204
    response = admin.ask("GET", "/me")
    assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json["error"]["type"] == "UnauthenticatedError"
    assert other.ask("GET", "/me").status == 200


def test_unknown_user_looks_like_wrong_password(nobody: Api) -> None:
    answers = [nobody.log_in(name, "wrong") for name in (USER, "nobody")]
    assert [answer.status for answer in answers] == [403, 403]
    assert answers[0].body == answers[1].body
    assert answers[0].error == "invalid credentials"


def test_password_is_verified_for_unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    verify = argon2.PasswordHasher.verify

    def noted(self: argon2.PasswordHasher, hashed: str, given: str) -> bool:
        compared.append(hashed)
        return verify(self, hashed, given)

    monkeypatch.setattr(argon2.PasswordHasher, "verify", noted)
    assert not is_password("nobody's", None)
    assert not is_password("nobody's", None, is_prehashed=True)
    assert len(compared) == 2
    costs = argon2.extract_parameters(hash_password("Correct-horse-7"))
    assert all(argon2.extract_parameters(hashed) == costs for hashed in compared)


@pytest.mark.parametrize("password", ["", "ünï \udc80"])
def test_prehashed_password_is_accepted(password: str) -> None:
    hashed = hash_password(password)
    assert hashed.startswith("$argon2id$")
    assert hashed != hash_password(password)
    assert is_password(password, hashed)
    assert is_password(prehash(password), hashed, is_prehashed=True)
    assert is_password(password, hash_password(prehash(password), is_prehashed=True))
    assert not is_password(prehash(password) or "x", hashed)
    assert not is_password(f"{password}x", hashed)


def test_throttle_also_delays_right_password(nobody: Api, admin: Api) -> None:
    make_user(admin, "guessed")
    answers = [nobody.log_in("guessed", f"guess {n}") for n in range(5)]
    assert [answer.status for answer in answers] == [403] * 5
    for password in ("guess 6", PASSWORD):
        answer = nobody.log_in("guessed", password)
        assert answer.status == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 12
        assert answer.json["error"]["details"]["retry_after_s"] >= 1
        assert answer.json["error"]["type"] == "TooManyLoginAttemptsError"
    assert nobody.log_in(USER, PASSWORD).status == 200


def test_admin_manages_users(nobody: Api, admin: Api) -> None:
    number, user = make_user(admin, "bob")
    assert user.ask("GET", "/me").json["is_admin"] is False
    listed = {entry["name"]: entry for entry in admin.ask("GET", "/users").json}
    assert listed["bob"]["id"] == number
    assert listed["bob"]["is_active"] is True
    assert "password" not in str(listed)

    taken = admin.ask("POST", "/users", {"username": "bob", "password": PASSWORD})
    assert (taken.status, "already" in taken.error) == (409, True)
    path = f"/users/{number}"
    assert admin.ask("PATCH", path, {"password": NEW_PASSWORD}).status == 200
    assert user.ask("GET", "/me").status == 401
    assert nobody.log_in("bob", PASSWORD).status == 403
    user = nobody.as_user(nobody.token_of("bob", NEW_PASSWORD))

    assert user.ask("GET", "/users").status == 403
    assert admin.ask("PATCH", path, {"is_admin": True}).json["is_admin"] is True
    assert user.ask("GET", "/users").status == 200
    assert admin.ask("PATCH", path, {"is_admin": False}).status == 200
    assert user.ask("GET", "/users").status == 403

    assert admin.ask("PATCH", path, {"is_active": False}).json["is_active"] is False
    assert user.ask("GET", "/me").status == 401
    assert nobody.log_in("bob", NEW_PASSWORD).status == 403
    assert admin.ask("PATCH", path, {"is_active": True}).status == 200
    assert user.ask("GET", "/me").status == 401
    assert nobody.log_in("bob", NEW_PASSWORD).status == 200


def test_other_users_cannot_manage_users(admin: Api) -> None:
    number, user = make_user(admin, "carol")
    for method, path, body in (
        ("GET", "/users", None),
        ("POST", "/users", {"username": "x", "password": PASSWORD, "is_admin": True}),
        ("PATCH", f"/users/{number}", {"is_admin": True}),
        ("PATCH", "/users/1", {"password": NEW_PASSWORD}),
    ):
        answer = user.ask(method, path, body)
        assert (answer.status, "'carol'" in answer.error) == (403, True)
    assert admin.ask("GET", "/me").status == 200


def test_admin_cannot_lock_themselves_out(admin: Api) -> None:
    user_id = next(user["id"] for user in admin.ask("GET", "/users").json if user["name"] == USER)
    for change in ({"is_active": False}, {"is_admin": False}):
        assert admin.ask("PATCH", f"/users/{user_id}", change).status == 403
    assert admin.ask("GET", "/users").status == 200


def test_password_change_requires_old_password(nobody: Api, admin: Api) -> None:
    _, user = make_user(admin, "dora")
    other = nobody.as_user(nobody.token_of("dora", PASSWORD))
    refused = user.ask("POST", "/me/password", {"old": "wrong", "new": NEW_PASSWORD})
    assert (refused.status, refused.error) == (403, "invalid credentials")
    response = user.ask("POST", "/me/password", {"old": PASSWORD, "new": NEW_PASSWORD})
    assert response.status == 200
    assert [session.ask("GET", "/me").status for session in (user, other)] == [401, 401]
    assert nobody.as_user(response.json["token"]).ask("GET", "/me").json["name"] == "dora"
    assert nobody.log_in("dora", PASSWORD).status == 403


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"username": "", "password": PASSWORD}, "invalid user name"),
        ({"username": " eve", "password": PASSWORD}, "invalid user name"),
        ({"username": "e\nve", "password": PASSWORD}, "invalid user name"),
        ({"username": "e" * 65, "password": PASSWORD}, "invalid user name"),
        (
            {"username": "eve", "password": "Short-1"},
            "the password has 7 characters",
        ),
        ({"username": "eve", "password": "x" * 1025}, "the allowed range is 8 to 1024"),
    ],
)
def test_invalid_names_and_passwords_are_rejected(
    admin: Api, body: dict[str, str], told: str
) -> None:
    answer = admin.ask("POST", "/users", body)
    assert (answer.status, told in answer.error) == (400, True), answer.error
    assert body["password"] not in answer.error


def test_rejected_value_is_not_repeated(nobody: Api) -> None:
    secret = "do-not-repeat-this"
    for body in (
        {"username": USER, "password": [secret]},
        {"username": {"a": secret}, "password": "x"},
        {"username": USER, "password": secret * 100},
        {"username": USER, "password": "x", secret[:3]: secret},
    ):
        answer = nobody.ask("POST", "/login", body)
        assert answer.status == 422
        assert answer.json["error"]["type"] == "InvalidArgumentError"
        assert secret.encode() not in answer.body


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b'{"username": ' + b"9" * 60_000 + b"}",
        b'{"username": "\\ud800", "password": "\\udfff"}',
        b'{"username": "a\\u0000b", "password": "a\\u0000b"}',
        b'{"username": "\xff", "password": ""}',
        b"\xff",
        b"null",
        b"",
    ],
)
def test_no_body_causes_server_error(nobody: Api, body: bytes) -> None:
    for path in (f"{API}/login", "/api/v1/auth/login"):
        answer = nobody.http.ask("POST", path, body, headers={"Content-Type": "application/json"})
        assert answer.status in (400, 403, 422, 429), answer
        assert answer.error


@pytest.mark.parametrize("change", [{"is_admin": 0}, {"is_active": "no"}, {"name": "x"}])
def test_empty_change_changes_nothing(admin: Api, change: dict[str, object]) -> None:
    before = admin.ask("GET", "/users").json
    assert admin.ask("PATCH", "/users/1", change).status == 422
    assert admin.ask("PATCH", "/users/1", {}).status == 400
    missing = admin.ask("PATCH", "/users/999", {"is_admin": True})
    assert missing.status == 404
    assert "in http://" in missing.error  # and not the path of the server's database
    assert admin.ask("PATCH", f"/users/{2**31}", {"is_admin": True}).status == 422
    assert admin.ask("GET", "/users").json == before


def test_database_has_no_passwords_or_tokens(shared_server: RunningServer, admin: Api) -> None:
    with sqlite3.connect(shared_server.home / "detcore.db") as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert token_digest(admin.token) in dump
    for secret in (admin.token, PASSWORD, prehash(PASSWORD)):
        assert secret not in dump


def test_running_server_notices_external_changes(shared_server: RunningServer, admin: Api) -> None:
    _, user = make_user(admin, "frank")
    assert user.ask("GET", "/me").status == 200
    with ServerDatabase.open(shared_server.database_url) as database:
        database.update_user("frank", is_active=False)
    wait_for(lambda: user.ask("GET", "/me").status == 401)


def test_unavailable_database_returns_503() -> None:
    def fail(_: str) -> None:
        raise DatabaseError("the database is away")

    database = types.SimpleNamespace(find_token=fail)
    state: Any = types.SimpleNamespace(visit=None, database=database)
    with pytest.raises(HTTPException) as caught:
        asyncio.run(find_token(state, "t"))
    assert (caught.value.status_code, caught.value.headers) == (503, {"Retry-After": "1"})


def test_throttle_table_stays_small() -> None:
    throttle = Throttle(max_size=9)
    for number in range(100):
        throttle.begin(f"name {number}", f"10.0.0.{number}")
    assert len(throttle._levels) == 9


class TestThrottle:
    """Tests the throttle with a manual clock."""

    def setup_method(self) -> None:
        self.now = 0.0
        self.throttle = Throttle(clock=lambda: self.now)

    def attempts(self, count: int, name: str = "ada", address: str = "a") -> list[int]:
        return [self.throttle.begin(name, address) for _ in range(count)]

    def test_later_attempts_require_waiting(self) -> None:
        assert self.attempts(6) == [0, 0, 0, 0, 0, 12]
        self.now += 11
        assert self.attempts(1) == [1]
        self.now += 1
        assert self.attempts(2) == [0, 12]
        self.now += 3600
        assert self.attempts(6) == [0, 0, 0, 0, 0, 12]

    def test_refused_attempt_does_not_count(self) -> None:
        self.attempts(1000)
        self.now += 12
        assert self.attempts(1) == [0]

    def test_right_password_does_not_count(self) -> None:
        for _ in range(1000):
            assert self.attempts(1) == [0]
            self.throttle.succeed("ada", "a")
        assert self.throttle._levels == {}

    def test_success_keeps_guesses_at_other_users(self) -> None:
        assert self.attempts(5, name="bob") == [0] * 5
        assert self.attempts(1) == [0]
        self.throttle.succeed("ada", "a")
        assert self.attempts(1, name="bob") == [12]

    def test_one_address_cannot_try_many_names(self) -> None:
        assert [self.throttle.begin(f"name {n}", "a") for n in range(50)] == [0] * 50
        assert self.throttle.begin("another", "a") == 2
        assert self.throttle.begin("another", "b") == 0

    def test_many_addresses_cannot_try_one_name(self) -> None:
        assert [self.throttle.begin("ada", f"address {n}") for n in range(100)] == [0] * 100
        assert self.throttle.begin("ada", "one more") == 6
        assert self.throttle.begin("bob", "one more") == 0
