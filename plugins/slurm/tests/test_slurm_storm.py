"""A trial survives random disturbances, bit for bit and without a counted restart."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import SlurmRuns
from toy_command import MODEL_DIR, Detcore

LENGTH = 4000
TRIAL = {
    "searcher__max_length": {"batches": LENGTH},
    "min_validation_period": {"batches": 100},
    "min_checkpoint_period": {"batches": 10},
    "max_restarts": 0,
}


class Storm:
    """Disturbs a trial until it may end."""

    def __init__(self, detcore: SlurmRuns, cluster: SlurmCluster, seed: int) -> None:
        self.detcore = detcore
        self.cluster = cluster
        self.random = random.Random(seed)
        self.output: list[str] = []
        self.done: list[str] = []
        slow = detcore.slow(pause_from=20)
        self.runner = detcore.begin(hyperparameters=slow, **TRIAL)

    def disturb(self) -> None:
        """Wait for a running job, and disturb it."""
        job = self.wait_for_running_job()
        time.sleep(self.random.uniform(0.0, 4.0))
        names = ("preempt", "limit", "cancel", "signal", "requeue", "node", "controller", "kill")
        name = self.random.choice(names)
        self.done.append(name)
        print(time.strftime("%X"), name, job, flush=True)
        getattr(self, name)(job)

    def wait_for_running_job(self) -> int:
        def find() -> int | None:
            if self.runner.poll() is not None:
                stdout, stderr = self.runner.communicate()
                self.output.append(stdout + stderr)
                assert self.runner.returncode in (75, -9), "".join(self.output)
                self.runner = self.detcore.start("run", "--resume", 1)
            self.cluster.release_drained()
            for job, _ in self.cluster.list_jobs(states="PD"):
                # A requeued job keeps the limit of `limit`, which would signal it as it starts.
                self.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=60", check=False)
            jobs = self.cluster.list_jobs(states="R")
            return next((job for job, _ in jobs), None)

        deadline = time.monotonic() + 200
        while (job := find()) is None:
            assert time.monotonic() < deadline, self.cluster.describe()
            time.sleep(0.2)
        return job

    def preempt(self, job: int) -> None:
        urgent = self.cluster.submit(
            "--partition=high", "--nodes=2", "--exclusive", "--wrap=sleep 60"
        )
        time.sleep(self.random.uniform(1.0, 8.0))
        self.cluster.run("scancel", str(urgent))

    def limit(self, job: int) -> None:
        self.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2", check=False)

    def cancel(self, job: int) -> None:
        self.cluster.run("scancel", str(job), check=False)

    def signal(self, job: int) -> None:
        number = self.random.choice(["USR1", "TERM"])
        self.cluster.run("scancel", f"--signal={number}", str(job), check=False)

    def requeue(self, job: int) -> None:
        self.cluster.run("scontrol", "requeue", str(job), check=False)

    def node(self, job: int) -> None:
        name = self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%N", check=False).strip()
        if name in ("n1", "n2"):
            self.cluster.kill_node(name)
            time.sleep(self.random.uniform(0.0, 25.0))
            self.cluster.start_node(name)

    def controller(self, job: int) -> None:
        # slurmctld saves its state every five seconds. A controller that has lost the start of a
        # job drains the node of that job.
        time.sleep(6.0)
        self.cluster.kill_controller()
        time.sleep(self.random.uniform(0.0, 6.0))
        self.cluster.start_controller()

    def kill(self, job: int) -> None:
        self.runner.kill()

    def finish(self) -> None:
        """Let the trial end undisturbed."""
        self.detcore.hurry()
        while True:
            try:
                stdout, stderr = self.runner.communicate(timeout=400)
            except subprocess.TimeoutExpired:
                self.runner.kill()
                raise
            self.output.append(stdout + stderr)
            if self.runner.returncode == 0:
                return
            assert self.runner.returncode in (75, -9), "".join(self.output)
            self.runner = self.detcore.start("run", "--resume", 1)


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("seed", "count"), [(1, 8), (3, 50)])
def test_storm_loses_no_step(
    detcore: SlurmRuns, cluster: SlurmCluster, tmp_path: Path, seed: int, count: int
) -> None:
    storm = Storm(detcore, cluster, seed)
    for _ in range(count):
        storm.disturb()
    storm.finish()
    output = "".join(storm.output)
    with Detcore(tmp_path / "local") as local:
        changes = {**TRIAL, "hyperparameters": {"global_batch_size": 8, "learning_rate": 0.05}}
        finished = local("run", local.config(**changes), MODEL_DIR, "--json", timeout_s=400)
        assert finished.code == 0, finished.output
        expected = local.toy_state(finished.summary["trials"][0]["latest_checkpoint"])
    assert detcore.state()["toy.json"] == expected, output
    assert detcore.trial().num_restarts == 0, output
    with detcore.database() as database:
        validated = [row.steps_completed for row in database.metrics(1, "validation")]
        steps = [row.steps_completed for row in database.metrics(1, "training")]
    assert validated == list(range(100, LENGTH + 1, 100)), output
    assert steps == sorted({*steps, *range(5, LENGTH + 1, 5)}), output
    detcore.wait_for(lambda: not cluster.list_jobs(), timeout_s=60)
    print(json.dumps(storm.done))
