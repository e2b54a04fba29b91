"""A trial is preempted, reaches its time limit, loses its node, or loses its runner."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import BATCH, SlurmRuns
from toy_command import MODEL_DIR, Detcore


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The final state of an uninterrupted trial on this machine."""
    with Detcore(tmp_path_factory.mktemp("expected")) as detcore:
        finished = detcore("run", detcore.config(hyperparameters=BATCH), MODEL_DIR, "--json")
        assert finished.code == 0, finished.output
        return detcore.toy_state(finished.summary["trials"][0]["latest_checkpoint"])


def test_preempted_trial_continues_exactly(
    detcore: SlurmRuns, cluster: SlurmCluster, expected: dict[str, Any]
) -> None:
    """A partition of higher priority takes both nodes. The trial saves, and its job is requeued."""
    process = detcore.begin(hyperparameters=detcore.slow(pause_from=15), max_restarts=0)
    job = detcore.wait_for_job()
    detcore.wait_for_checkpoints(1)
    urgent = cluster.submit("--partition=high", "--nodes=2", "--exclusive", "--wrap=sleep 600")
    detcore.wait_for_state(job, "PENDING")
    detcore.hurry()
    cluster.run("scancel", str(urgent))
    output = detcore.finish(process)
    assert f"trial 1: job {job} was signaled by Slurm, after a save. It continues" in output
    assert detcore.state()["toy.json"] == expected
    assert detcore.trial().num_restarts == 0
    assert max(number for number, _ in cluster.list_jobs(states="all")) == urgent
    detcore.check_records()


def test_time_limit_continues_in_follow_up_job(
    detcore: SlurmRuns, cluster: SlurmCluster, expected: dict[str, Any]
) -> None:
    """Without requeue, the trial continues in a job that depends on the first."""
    process = detcore.begin(
        hyperparameters={**detcore.slow(pause_from=15), "pause_s": 2.5},
        max_restarts=0,
        launcher={"time": "1", "signal_s": 10, "requeue": False},
    )
    first = detcore.wait_for_job()
    second = detcore.wait_for_job(other_than=first)
    detcore.hurry()
    output = detcore.finish(process)
    assert f"trial 1: job {first} is near its time limit, after a save. It continues" in output
    assert "Requeue=0" in cluster.run("scontrol", "show", "job", str(second))
    assert detcore.state()["toy.json"] == expected
    assert detcore.trial().num_restarts == 0
    detcore.check_records()


def test_killed_runner_finds_its_job_again(
    detcore: SlurmRuns, cluster: SlurmCluster, expected: dict[str, Any]
) -> None:
    """The job trains on without a runner, and the next runner follows the same run."""
    process = detcore.begin(hyperparameters=detcore.slow(pause_from=5))
    job = detcore.wait_for_job()
    detcore.wait_for_checkpoints(1)
    process.kill()
    process.wait()
    detcore.wait_for_checkpoints(2)
    resumed = detcore.start("run", "--resume", 1)
    detcore.wait_for_checkpoints(3)
    detcore.hurry()
    output = detcore.finish(resumed)
    assert f"slurm: following job {job}" in output
    assert (detcore.trial().run_id, detcore.trial().job) == (1, str(job))
    assert detcore.state()["toy.json"] == expected
    detcore.check_records()


def test_dead_node_restarts_trial(
    detcore: SlurmRuns, cluster: SlurmCluster, expected: dict[str, Any]
) -> None:
    process = detcore.begin(
        hyperparameters=detcore.slow(pause_from=15), launcher={"lines": ["--nodelist=n2"]}
    )
    job = detcore.wait_for_job()
    detcore.wait_for_checkpoints(1)
    cluster.kill_node("n2")
    try:
        detcore.wait_for_state(job, "PENDING")
    finally:
        cluster.start_node("n2")
    detcore.hurry()
    output = detcore.finish(process)
    assert "was requeued by Slurm, without a save. It continues" in output
    assert detcore.state()["toy.json"] == expected
    detcore.check_records()


def test_canceled_job_pauses_trial(
    detcore: SlurmRuns, cluster: SlurmCluster, expected: dict[str, Any]
) -> None:
    """The trial saves after scancel, and the runner names the command to continue."""
    process = detcore.begin(hyperparameters=detcore.slow(pause_from=15))
    job = detcore.wait_for_job()
    detcore.wait_for_steps(15)
    cluster.run("scancel", str(job))
    output = detcore.finish(process, code=75)
    assert detcore.saved_steps() >= 15
    assert f"slurm: job {job} was canceled with scancel, by you or another user" in output
    detcore.hurry()
    finished = detcore("run", "--resume", 1, "--json")
    assert finished.code == 0, finished.output
    assert detcore.state()["toy.json"] == expected


