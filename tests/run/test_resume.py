"""Interrupted and killed runs, gone on with."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until_gone
from toy_command import MODEL_DIR, Detcore, NoWorkerError, worker_pids

from detcore.errors import RunError
from detcore.runner import _settle, experiment_lock

IN_A_LONG_BATCH = """
import time
from pathlib import Path
import numpy as np
from detcore_toy import ToyTrial

class Line(ToyTrial):
    def build_data(self):
        return np.zeros((96, 3)), np.zeros(96)

    def on_batch(self, step):
        Path("in-the-batch").touch()
        time.sleep(600)
"""


def straight_run(detcore: Detcore) -> dict[str, Any]:
    """Train without interruption and return the final state."""
    finished = detcore.run_checked("run", detcore.config(), MODEL_DIR, "--json")
    return detcore.toy_state(finished.summary["trials"][0]["latest_checkpoint"])


def endless(detcore: Detcore) -> Path:
    """Write an experiment that does not end by itself."""
    return detcore.config(hyperparameters__pause_s=0.02, searcher__max_length__batches=100_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_checkpoints_at_the_next_batch_and_says_how_to_resume(
    detcore: Detcore, number: signal.Signals
) -> None:
    expected = straight_run(detcore)
    slow = detcore.slow(pause_from=10)
    process = detcore.start("run", detcore.config(hyperparameters=slow), MODEL_DIR)
    detcore.worker_pid()
    detcore.wait_for(lambda: len(detcore.committed()) > 4)
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    detcore.hurry()
    assert "detcore run --resume 2" in stdout
    assert "experiment 2: paused" in stdout
    # Known before the trial has ended: more than 10 of 40 batches are done.
    (_, paused) = json.loads(detcore("experiment", "list", "--json").stdout)["experiments"]
    assert 0.25 <= paused["progress"] < 1

    finished = detcore.run_checked("run", "--resume", 2, "--json")
    assert detcore.toy_state(finished.summary["trials"][0]["latest_checkpoint"]) == expected


def test_a_second_interrupt_ends_at_once_and_can_still_be_resumed(detcore: Detcore) -> None:
    # The first batch takes minutes, so the first interrupt alone would take that long.
    folder = detcore.write_code("model_def.py", IN_A_LONG_BATCH)
    process = detcore.start("run", detcore.config(), folder)
    detcore.wait_for((folder / "in-the-batch").exists)
    process.send_signal(signal.SIGINT)
    # Two that come before the first is noted are one.
    assert process.stdout is not None
    assert any(line.startswith("SIGINT: the trial checkpoints") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "detcore run --resume 1" in stdout


def test_sigterm_ends_ranks_that_hang_in_a_batch(
    detcore: Detcore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCORE_GRACE_S", "0.5")
    folder = detcore.write_code("model_def.py", IN_A_LONG_BATCH)
    process = detcore.start("run", detcore.config(), folder, "--slots", 2)
    pids = worker_pids(process)
    detcore.wait_for((folder / "in-the-batch").exists)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 75, stdout + stderr
    assert "detcore run --resume 1" in stdout
    assert wait_until_gone(pids, timeout_s=30) == []


@pytest.mark.parametrize("victim", ["worker", "runner"])
def test_killed_at_any_moment_and_resumed_ends_bit_identical(detcore: Detcore, victim: str) -> None:
    expected = straight_run(detcore)
    config = detcore.config(hyperparameters__pause_s=0.06)
    dice = random.Random(victim)
    process = detcore.start("run", config, MODEL_DIR)
    for kill in range(8):
        try:
            pid = detcore.worker_pid()
        except NoWorkerError as error:
            if kill < 3 or "complete" not in str(error):
                raise
            break  # it was through just before the last kill
        time.sleep(dice.uniform(0.0, 1.4))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid if victim == "worker" else process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        process = detcore.start("run", "--resume", 2)
        if dice.random() < 0.2:
            break
    process.communicate(timeout=60)
    finished = detcore("run", "--resume", 2, "--json")
    assert finished.summary["state"] == "COMPLETED", finished.stderr
    assert detcore.toy_state(finished.summary["trials"][0]["latest_checkpoint"]) == expected


@pytest.mark.cold
def test_a_worker_does_not_outlive_its_runner(detcore: Detcore) -> None:
    process = detcore.start("run", endless(detcore), MODEL_DIR)
    pid = detcore.worker_pid()
    process.kill()
    process.communicate()
    detcore.wait_for(lambda: not os.path.exists(f"/proc/{pid}"))


def test_workers_that_outlive_their_killed_runner_for_a_moment_are_waited_for(
    tmp_path: Path,
) -> None:
    runner = subprocess.Popen(["true"])
    runner.wait()
    with contextlib.ExitStack() as workers:
        workers.enter_context(experiment_lock(tmp_path, 7))
        (tmp_path / "lock").write_text(f"{runner.pid}\n")  # the process that took it
        last = threading.Timer(0.2, workers.close)
        last.start()
        with experiment_lock(tmp_path, 7):
            last.join()


def test_a_stopped_worker_of_a_killed_runner_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_settle, "_WAIT_S", 0.1)
    runner = subprocess.Popen(["true"])
    runner.wait()
    with experiment_lock(tmp_path, 7) as lock:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=[lock])
    try:
        worker.send_signal(signal.SIGSTOP)
        (tmp_path / "lock").write_text(f"{runner.pid}\n")
        with pytest.raises(RunError, match=f"kill -9 {worker.pid}$"), experiment_lock(tmp_path, 7):
            pass
    finally:
        worker.kill()
        worker.wait()


def test_two_runners_of_one_experiment_are_refused(detcore: Detcore) -> None:
    first = detcore.start("run", endless(detcore), MODEL_DIR)
    detcore.worker_pid()
    second = detcore.run_failing("run", "--resume", 1)
    assert f"experiment 1 is running already, under process {first.pid}" in second.stderr


def test_a_complete_experiment_is_left_alone(detcore: Detcore) -> None:
    straight_run(detcore)
    again = detcore.run_checked("run", "--resume", 1)
    assert "experiment 1 is complete already" in again.stdout
