"""Tests of ``detcore user`` on a database and on a server."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from running_server import PASSWORD, USER, RunningServer

from detcore.cli import main
from detcore.client.http import (
    Session,
    StoredToken,
    delete_token,
    find_credentials,
    normalize_url,
    store_token,
)
from detcore.client.http.credentials import read_stored_token
from detcore.environment import read_environment
from detcore.errors import ConfigError, ForbiddenError, StorageError, UnauthenticatedError
from detcore_server.server_database import ServerDatabase
from detcore_server.users.accounts import hash_password, is_password

LATER = 9e12
NOWHERE = "http://127.0.0.1:9"


class Shell:
    """Runs ``detcore user`` commands with a separate home directory."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        for name in (
            "DETCORE_DB", "DETCORE_MASTER", "DET_MASTER", "DET_MASTER_ADDR", "DETCORE_TOKEN",
            "DETCORE_USER", "DET_USER", "DETCORE_PASSWORD", "DET_PASS",
        ):  # fmt: skip
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("DETCORE_HOME", str(home))

    def run(self, *arguments: str, said: str = "") -> Result:
        return CliRunner().invoke(main, ["user", *arguments], input=said)

    def does(self, *arguments: str, said: str = "") -> str:
        result = self.run(*arguments, said=said)
        assert result.exit_code == 0, result.output
        return result.output

    @property
    def file(self) -> Path:
        return self.home / "credentials.json"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path / "shell", monkeypatch)


def test_commands_manage_users_of_database(shell: Shell) -> None:
    assert shell.does("create", "ada", "--admin", "--password-stdin", said=f"{PASSWORD}\n") == (
        "user ada can log in\n"
    )
    shell.does("create", "bob", "--password-stdin", said=PASSWORD)
    shell.does("password", "bob", "--password-stdin", said="Other-horse-8\r\nignored\n")
    shell.does("deactivate", "bob")
    lines = [line.split()[:3] for line in shell.does("list").splitlines()]
    assert lines == [["ID", "NAME", "MAY"], ["1", "ada", "administer"], ["2", "bob", "nothing"]]
    shell.does("activate", "bob")
    listed = json.loads(shell.does("list", "--json"))
    assert [(entry["name"], entry["is_admin"], entry["is_active"]) for entry in listed] == [
        ("ada", True, True),
        ("bob", False, True),
    ]
    assert shell.does("list", "--csv").splitlines()[0] == "id,name,is_admin,is_active,created_at"
    with ServerDatabase.open(f"sqlite:///{shell.home / 'detcore.db'}") as database:
        hashes = {user.name: user.password_hash for user in database.list_users()}
    assert is_password(PASSWORD, hashes["ada"])
    assert is_password("Other-horse-8", hashes["bob"])


@pytest.mark.parametrize(
    ("arguments", "said", "told", "code"),
    [
        (("create", "ada", "--password-stdin"), PASSWORD, "the user 'ada' already exists", 1),
        (("create", " ", "--password-stdin"), PASSWORD, "invalid user name", 1),
        (("create", "b", "--password-stdin"), "short", "the password has 5 characters", 1),
        (("create", "b", "--password-stdin"), "", "the password has 0 characters", 1),
        (("create", "b"), PASSWORD, "cannot prompt for the password: standard input", 2),
        (("create", "b", "--password", PASSWORD), "", "No such option", 2),
        (("password", "nobody", "--password-stdin"), PASSWORD, "no user 'nobody'", 1),
        (("deactivate", "nobody"), "", "no user 'nobody'", 1),
        (("whoami",), "", "missing the address of the server", 2),
        (("login", NOWHERE), PASSWORD, "cannot prompt for the user: standard input", 2),
        (("login", NOWHERE, "--user", "ada", "--password-stdin"), PASSWORD, "does not respond", 1),
        (("login", "ftp://x"), "", "'ftp://x' is not the address of a server", 2),
        (("login", "http://ada:pw-in-url@x"), "", "at x contains a user or a password", 2),
        (("whoami", NOWHERE), "", f"Log in: detcore user login {NOWHERE}", 1),
        (("whoami", NOWHERE, "--user", "eve"), "", f"login {NOWHERE} --user eve", 1),
    ],
)
def test_command_errors(
    shell: Shell, arguments: tuple[str, ...], said: str, told: str, code: int
) -> None:
    shell.does("create", "ada", "--password-stdin", said=PASSWORD)
    result = shell.run(*arguments, said=said)
    assert told in result.output
    assert result.exit_code == code
    assert "pw-in-url" not in result.output


