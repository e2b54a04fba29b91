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

__all__ = ["BATCH", "SLOW", "RayRuns", "whole_state"]

BATCH = {"global_batch_size": 8, "learning_rate": 0.05}
SLOW = {**BATCH, "pause_s": 0.05}
# For a machine on which much else runs.
_TIMEOUT_S = 200.0


def whole_state(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint's folder holds of the toy framework, of all workers."""
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
        """Write an experiment file that runs on the cluster."""
        given = {"name": "ray", "address": self.nodes.address, **(launcher or {})}
        return self.config(launcher=given, **changes)

    def begin(self, **changes: Any) -> subprocess.Popen[str]:
        """Start an experiment, and return at once."""
        return self.start("run", self.ray_config(**changes), MODEL_DIR)

    def state(self) -> dict[str, Any]:
        """Return what the latest checkpoint of the first trial holds."""
        return whole_state(self.home / "checkpoints" / self.latest(1))

    def trial(self, trial_id: int) -> TrialRecord:
        """Return a trial's record."""
        with Database.open(f"sqlite:///{self.home / 'detcore.db'}") as database:
            return database.get_trial(trial_id)

    def latest(self, trial_id: int) -> str:
        """Return a trial's latest checkpoint."""
        with Database.open(f"sqlite:///{self.home / 'detcore.db'}") as database:
            found = database.latest_checkpoint(trial_id)
        assert found is not None
        return found.uuid

    def pids(self, trial_id: int = 1) -> list[int]:
        """Wait until the workers of a trial run; return their process ids by rank."""
        path = self.home / f"experiments/{trial_id}/trials/{trial_id}/ray-workers.json"

        def find() -> list[int] | None:
            with contextlib.suppress(FileNotFoundError):
                found = json.loads(path.read_text())["processes"]
                return found and [process["pid"] for process in found]
            return None

        found = self.wait_for(find, timeout_s=_TIMEOUT_S)
        assert found
        return found

    def has_checkpoints(self, count: int) -> None:
        """Wait until there are so many."""
        self.wait_for(lambda: len(self.committed()) >= count, timeout_s=_TIMEOUT_S)
