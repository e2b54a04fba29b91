"""Asynchronous saves with real processes and a slow storage."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest
from processes import is_running
from toy_bucket import BATCH, Bucket
from toy_command import MODEL_DIR, Detcore, worker_pids

from detcore.checkpoint import read_manifest


@pytest.fixture
def bucket(detcore: Detcore) -> Bucket:
    return Bucket(detcore)


@pytest.fixture
def expected(bucket: Bucket) -> dict[str, Any]:
    """The final state of experiment 1, which nothing interrupts."""
    return bucket.straight_run()


def test_training_continues_during_async_save(bucket: Bucket) -> None:
    bucket.order(save_s=1.0)
    finished = bucket.detcore.run_checked("run", bucket.config(), MODEL_DIR)
    lines = [line for line in finished.stdout.splitlines() if "checkpoint saved: " in line]
    # Saves at batches 10, 20, 30 and 40; some are reported after training has continued.
    assert len(lines) == 4
    # Each line names one batch: the checkpoint's.
    batches = [re.findall(r"batch (\d+)", line) for line in lines]
    assert batches == [["10"], ["20"], ["30"], ["40"]]
    assert all("training stalled " in line and ", saved in " in line for line in lines)
    bucket.assert_all_whole()


@pytest.mark.parametrize("is_async", [True, False])
def test_async_saves_do_not_change_results(
    bucket: Bucket, expected: dict[str, Any], is_async: bool
) -> None:
    bucket.order(save_s=0.2)
    config = bucket.config(checkpoint_async=is_async)
    finished = bucket.detcore.run_checked("run", config, MODEL_DIR, "--json")
    latest = finished.summary["trials"][0]["latest_checkpoint"]
    assert bucket.state(latest) == expected
    (tensor,) = read_manifest(bucket.storage(), latest).tensors
    assert (tensor.name, tensor.shape, tensor.file) == ("weights", (3,), "toy.json")
    bucket.assert_all_whole()


@pytest.mark.parametrize("victim", ["worker", "runner"])
def test_kill_during_async_save_resumes(
    bucket: Bucket, expected: dict[str, Any], victim: str
) -> None:
    process = bucket.detcore.start("run", bucket.slow_config(), MODEL_DIR)
    pid = bucket.detcore.worker_pid()
    before = len(bucket.committed())
    bucket.detcore.wait_for(lambda: len(bucket.committed()) > before)
    bucket.order(save_s=60.0)
    bucket.detcore.wait_for(lambda: bucket.is_saving_for(60.0))
    os.kill(pid if victim == "worker" else process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    bucket.detcore.wait_for(lambda: not is_running(pid))
    assert len(bucket.begun()) == 1
    assert bucket.resumed_state(2) == expected


def test_async_failure_is_raised_at_next_boundary(bucket: Bucket) -> None:
    bucket.order(fail=True)
    config = bucket.config(searcher__max_length__batches=100_000, min_validation_period__batches=0)
    finished = bucket.detcore.run_failing("run", config, MODEL_DIR)
    assert f"the bucket {bucket.root.as_uri()} is gone" in finished.stdout
    bucket.assert_all_whole()
    assert bucket.committed() == []


@pytest.mark.soak
def test_two_workers(bucket: Bucket) -> None:
    slots = {"slots_per_trial": 2}
    straight = bucket.config(hyperparameters=BATCH, resources=slots)
    finished = bucket.detcore.run_checked("run", straight, MODEL_DIR, "--json")
    expected = bucket.state(finished.summary["trials"][0]["latest_checkpoint"])
    process = bucket.detcore.start("run", bucket.slow_config(resources=slots), MODEL_DIR)
    pids = worker_pids(process)
    before = len(bucket.committed())
    bucket.detcore.wait_for(lambda: len(bucket.committed()) > before)
    bucket.order(save_s=60.0)
    bucket.detcore.wait_for(lambda: bucket.is_saving_for(60.0))
    os.kill(pids[0], signal.SIGKILL)
    process.communicate(timeout=60)
    assert bucket.resumed_state(2) == expected


def test_chief_save_failure_ends_all_workers(bucket: Bucket) -> None:
    bucket.order(fail=True)
    config = bucket.config(resources={"slots_per_trial": 2})
    finished = bucket.detcore.run_failing("run", config, MODEL_DIR)
    assert "is gone" in finished.stdout
