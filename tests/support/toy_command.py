"""The `detcore` command with a separate home, and experiments of the toy framework."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from detcore.records import Database
from detcore_testing import DetcoreCommand, Finished

__all__ = [
    "MODEL_DIR", "TESTS", "TOY_PLUGIN", "Detcore", "Finished", "NoWorkerError", "OnPostgresql",
    "toy_config", "worker_pids",
]  # fmt: skip

TESTS = Path(__file__).parents[1]
TOY_PLUGIN = TESTS / "toy_plugin"
MODEL_DIR = TESTS / "run" / "model"


def toy_config(**changes: Any) -> dict[str, Any]:
    """Return an experiment of the toy framework. Double underscores in keys mean nesting."""
    plain: dict[str, Any] = {
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
    return plain


class NoWorkerError(AssertionError):
    """Raised when a run ends before it reports its worker's process id."""


class Detcore(DetcoreCommand):
    """The `detcore` command with a separate home and the toy framework."""

    def __init__(self, tmp_path: Path, *, site: Path | None = None) -> None:
        super().__init__(tmp_path, python_path=[TOY_PLUGIN, *([site] if site else [])])
        self.tmp_path = tmp_path

    def config(self, **changes: Any) -> Path:
        """Write an experiment file. Double underscores in keys mean nesting.

        By default trials are not restarted and checkpoints are not deleted.
        """
        checkpoints = self.home / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        storage = {
            "type": "directory",
            "container_path": str(checkpoints),
            "save_trial_latest": 1000,
        }
        return self.write_config(toy_config(**{"checkpoint_storage": storage, **changes}))

    def run_checked(self, *words: object) -> Finished:
        """Run a command that must succeed."""
        finished = self(*words)
        assert finished.code == 0, finished.output
        return finished

    def run_failing(self, *words: object) -> Finished:
        """Run a command that must end with exit code 1."""
        finished = self(*words)
        assert finished.code == 1, finished.output
        return finished

    def slow(self, *, pause_from: int) -> dict[str, Any]:
        """Return hyperparameters that slow a trial down from a batch until `hurry`.

        This leaves several seconds for a fault, also on a busy machine.
        """
        self._slow.touch()
        return {
            "global_batch_size": 8,
            "learning_rate": 0.05,
            "pause_s": 0.3,
            "pause_from": pause_from,
            "pause_while": str(self._slow),
        }

    def hurry(self) -> None:
        """Stop slowing trials down."""
        self._slow.unlink(missing_ok=True)

    @property
    def _slow(self) -> Path:
        return self.tmp_path / "slow"

    def toy_state(self, uuid: str) -> dict[str, Any]:
        """Read the toy framework's state from a checkpoint in the default storage."""
        path = self.home / "checkpoints" / uuid / "toy.json"
        state: dict[str, Any] = json.loads(path.read_text())
        return state

    def write_code(self, name: str, text: str) -> Path:
        """Write a module or script, and return its directory."""
        folder = self.tmp_path / "code"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return folder

    def database(self) -> Database:
        """Open the records."""
        return Database.open(f"sqlite:///{self.home / 'detcore.db'}")

    def worker_pid(self) -> int:
        """Read the worker's process id from the first line of the last command."""
        process = self.started[-1]
        assert process.stdout is not None
        words = []
        for line in process.stdout:
            words.append(line)
            if "; process " in line:
                return int(line.rsplit(" ", 1)[1])
        _, stderr = process.communicate(timeout=60)
        raise NoWorkerError("".join(words) + stderr)

    def committed(self) -> list[Path]:
        return sorted((self.home / "checkpoints").glob("*/manifest.json"))


class OnPostgresql(Detcore):
    """The command with a separate record database."""

    url = ""

    def variables(self) -> dict[str, str]:
        return {**super().variables(), "DETCORE_DB": self.url}


def worker_pids(process: subprocess.Popen[str]) -> list[int]:
    """Read the process ids of several workers by rank from the notice that lists them."""
    assert process.stdout is not None
    for line in process.stdout:
        match = re.match(r"\d workers: processes ([\d, ]+)$", line)
        if match:
            return [int(pid) for pid in match[1].split(", ")]
    raise AssertionError("the run ended before it told its workers' processes")
