"""A real MLflow server that tests can kill, and training scripts."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Server:
    """``mlflow server`` with SQLite on a fixed port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "mlflow.db"
        self.artifacts = folder / "artifacts"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server if necessary, and wait until it responds."""
        if self._process is not None:
            return
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1",
                    "--port", str(self.port), "--workers", "1",
                    "--backend-store-uri", f"sqlite:///{self.database}",
                    "--artifacts-destination", str(self.artifacts),
                ],
                env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the server and all its processes, as in a power failure."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Query the server's database directly."""
        with contextlib.closing(sqlite3.connect(self.database, timeout=30)) as connection:
            return connection.execute(query, values).fetchall()

    def runs(self, name: str) -> list[tuple[str, str]]:
        """Return the id and status of each run of an experiment."""
        query = (
            "SELECT run_uuid, status FROM runs JOIN experiments USING (experiment_id) "
            "WHERE experiments.name = ? ORDER BY start_time"
        )
        return self.rows(query, name)

    def metrics(self, run_id: str, key: str) -> list[tuple[int, float, int]]:
        """Return step, value and time in the order of arrival."""
        query = "SELECT step, value, timestamp FROM metrics WHERE run_uuid = ? AND key = ?"
        return self.rows(f"{query} ORDER BY rowid", run_id, key)

    def pairs(self, table: str, run_id: str) -> dict[str, str]:
        """Return the ``tags`` or ``params`` of a run."""
        return dict(self.rows(f"SELECT key, value FROM {table} WHERE run_uuid = ?", run_id))


class Training:
    """Training scripts in a separate directory."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder = folder
        self.variables = {
            **os.environ,
            "DETCORE_HOME": str(folder / "home"),
            "MLFLOW_TRACKING_URI": uri,
            "MLFLOW_EXPERIMENT_NAME": folder.name,
        }
        self._started: list[subprocess.Popen[str]] = []

    def write(self, text: str) -> Path:
        path = self.folder / "train.py"
        path.write_text(text)
        return path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=self.variables, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._started.append(process)
        return process

    def run(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=200)
        assert process.returncode == code, (process.returncode, stdout, stderr)
        return stdout, stderr

    def script(self, text: str, *, code: int = 0) -> tuple[str, str]:
        return self.run(self.write(text), code=code)

    def deliver(self, *, code: int = 0) -> list[dict[str, Any]]:
        stdout, _ = self.run("-m", "detcore", "plugins", "deliver", "--json", code=code)
        rows: list[dict[str, Any]] = json.loads(stdout)
        return rows

    def reports(self) -> list[tuple[int, float, int]]:
        """Return step, loss and time in milliseconds of each report in the event logs."""
        rows = []
        for path in sorted(self.folder.glob("home/experiments/1/trials/1/events-*.jsonl")):
            for line in path.read_bytes().split(b"\n")[1:-1]:
                record = json.loads(line)
                if record["kind"] == "training":
                    payload = record["payload"]
                    reported_at = datetime.datetime.fromtimestamp(
                        record["at"], datetime.timezone.utc
                    )
                    moment = int(reported_at.timestamp() * 1000)  # microseconds
                    rows.append((payload["steps_completed"], payload["metrics"]["loss"], moment))
        return rows

    def close(self) -> None:
        for process in self._started:
            with process:
                if process.poll() is None:
                    process.kill()
                    process.communicate()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mlflow"))
    yield server
    server.kill()


@pytest.fixture
def training(tmp_path: Path, server: Server) -> Iterator[Training]:
    training = Training(tmp_path, server.uri)
    yield training
    training.close()