def test_jobs_of_killed_runner_are_canceled(detcore: SlurmRuns) -> None:
    """The records name the job, which keeps the experiment. Cancelling lets it save."""
    slow = {**detcore.slow(pause_from=15), "pause_s": 5}
    config = detcore.slurm_config(hyperparameters=slow)
    assert detcore("run", config, MODEL_DIR, "--detach").code == 0
    job = detcore.wait_for_job()
    detcore.wait_for_steps(15)
    detcore.kill_detached_runner()
    described = json.loads(detcore("experiment", "describe", 1, "--json").stdout)
    assert [(trial["id"], trial["job"]) for trial in described["trials"]] == [(1, str(job))]
    assert f"{job}" in detcore("experiment", "describe", 1).stdout
    refused = detcore("experiment", "delete", 1, "--yes")
    assert refused.code == 1
    assert f"its jobs may still run: {job}" in refused.output
    refused = detcore("run", "--resume", 1, "--launcher", "local")
    assert refused.code == 1
    assert f"the jobs {job} of experiment 1 may still run" in refused.output
    canceled = detcore("experiment", "cancel", 1)
    assert (canceled.code, detcore.trial().state.value) == (0, "CANCELED"), canceled.output
    detcore.wait_for(lambda: not detcore.cluster.list_jobs(), timeout_s=60)
    assert detcore.saved_steps() >= 15, "the trial has not saved at its end"
    assert detcore("experiment", "delete", 1, "--yes").code == 0


def test_drained_node_moves_trial(
    detcore: SlurmRuns, cluster: SlurmCluster, expected: dict[str, Any]
) -> None:
    """Slurm lets jobs run to their end on a drained node. The trial saves and leaves it."""
    process = detcore.begin(hyperparameters=detcore.slow(pause_from=15), max_restarts=0)
    job = detcore.wait_for_job()
    detcore.wait_for_checkpoints(1)
    (node,) = cluster.run("squeue", "--noheader", "--format=%N", f"--jobs={job}").split()
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    try:
        output = detcore.finish(process)
    finally:
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert f"job {job} ran on a node that is drained, after a save. It continues" in output
    assert detcore.state()["toy.json"] == expected
    detcore.check_records()


@pytest.mark.soak
def test_slow_saves_are_signaled_earlier(detcore: SlurmRuns, cluster: SlurmCluster) -> None:
    """The next job requests its signal twice the longest save before its time limit."""
    hyperparameters = {**detcore.slow(pause_from=15), "write_s": 6}
    process = detcore.begin(
        hyperparameters=hyperparameters, launcher={"signal_s": 10, "time": "10"}
    )
    first = detcore.wait_for_job()
    detcore.wait_for_checkpoints(1)
    cluster.run("scancel", "--batch", "--signal=TERM", str(first))
    detcore.wait_for_job(other_than=first)
    detcore.hurry()
    detcore.finish(process)
    folder = detcore.home / "experiments/1/trials/1/slurm"
    leads_s = [
        int((folder / f"run-{number}/batch.sh").read_text().split("B:USR1@")[1].split()[0])
        for number in (1, 2)
    ]
    assert leads_s[0] == 10
    assert leads_s[1] >= 12


@pytest.mark.soak
def test_job_is_submitted_when_controller_returns(
    detcore: SlurmRuns, cluster: SlurmCluster, expected: dict[str, Any]
) -> None:
    """A worker dies while slurmctld is down. The failure counts, and the run does not end."""
    process = detcore.begin(hyperparameters=detcore.slow(pause_from=15), max_restarts=1)
    detcore.wait_for_job()
    detcore.wait_for_checkpoints(1)
    log = detcore.home / "experiments/1/trials/1/slurm/run-1/rank-0.jsonl"
    pids = [json.loads(line).get("pid") for line in log.read_text().splitlines()]
    output = detcore.home / "experiments/1/trials/1/log.jsonl"
    cluster.kill_controller()
    try:
        os.kill(next(filter(None, pids)), signal.SIGKILL)
        detcore.wait_for(
            lambda: output.exists() and "is submitted later" in output.read_text(), timeout_s=90
        )
    finally:
        cluster.start_controller()
    detcore.hurry()
    detcore.finish(process)
    assert detcore.trial().num_restarts == 1
    assert detcore.state()["toy.json"] == expected
    detcore.check_records()
