"""Records and checkpoints for client tests, with each kind of transport."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.checkpoint import CheckpointContext
from detcore.distributed import DistributedContext
from detcore.records import Database, MetricRecord, RunnerLock
from detcore.storage import LocalStorage
from detcore.types import ExperimentState

__all__ = ["ClientStore"]

FILES: dict[str, str] = {"weights.txt": "1 2 3", "code/model.py": "class Model: ...\n"}


@dataclasses.dataclass
class ClientStore:
    """Records written directly to a directory, and real checkpoints."""

    home: Path
    database: Database
    locks: dict[int, RunnerLock] = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def storage(self) -> LocalStorage:
        """Checkpoint storage."""
        return LocalStorage(self.home / "checkpoints")

    def files(self, uuid: str) -> Path:
        """Directory of a checkpoint."""
        return self.home / "checkpoints" / uuid

    def experiment(
        self,
        *,
        metric: str = "loss",
        smaller_is_better: bool = True,
        state: ExperimentState = ExperimentState.COMPLETED,
        **config: Any,
    ) -> int:
        """Record an experiment."""
        searcher = {"name": "single", "metric": metric, "smaller_is_better": smaller_is_better}
        experiment_id = self.database.create_experiment(
            config={"searcher": searcher, **config},
            config_text=None,
            model_dir=str(self.home),
            name="test",
        )
        if state is ExperimentState.RUNNING:
            self.take_lock(experiment_id)
        else:
            self.database.set_experiment_state(experiment_id, state)
        return experiment_id

    def take_lock(self, experiment_id: int) -> None:
        """Hold the runner lock of an experiment until `release_lock`."""
        lock = self.database.open_lock(experiment_id, self.home)
        assert lock.acquire()
        self.locks[experiment_id] = lock

    def release_lock(self, experiment_id: int) -> None:
        """Release the lock, as if the runner had exited."""
        self.locks.pop(experiment_id).close()

    def trial(self, experiment_id: int, **hparams: Any) -> int:
        """Record a trial and create its directory."""
        trial_id = self.database.create_trial(experiment_id=experiment_id, hparams=hparams, seed=0)
        folder = self.home / "experiments" / str(experiment_id) / "trials" / str(trial_id)
        folder.mkdir(parents=True)
        self.database.set_trial_dir(trial_id, str(folder))
        return trial_id

    def report(
        self, trial_id: int, steps: int, metrics: Mapping[str, Any], *, kind: str = "validation"
    ) -> None:
        """Record a metric report."""
        record = MetricRecord(
            trial_id=trial_id,
            run_id=1,
            kind=kind,
            steps_completed=steps,
            metrics=metrics,
            n_records=10 if kind == "validation" else None,
        )
        self.database.add_metrics([record])

    def checkpoint(
        self,
        trial_id: int,
        steps: int,
        metrics: Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, str] = FILES,
        **metadata: Any,
    ) -> str:
        """Save a checkpoint and report a validation at its step."""
        source = self.home / "source"
        for name, text in files.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        context = CheckpointContext(
            storage=self.storage,
            distributed=DistributedContext(),
            database=self.database,
            trial_id=trial_id,
        )
        uuid = context.upload(
            source,
            {"steps_completed": steps, "framework": "toy"} | metadata,
            selector=lambda name: name in files,
        )
        if metrics is not None:
            self.report(trial_id, steps, metrics)
        return uuid

    def one_checkpoint(self, **metadata: Any) -> str:
        """Save a checkpoint of a new trial."""
        return self.checkpoint(self.trial(self.experiment(), rate=0.1), 10, {"loss": 1}, **metadata)
