"""Determined's unmodified client in a separate environment, and records for it."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from client_store import ClientStore
from running_server import PASSWORD, USER, RunningServer

from detcore.records import OutputLog
from detcore.types import ExperimentState, TrialState

__all__ = ["Client", "Filled", "client_environment", "fill"]

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "locks" / "determined.txt"
# Variables that would change the client's server or user.
_FOREIGN = (
    "DET_", "DETCORE_", "PYTHON", "XDG_CONFIG_HOME", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_"
)  # fmt: skip
# Start of all scripts, which end with say(...).
_PRELUDE = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
from determined.experimental import client
given = json.loads(sys.argv[1])
def say(value):
    print("\\n" + json.dumps(value))
def refusal(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None
"""


@dataclasses.dataclass(frozen=True)
class Client:
    """SDK and command of the client for one server and user.

    Attributes:
        environment: Virtual environment of the client.
        home: Directory for tokens.
        server: The server.
        variables: Additional environment variables, such as the user.
    """

    environment: Path
    home: Path
    server: RunningServer
    variables: dict[str, str] = dataclasses.field(
        default_factory=lambda: {"DET_USER": USER, "DET_PASS": PASSWORD}
    )

    def script(self, text: str, **given: Any) -> Any:
        """Run an SDK script, and return its result."""
        result = self._run("python", "-c", _PRELUDE + text, json.dumps(given))
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    def det(self, *arguments: object, code: int = 0, typed: str | None = None) -> str:
        """Run the command ``det`` and return its output. Version warnings are faults."""
        result = self._run("det", *map(str, arguments), typed=typed)
        message = f"det {' '.join(map(str, arguments))}:\n{result.stdout}{result.stderr}"
        assert result.returncode == code, message
        assert "master version" not in result.stderr.lower(), message
        return result.stdout if code == 0 else result.stderr

    def _run(
        self, name: str, *arguments: str, typed: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        variables = {
            **environment,
            "HOME": str(self.home),
            "NO_COLOR": "1",
            "DET_MASTER": self.server.url,
            **self.variables,
        }
        return subprocess.run(
            [str(self.environment / "bin" / name), *arguments],
            cwd=self.home, env=variables, input=typed, capture_output=True, text=True, timeout=120,
            # The command would prompt for a password on a terminal.
            start_new_session=True,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Filled:
    """Records on the server.

    Attributes:
        experiment: COMPLETED, with two trials and three checkpoints. Smaller loss is better.
        paused: PAUSED and archived experiment without trials.
        trials: Trials of `experiment`.
        checkpoints: Checkpoints of trial 1 at 10 and 20 batches, and of trial 2 at 10.
    """

    store: ClientStore
    experiment: int
    paused: int
    trials: tuple[int, int]
    checkpoints: tuple[str, str, str]


def client_environment() -> Path:
    """Return a virtual environment with the locked packages, which the first caller creates."""
    folder = ROOT / ".nox" / "determined-client"
    folder.parent.mkdir(exist_ok=True)
    mark = folder / "made-from"
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    with (folder.parent / "determined-client.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            _uv("venv", "--python", sys.executable, str(folder))
            _uv("pip", "install", "--python", str(folder / "bin" / "python"), "-r", str(LOCK))
            mark.write_text(digest)
    return folder


def fill(store: ClientStore) -> Filled:
    """Record a few experiments."""
    experiment = store.experiment(description="reads digits", labels=["ocr", "small"])
    first = store.trial(experiment, rate=0.1, layers=[3, 2])
    second = store.trial(experiment, rate=0.2, layers=[4])
    store.report(first, 5, {"loss": 4.5, "accuracy": math.nan}, kind="training")
    store.report(first, 10, {"loss": 2.5, "accuracy": 0.5}, kind="training")
    checkpoints = (
        store.checkpoint(first, 10, {"loss": 1.5, "error": math.nan}, note="first"),
        store.checkpoint(first, 20, {"loss": 0.75, "error": math.inf}),
        store.checkpoint(second, 10, {"loss": 0.25, "error": 0.125}),
    )
    folder = store.home / "experiments" / str(experiment) / "trials" / str(first)
    log = OutputLog(folder, 1)
    log.append("detcore", "the trial starts")
    for number in range(3):
        log.append("stdout", f"step {number}", rank=number % 2)
    log.append("stderr", "a wärning")
    log.close()
    for trial in (first, second):
        store.database.set_trial_state(trial, TrialState.COMPLETED)
    paused = store.experiment(metric="accuracy", state=ExperimentState.PAUSED)
    store.database.set_experiment_archived(paused, True)
    return Filled(store, experiment, paused, (first, second), checkpoints)


def _uv(*arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "uv", "--quiet", *arguments], capture_output=True, text=True
    )
    assert result.returncode == 0, f"uv {' '.join(arguments)}:\n{result.stdout}{result.stderr}"
