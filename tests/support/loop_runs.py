"""Run the scripts of examples/core_api in processes with a home and a storage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from processes import Starter

from detcore.records import Database, ingest_event_logs

__all__ = ["CORE_API", "LOOPS", "LoopRuns", "arrays_of", "check_same_training"]

CORE_API = Path(__file__).parents[2] / "examples" / "core_api"
LOOPS = ("torch_loop", "jax_loop", "keras_fit", "sklearn_loop")
_START_S = 240.0


class LoopRuns(Starter):
    """Home and storage for runs of the loops. Remaining processes are killed at the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.home = folder / "home"
        self.storage = folder / "storage"
        self.storage.mkdir(parents=True)
        self.variables: dict[str, str] = {}

    def start(self, *command: object) -> subprocess.Popen[str]:
        """Start a command in the examples' directory with this environment's ``python3``."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=CORE_API,
            env={
                **os.environ,
                "DETCORE_HOME": str(self.home),
                "PATH": path,
                **self.variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def script(self, loop: str, steps: int, *, ranks: int = 1) -> list[object]:
        """Return the command that runs a loop standalone, in one or several processes."""
        storage = self.storage.as_uri()
        command = ["python3", f"{loop}.py", "--steps", steps, "--checkpoint-storage", storage]
        return [*(["detcore", "launch", "-n", ranks, "--"] if ranks > 1 else []), *command]

    def run(self, *command: object) -> str:
        """Run a command that must succeed, and return its output."""
        return self.end(self.start(*command), 0)

    def end(self, process: subprocess.Popen[str], code: int | None) -> str:
        """Wait for an exit code (None: any except 0), and return the output."""
        stdout, stderr = process.communicate(timeout=_START_S)
        is_expected = process.returncode != 0 if code is None else process.returncode == code
        assert is_expected, f"ended with {process.returncode}:\n{stdout}\n{stderr}"
        return stdout

    def wait_for_checkpoint(self, process: subprocess.Popen[str], more_than: int = 0) -> None:
        """Wait until a process has saved another checkpoint."""
        self.wait_for(process, lambda: len(self.manifests()) > more_than)

    def kill_after_checkpoint(self, *command: object) -> None:
        """Start a command, and kill it after its first save."""
        process = self.start(*command)
        self.wait_for_checkpoint(process)
        process.kill()
        self.end(process, -signal.SIGKILL)

    def wait_for(self, process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_S
        while not condition():
            if process.poll() is not None:
                raise AssertionError(f"ended too early: {process.communicate()}")
            if time.monotonic() > deadline:
                process.send_signal(signal.SIGKILL)
                raise TimeoutError(f"nothing happened: {process.communicate()}")
            time.sleep(0.005)

    def manifests(self) -> list[Path]:
        return list(self.storage.glob("*/manifest.json"))

    def newest(self) -> tuple[int, dict[str, npt.NDArray[Any]]]:
        """Return the steps and all arrays of the latest checkpoint."""
        steps, path = max((_steps_of(path), path) for path in self.manifests())
        return steps, arrays_of(path.parent)

    def database(self) -> Database:
        database = Database.open(f"sqlite:///{self.home / 'detcore.db'}")
        ingest_event_logs(database, self.home)
        return database

    def metrics(self, trial_id: int, kind: str) -> list[tuple[int, dict[str, float]]]:
        """Return the metrics of a trial by step."""
        with self.database() as database:
            rows = database.metrics(trial_id, kind)
            return [(record.steps_completed, dict(record.metrics)) for record in rows]


def check_same_training(whole: LoopRuns, broken: LoopRuns) -> int:
    """Check that two runs have equal state and validations, and return their steps."""
    (steps, expected), (same_steps, found) = whole.newest(), broken.newest()
    assert steps == same_steps
    assert expected.keys() == found.keys()
    for name in expected:
        assert np.array_equal(expected[name], found[name]), name
    assert whole.metrics(1, "validation") == broken.metrics(1, "validation")
    return steps


def _steps_of(manifest: Path) -> int:
    steps: int = json.loads(manifest.read_text())["steps_completed"]
    return steps


def arrays_of(checkpoint: Path) -> dict[str, npt.NDArray[Any]]:
    """Return all arrays in a checkpoint by file and name."""
    return dict(_arrays(checkpoint))


def _arrays(folder: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            for name in arrays.files:
                yield f"{path.name}/{name}", arrays[name]
    for path in sorted(folder.glob("*.safetensors")):
        from safetensors.numpy import load_file

        for name, array in load_file(path).items():
            yield f"{path.name}/{name}", array
