"""A machine that is about to go away: signals with a known time until the kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from typing import Any

import pytest
from processes import is_running
from toy_bucket import SLOW, Bucket
from toy_command import MODEL_DIR, Detcore, worker_pids

VARIABLES = (
    "DETCORE_GRACE_S",
    "SLURM_JOB_ID",
    "SLURM_JOB_END_TIME",
    "KUBERNETES_SERVICE_HOST",
)
# Only the checkpoints caused by signals, and the final checkpoint.
SELDOM = {"min_checkpoint_period": {"batches": 0}, "checkpoint_policy": "none"}


@pytest.fixture
def bucket(detcore: Detcore, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return Bucket(detcore)


def start(bucket: Bucket, **changes: Any) -> tuple[subprocess.Popen[str], int]:
    """Start a trial that trains for a minute; return it and its worker, which trains by then."""
    config = bucket.config(
        **{
            "searcher__max_length": {"batches": 600},
            "hyperparameters": {**SLOW, "pause_s": 0.1},
            **changes,
        }
    )
    process = bucket.detcore.start("run", config, MODEL_DIR)
    pid = bucket.detcore.worker_pid()
    assert process.stdout is not None
    for line in process.stdout:
        if "batch 10: validation" in line:
            return process, pid
    raise AssertionError("the run ended before its first validation")


def pause(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    """Send a pausing signal to a run; return its output."""
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 75, stdout
    return stdout


@pytest.mark.soak
def test_run_does_not_wait_for_late_save(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCORE_GRACE_S", "4")
    process, _ = start(bucket, min_checkpoint_period__batches=10)
    bucket.detcore.wait_for(bucket.committed)
    bucket.order(save_s=600.0)
    bucket.detcore.wait_for(lambda: bucket.is_saving_for(600.0))
    stdout = pause(process)
    assert "grace of 4 s (DETCORE_GRACE_S): " in stdout
    assert "s until the kill (1.5 s reserved for ending)" in stdout
    assert "is finished first" in stdout
    before = len(bucket.committed())
    assert before
    bucket.order()
    process = bucket.detcore.start("run", "--resume", 1)
    bucket.detcore.worker_pid()
    bucket.detcore.wait_for(lambda: len(bucket.committed()) > before)
    pause(process, signal.SIGINT)
    bucket.assert_all_whole()


def test_waiting_save_is_cancelled_before_kill(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCORE_GRACE_S", "4")
    process, _ = start(bucket, min_checkpoint_period__batches=5)
    bucket.order(save_s=600.0)
    bucket.detcore.wait_for(lambda: bucket.is_saving_for(600.0))
    (active_record,) = [record for record in bucket.records() if record.state == "ACTIVE"]
    bucket.detcore.wait_for(lambda: bucket.reported() == active_record.steps_completed + 5)
    time.sleep(0.5)  # between the report at that batch and the checkpoint there
    stdout = pause(process)
    assert "is finished first" in stdout


def test_save_within_grace_completes(bucket: Bucket) -> None:
    bucket.order(save_s=0.5)
    process, _ = start(bucket, preemption_grace_s=30, **SELDOM)
    stdout = pause(process)
    assert "grace of 30 s (preemption_grace_s): " in stdout
    assert "reserved for ending), the present state is saved" in stdout
    assert len(bucket.committed()) == 1
    bucket.assert_all_whole()


def test_save_in_progress_precedes_last_save(bucket: Bucket) -> None:
    bucket.order(save_s=2.0)
    process, _ = start(bucket, preemption_grace_s=30, min_checkpoint_period__batches=10)
    bucket.detcore.wait_for(lambda: bucket.is_saving_for(2.0))
    stdout = pause(process)
    (under_way,) = re.findall(r"the checkpoint of batch (\d+) is finished first", stdout)
    steps = sorted(record.steps_completed for record in bucket.records())
    assert {record.state for record in bucket.records()} == {"COMPLETED"}
    assert int(under_way) in steps
    assert steps[-1] > int(under_way)
    bucket.assert_all_whole()


def test_ctrl_c_has_no_grace_limit(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCORE_GRACE_S", "1")
    bucket.order(save_s=3.0)
    process, _ = start(bucket, **SELDOM)
    stdout = pause(process, signal.SIGINT)
    assert "until the kill" not in stdout
    assert len(bucket.committed()) == 1


@pytest.mark.parametrize("save_s", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("is_async", [True, False])
def test_kill_after_grace_keeps_earlier_checkpoints(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, save_s: float, is_async: bool
) -> None:
    expected = bucket.straight_run()
    monkeypatch.setenv("DETCORE_GRACE_S", "3")
    config = bucket.slow_config(checkpoint_async=is_async)
    process = bucket.detcore.start("run", config, MODEL_DIR)
    pid = bucket.detcore.worker_pid()
    before = len(bucket.committed())
    bucket.detcore.wait_for(lambda: len(bucket.committed()) > before)
    bucket.order(save_s=save_s)
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline and is_running(pid):
        time.sleep(0.01)
    for target_pid in (pid, process.pid):
        if is_running(target_pid):
            os.kill(target_pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert bucket.resumed_state(2) == expected


def test_workers_agree_on_last_save(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one worker receives the signal, and all end before it is killed."""
    monkeypatch.setenv("DETCORE_GRACE_S", "5")
    config = bucket.config(
        searcher__max_length__batches=600,
        hyperparameters={**SLOW, "pause_s": 0.1},
        resources={"slots_per_trial": 2},
    )
    process = bucket.detcore.start("run", config, MODEL_DIR)
    pids = worker_pids(process)
    bucket.detcore.wait_for(bucket.committed)
    bucket.order(save_s=600.0)
    os.kill(pids[1], signal.SIGTERM)
    stdout, _ = process.communicate(timeout=90)
    assert process.returncode == 75, stdout
    assert "grace of 5 s (DETCORE_GRACE_S): " in stdout
