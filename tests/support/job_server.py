"""Server that runs submitted experiments, and a client with a separate home."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from running_server import PASSWORD, USER, RunningServer, quick_hash
from toy_command import MODEL_DIR, TOY_PLUGIN, toy_config

from detcore.client.http import PackedContext, Session, Submission, open_session, pack_directory
from detcore.environment import read_environment
from detcore_server.server_database import ServerDatabase
from detcore_testing import DetcoreCommand

__all__ = ["MODEL_DIR", "JobServer", "toy_config", "wait_for"]

_T = TypeVar("_T")


class JobServer:
    """A server and a client with separate homes. All their processes can be found.

    Args:
        folder: Directory of both homes.
        options: Options of ``detcore serve``.
        python_path: Additional import directories for both.
        certificate: Certificate that the client trusts.
        variables: Environment variables of the server.

    Attributes:
        client: The ``detcore`` command of the user ``ada``, who is logged in.
        server: The server.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        python_path: Sequence[Path] = (),
        certificate: Path | None = None,
        **variables: str,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        home = folder / "server"
        home.mkdir()
        login_variables = {"DETCORE_USER": USER, "DETCORE_PASSWORD": PASSWORD}
        if certificate is not None:
            login_variables["DET_MASTER_CERT_FILE"] = str(certificate)
        self.client = DetcoreCommand(
            folder, python_path=[TOY_PLUGIN, *python_path], variables=login_variables
        )
        names = ("PYTHONPATH", "DETCORE_TESTING_MARK")
        client_variables = {name: self.client.variables()[name] for name in names}
        self._sessions: dict[str, Session] = {}
        self.server = RunningServer(home, *options, **client_variables, **variables)

    def __enter__(self) -> JobServer:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            session.close()
        self.server.stop()
        self.client.close()  # also kills runners

    @property
    def url(self) -> str:
        return self.server.url

    def database(self) -> ServerDatabase:
        return ServerDatabase.open(self.server.database_url)

    def session(self, user: str = USER) -> Session:
        """Log in. Users other than ``ada`` are created first, without administrator rights."""
        if user in self._sessions:
            return self._sessions[user]
        with self.database() as database:
            if user not in {record.name for record in database.list_users()}:
                database.create_user(user, password_hash=quick_hash(PASSWORD))
        environ = {"DETCORE_USER": user, "DETCORE_PASSWORD": PASSWORD}
        environ["DETCORE_HOME"] = str(self.client.home)
        self._sessions[user] = open_session(self.url, user, environment=read_environment(environ))
        return self._sessions[user]

    def given(self, **changes: Any) -> tuple[Submission, PackedContext]:
        """Return an experiment to submit."""

        text = yaml.safe_dump(toy_config(**changes))
        submission = Submission(
            text=text, name="toy.yaml", overrides={}, environment={}, test_mode=False
        )
        return submission, pack_directory(MODEL_DIR)

    def runner_of(self, experiment_id: int) -> int:
        """Return the process that runs an experiment, which is not the server."""
        with self.database() as database:
            runner = database.find_runner(experiment_id)
        assert runner is not None
        assert "jobs.submission_runner" in Path(f"/proc/{runner.pid}/cmdline").read_text()
        return runner.pid

    def reboot(self, experiment_id: int) -> None:
        """Kill the server and the runner together, as in a power failure."""
        runner = self.runner_of(experiment_id)
        self.server.kill()
        os.kill(runner, signal.SIGKILL)


def wait_for(condition: Callable[[], _T], process: subprocess.Popen[str] | None = None) -> _T:
    """Wait until a condition is true, and return its value.

    Raises:
        AssertionError: If the process exits first, or after a minute.
    """
    deadline = time.monotonic() + 60
    while not (value := condition()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended too soon: {process.communicate()}")
        assert time.monotonic() < deadline, "it did not come true within a minute"
        time.sleep(0.05)
    return value