def test_password_prompt_shows_no_password(shell: Shell) -> None:
    command = [sys.executable, "-m", "detcore", "user", "create", "ada"]
    code, output = type_into(command, [PASSWORD, f"not {PASSWORD}"])
    assert code == 2
    assert "the passwords do not match" in output
    code, output = type_into(command, [PASSWORD, PASSWORD])
    assert code == 0, output
    assert PASSWORD not in output
    assert json.loads(shell.does("list", "--json"))[0]["name"] == "ada"


def type_into(command: list[str], answers: list[str]) -> tuple[int, str]:
    """Run a command on a terminal and answer its prompts. Returns the exit code and the output."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    )
    os.close(follower)
    output = b""
    while True:
        try:
            output += os.read(leader, 4096)
        except OSError:  # the other end was closed
            break
        # The terminal would show characters typed before the prompt.
        if answers and output.endswith(b": "):
            output += b"(typed)"
            os.write(leader, f"{answers.pop(0)}\n".encode())
    os.close(leader)
    return process.wait(60), output.decode()


def test_token_is_stored_until_logout(shell: Shell, shared_server: RunningServer) -> None:
    url = shared_server.url
    output = shell.does("login", f"{url}/", "--user", USER, "--password-stdin", said=PASSWORD)
    assert f"logged in to {url} as {USER} until 20" in output
    assert stat.S_IMODE(shell.file.stat().st_mode) == 0o600
    assert sorted(os.listdir(shell.home)) == ["credentials.json", "credentials.json.lock"]
    text = shell.file.read_text()
    assert PASSWORD not in text
    token = read_stored_token(shell.home, url)
    assert token is not None
    assert token.token not in repr(token)

    fields = dict(line.split(maxsplit=1) for line in shell.does("whoami", url).splitlines())
    assert fields["user"] == USER
    assert fields["administrator"] == "yes"
    assert shell.does("logout", url) == f"logged out of {url} as {USER}\n"
    assert token.token not in shell.file.read_text()
    with pytest.raises(UnauthenticatedError, match="the token is invalid"):
        Session(url, token.token).request("GET", "/api/detcore/v1/me")
    assert "no user is logged in" in shell.does("logout", url)
    assert shell.run("whoami", url).exit_code == 1


def test_user_changes_own_password(shell: Shell, shared_server: RunningServer) -> None:
    url = shared_server.url
    with ServerDatabase.open(shared_server.database_url) as database:
        database.create_user("gina", password_hash=hash_password(PASSWORD))
    assert "no user is logged in" in shell.run("change-password", url).output
    shell.does("login", url, "--user", "gina", "--password-stdin", said=PASSWORD)
    before = read_stored_token(shell.home, url)
    refused = shell.run("change-password", url, "--password-stdin", said="wrong\nOther-horse-8\n")
    assert (refused.exit_code, refused.output) == (1, "error: invalid credentials\n")
    passwords = f"{PASSWORD}\nOther-horse-8\n"
    assert shell.does("change-password", url, "--password-stdin", said=passwords) == (
        f"changed the password of gina on {url}\n"
    )
    after = read_stored_token(shell.home, url)
    assert before is not None
    assert after is not None
    assert before.token != after.token
    assert "gina" in shell.does("whoami", url)


def test_wrong_password_stores_nothing(shell: Shell, shared_server: RunningServer) -> None:
    result = shell.run(
        "login", shared_server.url, "--user", "x\ny", "--password-stdin", said="wrong"
    )
    assert result.exit_code == 1
    assert r"rejected user 'x\ny' with this password" in result.output
    assert not shell.file.exists()


def test_logout_without_server_removes_token(shell: Shell) -> None:
    store_token(shell.home, NOWHERE, StoredToken(user="ada", token="t", expires_at=2e9))
    result = shell.run("logout", NOWHERE)
    assert result.exit_code == 1
    assert "was deleted here" in result.output
    assert "A copy of the token would be valid until 2033-" in result.output
    assert read_stored_token(shell.home, NOWHERE) is None


@pytest.mark.soak
def test_plain_http_password_shows_warning(shell: Shell) -> None:
    away = "http://server.invalid:8080"
    result = shell.run("login", away, "--user", "ada", "--password-stdin", said=PASSWORD)
    assert f"warning: {away} is not encrypted" in result.output
    assert "warning" not in shell.run(
        "login", NOWHERE, "--user", "ada", "--password-stdin", said=PASSWORD
    ).output  # fmt: skip


class TestFindCredentials:
    """Tests which credentials are used."""

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, shared_server: RunningServer) -> None:
        self.home = tmp_path
        self.url = shared_server.url

    def find(self, user: str | None = None, **variables: str) -> str:
        environment = read_environment({"DETCORE_HOME": str(self.home), **variables})
        return find_credentials(self.url, user, environment)

    def keep(self, user: str, token: str, expires_at: float = LATER) -> None:
        store_token(self.home, self.url, StoredToken(user=user, token=token, expires_at=expires_at))

    def test_token_variable_comes_first(self) -> None:
        self.keep("ada", "kept")
        assert self.find(DETCORE_TOKEN="given") == "given"
        assert self.find() == "kept"

    def test_last_login_is_used(self) -> None:
        self.keep("bob", "of bob")
        self.keep("ada", "of ada")
        assert self.find() == "of ada"
        assert self.find("bob") == self.find(DETCORE_USER="bob") == "of bob"
        delete_token(self.home, self.url, "ada")
        assert self.find() == "of bob"

    def test_expired_token_is_not_used(self) -> None:
        self.keep("ada", "old", expires_at=1.0)
        with pytest.raises(UnauthenticatedError, match="no valid token is stored"):
            self.find()

    @pytest.mark.parametrize(
        "names",
        [("DETCORE_USER", "DETCORE_PASSWORD"), ("DET_USER", "DET_PASS")],
    )
    def test_password_variable_logs_in(self, names: tuple[str, str]) -> None:
        token = self.find(**dict(zip(names, (USER, PASSWORD), strict=True)))
        assert Session(self.url, token).request("GET", "/api/detcore/v1/me")["name"] == USER
        assert os.listdir(self.home) == []
        with pytest.raises(ForbiddenError, match="invalid credentials"):
            self.find(**dict(zip(names, (USER, "wrong"), strict=True)))

    def test_password_is_not_tried_for_other_user(self) -> None:
        with pytest.raises(UnauthenticatedError, match="no token of 'eve'"):
            self.find("eve", DETCORE_USER=USER, DETCORE_PASSWORD=PASSWORD)

    def test_missing_certificate_is_reported_first(self) -> None:
        for name in ("DETCORE_MASTER_CERT", "DET_MASTER_CERT_FILE"):
            with pytest.raises(ConfigError, match=r"noverify does not exist.*\n.*always checked"):
                self.find(**{"DETCORE_TOKEN": "t", name: "noverify"})

    def test_environment_repr_hides_secrets(self) -> None:
        names = {"DETCORE_TOKEN": "secret-1", "DETCORE_PASSWORD": "secret-2"}
        assert "secret" not in repr(read_environment(names))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("host", "http://host:8080"),
        (" HOST:9000/ ", "http://host:9000"),
        ("https://Host/", "https://host"),
        ("http://host", "http://host"),
        ("http://host#", "http://host"),
        ("http://host/Detcore/", "http://host/Detcore"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_server_url_is_normalized(text: str, url: str) -> None:
    assert normalize_url(text) == normalize_url(url) == url


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://x", "http://x:y", "http://x:99999", "http://x?a=1"]
)
def test_invalid_server_urls(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a server"):
        normalize_url(text)


def test_readable_token_file_is_rejected(tmp_path: Path) -> None:
    store_token(tmp_path, "u", StoredToken(user="ada", token="t", expires_at=LATER))
    file = tmp_path / "credentials.json"
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {file}"):
        read_stored_token(tmp_path, "u")
    file.chmod(0o600)
    assert read_stored_token(tmp_path, "u") is not None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"servers": 7}', '{"servers": {"u": 1}}', '{"secret-token": 1}']
)
def test_damaged_token_file_error_hides_content(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials.json"
    file.touch(0o600)
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"is damaged.\nRemove it") as caught:
        read_stored_token(tmp_path, "u")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="is damaged"):
        store_token(tmp_path, "u", StoredToken(user="a", token="t", expires_at=LATER))
    assert file.read_text() == text


def test_crash_keeps_previous_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_token(tmp_path, "u", StoredToken(user="ada", token="old", expires_at=LATER))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=r"cannot be stored in .*: .*No space left"):
        store_token(tmp_path, "u", StoredToken(user="ada", token="new", expires_at=LATER))
    token = read_stored_token(tmp_path, "u")
    assert token is not None
    assert token.token == "old"
    assert sorted(os.listdir(tmp_path)) == ["credentials.json", "credentials.json.lock"]


def test_concurrent_logins_are_both_stored(tmp_path: Path) -> None:
    def keep(number: int) -> None:
        token = StoredToken(user=f"user {number}", token=str(number), expires_at=LATER)
        store_token(tmp_path, f"u{number % 3}", token)

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(24):
        token = read_stored_token(tmp_path, f"u{number % 3}", f"user {number}")
        assert token is not None
        assert token.token == str(number)
