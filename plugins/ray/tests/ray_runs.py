"""The `detcore` command, with experiments of the toy framework that run on a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from ray_nodes import RayNodes
from toy_command import MODEL_DIR, Detcore

from detcore.records import Database, TrialRecord

__all__ = ["BATCH", "SLOW", "RayRuns", "read_state"]

BATCH = {"global_batch_size": 8, "learning_rate": 0.05}
SLOW = {**BATCH, "pause_s": 0.05}
# Long enough for a busy machine.
_TIMEOUT_S = 200.0


def read_state(folder: Path) -> dict[str, Any]:
    """Return the toy framework's state of all workers in a checkpoint directory."""
    return {
        str(path.relative_to(folder)): json.loads(path.read_text())
        for path in sorted(folder.rglob("toy.json"))
    }


class RayRuns(Detcore):
    """The command; see `toy_command.Detcore`."""

    def __init__(self, tmp_path: Path, nodes: RayNodes) -> None:
        super().__init__(tmp_path)
        self.nodes = nodes

    def ray_config(self, *, launcher: dict[str, Any] | None = None, **changes: Any) -> Path:
        """Write an experiment file with this cluster as launcher."""
        options = {"name": "ray", "address": self.nodes.address, **(launcher or {})}
        return self.config(launcher=options, **changes)

    def begin(self, **changes: Any) -> subprocess.Popen[str]:
        """Start an experiment without waiting for its end."""
        return self.start("run", self.ray_config(**changes), MODEL_DIR)

    def state(self) -> dict[str, Any]:
        """Return the state in the first trial's latest checkpoint."""
        return read_state(self.home / "checkpoints" / self.latest(1))

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial's record."""
        with Database.open(f"sqlite:///{self.home / 'detcore.db'}") as database:
            return database.get_trial(trial_id)

    def latest(self, trial_id: int) -> str:
        """Return a trial's latest checkpoint."""
        with Database.open(f"sqlite:///{self.home / 'detcore.db'}") as database:
            checkpoint = database.latest_checkpoint(trial_id)
        assert checkpoint is not None
        return checkpoint.uuid

    def pids(self, trial_id: int = 1) -> list[int]:
        """Wait until a trial's workers run; return their process ids by rank."""
        path = self.home / f"experiments/{trial_id}/trials/{trial_id}/ray-workers.json"

        def find() -> list[int] | None:
            with contextlib.suppress(FileNotFoundError):
                processes = json.loads(path.read_text())["processes"]
                return processes and [process["pid"] for process in processes]
            return None

        pids = self.wait_for(find, timeout_s=_TIMEOUT_S)
        assert pids
        return pids

    def has_checkpoints(self, count: int) -> None:
        """Wait until `count` checkpoints are committed."""
        self.wait_for(lambda: len(self.committed()) >= count, timeout_s=_TIMEOUT_S)
