"""A run whose record store goes away for a while, and comes back."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from job_server import wait_for
from postgresql_server import PostgreSQLServer, run_server
from toy_command import Detcore, OnPostgresql

from detcore.records import Database

# Says where it is, and waits there as long as it is to.
GATED = """
import time
from pathlib import Path
from detcore_toy import ToyTrial
import numpy as np

class Gated(ToyTrial):
    def build_data(self):
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        Path("at").write_text(str(step))
        while Path(f"shut-{step}").exists():
            time.sleep(0.02)
"""


def begin(detcore: Detcore, *shut: int) -> tuple[Path, subprocess.Popen[str]]:
    """Run something that waits in some of its batches."""
    folder = detcore.write_code("gated.py", GATED)
    for step in shut:
        (folder / f"shut-{step}").touch()
    return folder, detcore.start("run", detcore.config(entrypoint="gated:Gated"), folder, "--json")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQLServer]:
    with run_server() as server:
        yield server


@pytest.fixture
def detcore(postgresql: PostgreSQLServer, tmp_path: Path) -> Iterator[OnPostgresql]:
    with OnPostgresql(tmp_path) as command:
        command.url = postgresql.url(postgresql.create_database())
        yield command


def is_at(folder: Path, step: int) -> Callable[[], bool]:
    return lambda: (folder / "at").exists() and (folder / "at").read_text() == str(step)


def read_until(run: subprocess.Popen[str], said: str) -> str:
    """Wait until a run says something; return the line."""
    assert run.stderr is not None
    lines = []
    for line in run.stderr:
        lines.append(line)
        if said in line:
            return line
    raise AssertionError(f"it ended before it said {said!r}: {lines}")


def test_run_survives_database_restart(detcore: OnPostgresql, postgresql: PostgreSQLServer) -> None:
    folder, run = begin(detcore, 5, 15)
    wait_for(is_at(folder, 5))
    postgresql.stop(crash=True)
    try:
        (folder / "shut-5").unlink()
        # It reports, validates, and saves a checkpoint without the records.
        wait_for(is_at(folder, 15))
        wait_for(lambda: len(detcore.committed()) == 1)  # it is saved beside the training
        assert run.poll() is None
    finally:
        postgresql.start()
    (folder / "shut-15").unlink()
    stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 0, stderr
    assert json.loads(stdout)["state"] == "COMPLETED"
    with Database.open(detcore.url) as database:
        (trial,) = database.list_trials(1)
        assert trial.run_id == 1
        reports = database.metrics(trial.id, "validation")
        assert [report.steps_completed for report in reports] == [10, 20, 30, 40]
        checkpoints = database.list_checkpoints(trial_id=trial.id)
        assert [checkpoint.steps_completed for checkpoint in checkpoints] == [10, 20, 30, 40]


def test_second_ctrl_c_ends_run_without_database(
    detcore: OnPostgresql, postgresql: PostgreSQLServer
) -> None:
    folder, run = begin(detcore, 12, 17)
    wait_for(is_at(folder, 12))
    postgresql.stop(crash=True)
    try:
        (folder / "shut-12").unlink()
        wait_for(is_at(folder, 17))  # the runner hears of progress that it cannot record
        run.send_signal(signal.SIGINT)
        read_until(run, "SIGINT: the trial checkpoints")  # two before that would be one
        run.send_signal(signal.SIGINT)
        _, stderr = run.communicate(timeout=60)
        assert run.returncode not in (0, None), stderr
        assert "cannot be used" in stderr
    finally:
        postgresql.start()
    (folder / "shut-17").unlink()
    result = detcore.run_checked("run", "--resume", 1, "--json")
    assert result.summary["state"] == "COMPLETED"
    assert "from batch 10" in result.output
