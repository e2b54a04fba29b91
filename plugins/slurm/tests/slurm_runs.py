"""The `detcore` command, with experiments of the toy framework that run on a Slurm cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from slurm_cluster import SlurmCluster
from toy_command import MODEL_DIR, Detcore

from detcore.records import TrialRecord

TIMEOUT_S = 200.0
BATCH = {"global_batch_size": 8, "learning_rate": 0.05}


class SlurmRuns(Detcore):
    """The command; see `toy_command.Detcore`."""

    def __init__(self, tmp_path: Path, cluster: SlurmCluster) -> None:
        super().__init__(tmp_path)
        self.cluster = cluster

    def variables(self) -> dict[str, str]:
        return {**super().variables(), **self.cluster.variables}

    def slurm_config(self, *, launcher: dict[str, Any] | None = None, **changes: Any) -> Path:
        """Write an experiment file with this cluster as launcher."""
        options = {"name": "slurm", "poll_s": 0.5, **(launcher or {})}
        return self.config(launcher=options, **changes)

    def begin(self, **changes: Any) -> subprocess.Popen[str]:
        """Start an experiment without waiting for its end."""
        return self.start("run", self.slurm_config(**changes), MODEL_DIR)

    def finish(self, process: subprocess.Popen[str], code: int = 0) -> str:
        """Wait for the end of a command, and return its output."""
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, stdout + stderr
        return stdout + stderr

    def wait_for_checkpoints(self, count: int) -> None:
        self.wait_for(lambda: len(self.committed()) >= count, timeout_s=TIMEOUT_S)

    def wait_for_steps(self, steps: int) -> None:
        """Wait until the trial has reported the training of a step."""

        def has_trained() -> bool:
            with self.database() as database:
                return any(row.steps_completed >= steps for row in database.metrics(1, "training"))

        self.wait_for(has_trained, timeout_s=TIMEOUT_S)

    def saved_steps(self) -> int:
        """Return the step of the trial's latest checkpoint."""
        with self.database() as database:
            checkpoint = database.latest_checkpoint(1)
        assert checkpoint is not None
        return checkpoint.steps_completed

    def wait_for_state(self, job: int, state: str) -> None:
        """Wait until a job has a state."""
        self.wait_for(lambda: (job, state) in self.cluster.list_jobs(), timeout_s=TIMEOUT_S)

    def wait_for_job(self, *, state: str = "RUNNING", other_than: int = 0) -> int:
        """Wait until a job has a state, and return its id."""

        def find() -> int | None:
            jobs = [job for job, name in self.cluster.list_jobs() if name == state]
            return next((job for job in jobs if job != other_than), None)

        job = self.wait_for(find, timeout_s=TIMEOUT_S)
        assert job
        return int(job)

    def trial(self, trial_id: int = 1) -> TrialRecord:
        with self.database() as database:
            return database.get_trial(trial_id)

    def state(self, trial_id: int = 1) -> dict[str, Any]:
        """Return the state of all workers in a trial's latest checkpoint."""
        with self.database() as database:
            checkpoint = database.latest_checkpoint(trial_id)
        assert checkpoint is not None
        folder = self.home / "checkpoints" / checkpoint.uuid
        return {
            str(path.relative_to(folder)): json.loads(path.read_text())
            for path in sorted(folder.rglob("toy.json"))
        }

    def kill_detached_runner(self) -> None:
        """Kill the runner that `detcore run --detach` has started, and wait for its end."""
        with self.database() as database:
            runner = database.find_runner(1)
            assert runner is not None
            assert runner.pid is not None
            os.kill(runner.pid, signal.SIGKILL)
            self.wait_for(lambda: database.find_runner(1) is None)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a runner."""
        process.kill()
        process.communicate()

    def check_records(self, trial_id: int = 1) -> None:
        """Check that no report is missing or recorded twice, and that no job is left."""
        self.wait_for(lambda: not self.cluster.list_jobs(), timeout_s=TIMEOUT_S)
        with self.database() as database:
            validated = [row.steps_completed for row in database.metrics(trial_id, "validation")]
            assert validated == [10, 20, 30, 40]
            # A trial that ends within a unit of five batches reports there as well.
            steps = [row.steps_completed for row in database.metrics(trial_id, "training")]
            assert steps == sorted({*steps, *range(5, 45, 5)})
