"""Resuming interrupted and killed runs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until_gone
from toy_command import MODEL_DIR, Detcore, NoWorkerError, worker_pids

from detcore.environment import read_environment
from detcore.errors import RunError
from detcore.records import Database, RunnerLock
from detcore.run import experiment_control, hold_experiment_lock
from detcore.types import ExperimentState

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
    """Write an experiment that only ends on request."""
    return detcore.config(hyperparameters__pause_s=0.02, searcher__max_length__batches=100_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_saves_and_prints_resume_command(detcore: Detcore, number: signal.Signals) -> None:
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


def test_second_interrupt_can_be_resumed(detcore: Detcore) -> None:
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


def test_sigterm_ends_hanging_ranks(detcore: Detcore, monkeypatch: pytest.MonkeyPatch) -> None:
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


# Trains as the toy does: the state of each step follows from that of the step before.
SCRIPT = """
import json, time
from pathlib import Path
from detcore import core

pause_s = float(Path(__file__).with_name("pause").read_text())
with core.init(resume=True, max_length={"batches": 40}) as context:
    state, steps = 1, context.info.steps_completed
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            state = json.loads((path / "toy.json").read_text())["state"]
    for operation in context.searcher.operations():
        while steps < operation.length:
            steps += 1
            state = (3 * state + steps) % 1_000_003
            time.sleep(pause_s)
            context.train.report_training_metrics(steps, {"state": state})
            if steps % 10 == 0:
                context.train.report_validation_metrics(steps, {"val_loss": state})
                with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                    (path / "toy.json").write_text(json.dumps({"state": state}))
        operation.report_completed(state)
"""


class Victim:
    """A trial that is started, killed and started again in one of several ways.

    Args:
        detcore: Starts it.
        kind: "trial" of a class, "script" of an experiment file, or script "alone".
        process: The one that is killed: "worker" or "runner".
    """

    def __init__(self, detcore: Detcore, kind: str, process: str) -> None:
        self._detcore = detcore
        self._kind = kind
        self._kills_worker = process == "worker"
        self._process: subprocess.Popen[str]

    def train_straight(self) -> dict[str, Any]:
        """Train without interruption, as experiment 1; return the final state."""
        self.start(pause_s=0.0)
        self._process.communicate(timeout=60)
        return self.final_state(1)

    def start(self, *, pause_s: float) -> None:
        """Start it for the first time."""
        detcore, folder = self._detcore, self._detcore.write_code("train.py", SCRIPT)
        (folder / "pause").write_text(str(pause_s))
        if self._kind == "alone":
            self._start_script()
        elif self._kind == "script":
            config = detcore.config(entrypoint="python3 train.py")
            self._process = detcore.start("run", config, folder)
        else:
            config = detcore.config(hyperparameters__pause_s=pause_s)
            self._process = detcore.start("run", config, MODEL_DIR)

    def _start_script(self) -> None:
        script = self._detcore.tmp_path / "code" / "train.py"
        self._process = self._detcore.start_python(script)

    def resume(self) -> None:
        """Start it again."""
        if self._kind == "alone":
            self._start_script()
        else:
            self._process = self._detcore.start("run", "--resume", 2)

    def kill(self, after_s: float) -> None:
        """Wait until it trains, and a while; kill it.

        Raises:
            NoWorkerError: If it had nothing left to train.
        """
        pid = self._process.pid
        if self._kind == "alone":
            assert self._process.stderr is not None
            assert "; records in " in self._process.stderr.readline()
        else:
            pid = self._detcore.worker_pid() if self._kills_worker else pid
        time.sleep(after_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._process.communicate(timeout=60)

    def finish(self) -> None:
        """Train to the end."""
        self._process.communicate(timeout=60)
        if self._kind != "alone":
            finished = self._detcore("run", "--resume", 2, "--json")
            assert finished.summary["state"] == "COMPLETED", finished.stderr

    def final_state(self, experiment_id: int) -> dict[str, Any]:
        """Return the state in the last checkpoint."""
        with self._detcore.database() as database:
            assert database.get_experiment(experiment_id).state is ExperimentState.COMPLETED
            (trial,) = database.list_trials(experiment_id)
            latest = database.latest_checkpoint(trial.id)
        assert latest is not None
        assert latest.steps_completed == 40
        return self._detcore.toy_state(latest.uuid)


@pytest.mark.parametrize(
    ("kind", "process"),
    [
        ("trial", "worker"),
        ("trial", "runner"),
        ("script", "worker"),
        pytest.param("script", "runner", marks=pytest.mark.soak),
        ("alone", "worker"),
    ],
)
def test_killed_run_resumes_bit_identically(detcore: Detcore, kind: str, process: str) -> None:
    victim = Victim(detcore, kind, process)
    expected = victim.train_straight()
    dice = random.Random(process)
    victim.start(pause_s=0.06)
    for kill in range(8):
        try:
            victim.kill(dice.uniform(0.0, 1.4))
        except NoWorkerError as error:
            if kill < 3 or "complete" not in str(error):
                raise
            break  # it was through just before the last kill
        victim.resume()
        if dice.random() < 0.2:
            break
    victim.finish()
    assert victim.final_state(2) == expected


@pytest.mark.cold
def test_worker_does_not_outlive_runner(detcore: Detcore) -> None:
    process = detcore.start("run", endless(detcore), MODEL_DIR)
    pid = detcore.worker_pid()
    process.kill()
    process.communicate()
    detcore.wait_for(lambda: not os.path.exists(f"/proc/{pid}"))


def hold_lock(home: Path) -> AbstractContextManager[RunnerLock]:
    environment = read_environment({"DETCORE_HOME": str(home)})
    database = Database.open(environment.database_url)
    return hold_experiment_lock(database, environment, 7)


def pretend_that_the_runner_is_gone(home: Path) -> None:
    runner = subprocess.Popen(["true"])
    runner.wait()
    (home / "detcore.db-locks" / "7").write_text(f"{runner.pid} {socket.gethostname()}")


def test_resume_waits_for_surviving_workers(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as workers:
        workers.enter_context(hold_lock(tmp_path))
        pretend_that_the_runner_is_gone(tmp_path)
        last = threading.Timer(0.2, workers.close)
        last.start()
        with hold_lock(tmp_path):
            last.join()


def test_stopped_worker_of_killed_runner_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment_control, "_LOCK_TIMEOUT_S", 0.1)
    with hold_lock(tmp_path) as lock:
        worker = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fd])
    try:
        worker.send_signal(signal.SIGSTOP)
        pretend_that_the_runner_is_gone(tmp_path)
        with pytest.raises(RunError, match=f"kill -9 {worker.pid}$"), hold_lock(tmp_path):
            pass
    finally:
        worker.kill()
        worker.wait()


def test_second_runner_is_refused(detcore: Detcore) -> None:
    first = detcore.start("run", endless(detcore), MODEL_DIR)
    detcore.worker_pid()
    second = detcore.run_failing("run", "--resume", 1)
    assert f"experiment 1 is already running, in process {first.pid}" in second.stderr


def test_complete_experiment_is_not_resumed(detcore: Detcore) -> None:
    straight_run(detcore)
    again = detcore.run_checked("run", "--resume", 1)
    assert "experiment 1 is already complete" in again.stdout
