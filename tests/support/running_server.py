"""A real server process on a free loopback port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import argon2

from detcore_server.server_database import ServerDatabase
from detcore_server.users.accounts import prehash

__all__ = ["PASSWORD", "SLOW_TO_JUDGE", "USER", "RunningServer", "quick_hash"]

USER = "ada"
PASSWORD = "Correct-horse-7"
# Setup in which checking an experiment takes seconds, longer than any real input.
SLOW_TO_JUDGE = """
import time
from detcore_server.jobs import submit
submit._DEADLINE_S = 0.5
check = submit.check
submit.check = lambda *arguments: (time.sleep(3), check(*arguments))[1]
"""


def quick_hash(password: str) -> str:
    """Return a password hash with low costs, which is verified quickly."""
    return argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(prehash(password))


class RunningServer:
    """``detcore serve`` on the records in a directory, which can be killed and restarted.

    Args:
        home: Directory of the records.
        options: Options of the command.
        setup: Python code that the process runs first, for example to shorten a timeout.
        variables: Environment variables of the process.

    Attributes:
        url: URL of the server, which stays the same after a restart.
        log: Output to stderr of all starts.
    """

    def __init__(self, home: Path, *options: str, setup: str = "", **variables: str) -> None:
        self.home = home
        self.log = home / "server.log"
        self._setup = setup
        self._options = options
        self._variables = variables
        self._port = "0"
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        with ServerDatabase.open(self.database_url) as database:
            if not database.list_users():
                password_hash = quick_hash(PASSWORD)
                database.create_user(USER, password_hash=password_hash, is_admin=True)

    @property
    def database_url(self) -> str:
        """The record store."""
        return self._variables.get("DETCORE_DB", f"sqlite:///{self.home / 'detcore.db'}")

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> RunningServer:
        """Start the server, and wait until it listens."""
        program = ["-m", "detcore"]
        if self._setup:
            program = ["-c", f"{self._setup}\nfrom detcore.cli import main\nmain()"]
        command = [sys.executable, *program, "serve", "--port", self._port, *self._options]
        environment = {**os.environ, "DETCORE_HOME": str(self.home), **self._variables}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert " at http" in line, self.log.read_text()
        self.url = line.split()[-1]
        self._port = self.url.rpartition(":")[2]
        return self

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the server with a signal, and return its exit code, or 0 if it does not run."""
        if self._process is None:
            return 0
        self.signal(number)
        code = self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def signal(self, number: int) -> None:
        """Send a signal without waiting."""
        assert self._process is not None
        self._process.send_signal(number)

    def token(self) -> str:
        """Log in."""
        answer = self.ask("POST", "/api/detcore/v1/login", {"username": USER, "password": PASSWORD})
        return str(answer["token"])

    def ask(self, method: str, path: str, body: object = None, token: str = "") -> Any:
        """Send a request with the standard library. Raises HTTPError for error responses."""
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def __enter__(self) -> RunningServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is not None:
            print(self.log.read_text()[-4000:], file=sys.stderr)
