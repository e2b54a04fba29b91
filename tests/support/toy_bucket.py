"""Slow storage of the toy plugin, and experiments that use it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from toy_command import MODEL_DIR, Detcore

from detcore.checkpoint import list_committed, verify_checkpoint
from detcore.records import ingest_event_logs
from detcore_storage import FsspecStorage

__all__ = ["BATCH", "SLOW", "Bucket"]

BATCH = {"global_batch_size": 8, "learning_rate": 0.05}
SLOW = {**BATCH, "pause_s": 0.05}


class Bucket:
    """A slow storage directory. `order` sets its delay, also while a trial runs."""

    def __init__(self, detcore: Detcore) -> None:
        self.detcore = detcore
        self.root = detcore.tmp_path / "bucket"
        self.orders = detcore.tmp_path / "orders.json"
        self.setting = {
            "type": "slow",
            "root": str(self.root),
            "orders": str(self.orders),
            "save_trial_latest": 1000,
        }

    def order(self, **orders: object) -> None:
        beside = self.orders.with_suffix(".new")
        beside.write_text(json.dumps(orders))
        os.replace(beside, self.orders)

    def config(self, **changes: Any) -> Path:
        return self.detcore.config(
            **{"checkpoint_storage": self.setting, "hyperparameters": SLOW, **changes}
        )

    def slow_config(self, **changes: Any) -> Path:
        """Write an experiment that is slow after its first checkpoint. See `Detcore.slow`."""
        return self.config(hyperparameters=self.detcore.slow(pause_from=10), **changes)

    def storage(self) -> FsspecStorage:
        return FsspecStorage(self.root.as_uri())

    def committed(self) -> list[str]:
        return list_committed(self.storage())

    def begun(self) -> list[str]:
        """Checkpoints recorded as in progress."""
        return [record.uuid for record in self.records() if record.state == "ACTIVE"]

    def is_saving_for(self, save_s: float) -> bool:
        """Whether a save with this delay has started."""
        begun = self.orders.with_suffix(".begun")
        return begun.exists() and str(save_s) in begun.read_text().split()

    def records(self) -> list[Any]:
        with self.detcore.database() as database:
            ingest_event_logs(database, self.detcore.home)
            return database.list_checkpoints()

    def reported(self) -> int:
        """Return the last batch reported by the first trial."""
        with self.detcore.database() as database:
            ingest_event_logs(database, self.detcore.home)
            return max(metrics.steps_completed for metrics in database.metrics(1, "training"))

    def state(self, uuid: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.root / uuid / "toy.json").read_text())
        return state

    def assert_all_whole(self) -> None:
        """Check that no save is in progress, and that records and files agree."""
        states = {record.uuid: record.state for record in self.records()}
        assert set(states.values()) <= {"COMPLETED", "DELETED"}, states
        completed = {uuid for uuid, state in states.items() if state == "COMPLETED"}
        # Except the probe directory, which this storage keeps.
        there = {path.name for path in self.root.glob("[!.]*") if path.is_dir()}
        assert set(self.committed()) == completed == there
        for uuid in completed:
            assert verify_checkpoint(self.storage(), uuid) == []

    def straight_run(self) -> dict[str, Any]:
        """Train without interruption and return the final state."""
        finished = self.detcore.run_checked(
            "run", self.config(hyperparameters=BATCH), MODEL_DIR, "--json"
        )
        return self.state(finished.summary["trials"][0]["latest_checkpoint"])

    def resumed_state(self, experiment: int) -> dict[str, Any]:
        """Resume an experiment with fast storage until its end, and return the final state."""
        self.order()
        self.detcore.hurry()
        finished = self.detcore.run_checked("run", "--resume", experiment, "--json")
        self.assert_all_whole()
        return self.state(finished.summary["trials"][0]["latest_checkpoint"])
