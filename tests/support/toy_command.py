"""The `detcore` command with a home of its own, and experiments of the toy framework for it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).parents[1]
TOY_PLUGIN = TESTS / "toy_plugin"
MODEL_DIR = TESTS / "run" / "model"


@dataclasses.dataclass
class Finished:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        """The JSON object that ends the output of ``--json``."""
        parsed: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return parsed


class Detcore:
    """The `detcore` command with a home of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.home = tmp_path / "home"
        self.started: list[subprocess.Popen[str]] = []

    def variables(self) -> dict[str, str]:
        return {
            **os.environ,
            "DETCORE_HOME": str(self.home),
            "PYTHONPATH": str(TOY_PLUGIN),
            "COLUMNS": "100",
        }

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "detcore", *map(str, arguments)],
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.tmp_path,
        )
        self.started.append(process)
        return process

    def __call__(self, *arguments: object, timeout_s: float = 120) -> Finished:
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=timeout_s)
        return Finished(process.returncode, stdout, stderr)

    def config(self, **changes: Any) -> Path:
        """Write an experiment file; keys with dots change nested settings.

        Nothing is started again, and no checkpoint is deleted, unless the changes say so.
        """
        checkpoints = self.home / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        plain: dict[str, Any] = {
            "checkpoint_storage": {
                "type": "directory",
                "container_path": str(checkpoints),
                "save_trial_latest": 1000,
            },
            "name": "toy",
            "entrypoint": "model_def:Line",
            "hyperparameters": {"global_batch_size": 8, "learning_rate": 0.05},
            "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 40}},
            "scheduling_unit": 5,
            "min_validation_period": {"batches": 10},
            "min_checkpoint_period": {"batches": 10},
            "max_restarts": 0,
            "reproducibility": {"experiment_seed": 7},
        }
        for key, value in changes.items():
            *parents, last = key.split("__")
            node = plain
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        path = self.tmp_path / f"config-{len(list(self.tmp_path.glob('config-*')))}.yaml"
        path.write_text(yaml.safe_dump(plain))
        return path

    def toy_state(self, uuid: str) -> dict[str, Any]:
        """Read the toy framework's state out of a checkpoint in the default storage."""
        path = self.home / "checkpoints" / uuid / "toy.json"
        state: dict[str, Any] = json.loads(path.read_text())
        return state

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 60) -> Any:
        """Wait until a condition is true, or the command started last ends in failure."""
        deadline = time.monotonic() + timeout_s
        process = self.started[-1]
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            if process.poll() not in (None, 0, -9):
                raise AssertionError(f"the command failed: {process.communicate()}")
            time.sleep(0.02)
        raise TimeoutError("the condition did not come true")

    def committed(self) -> list[Path]:
        return sorted((self.home / "checkpoints").glob("*/manifest.json"))


def worker_pids(process: subprocess.Popen[str]) -> list[int]:
    """Read the process ids of several workers, by rank, off the notice that lists them."""
    assert process.stdout is not None
    for line in process.stdout:
        match = re.match(r"\d workers: processes ([\d, ]+)$", line)
        if match:
            return [int(pid) for pid in match[1].split(", ")]
    raise AssertionError("the run ended before it told its workers' processes")
