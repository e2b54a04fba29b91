"""``detcore top``: running trials, printed once and refreshed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from recorded import Records
from terminal import without_colour

from detcore.errors import NotFoundError
from detcore.records import Database
from detcore.types import ExperimentState, TrialState


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    """Two experiments, one of which runs in this process with one of two trials."""
    home = tmp_path_factory.mktemp("top") / "home"
    with Database.open(f"sqlite:///{home / 'detcore.db'}") as database:
        records = Records(home, database)
        config = {
            "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 40}}
        }
        experiment = records.runs(records.experiment(config))
        for state in (TrialState.RUNNING, TrialState.COMPLETED):
            trial = records.trial(experiment)
            database.start_run(trial)
            for step in (10, 20):
                records.report(trial, "training", step, loss=1 / step, text="no number")
            records.report(trial, "validation", 20, val_loss=0.25)
            database.set_trial_state(trial, state)
        database.set_experiment_state(records.experiment(), ExperimentState.COMPLETED)
        yield records


def test_top_json_and_csv(records: Records) -> None:
    data = records.data("top")
    (trial,) = data["trials"]
    assert (trial["trial_id"], trial["steps_completed"], trial["progress"]) == (1, 20, 0.5)
    assert trial["training"] == {"loss": 0.05}
    assert trial["validation"] == 0.25
    assert trial["steps_per_second"] > 0
    (experiment,) = data["experiments"]
    assert (experiment["num_running"], experiment["num_trials"]) == (1, 2)
    assert [row["trial_id"] for row in records.csv("top")] == ["1"]


def test_top_once_in_pipe(records: Records) -> None:
    head, row, total = records("top", "--once").stdout.splitlines()
    assert head.split()[:4] == ["EXP", "TRIAL", "STEPS", "DONE"]
    assert row.split()[:4] == ["1", "1", "20", "50%"]
    assert "val_loss 0.25" in row
    assert total.startswith("experiment 1 digits: 1 of 2 trials running, ")
    assert records("top", "--experiment", "2").stdout == "no trial is running\n"
    assert isinstance(records("top", "--experiment", "99").exception, NotFoundError)


def test_top_refreshes_until_ctrl_c(records: Records) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "detcore", "top", "--interval", "0.1"],
        stdout=follower,
        stderr=subprocess.PIPE,
        env={**os.environ, "DETCORE_HOME": str(records.home), "TERM": "xterm"},
    )
    os.close(follower)
    output = ""
    while without_colour(output).count("1 of 2 trials running") < 2:
        output += os.read(leader, 65536).decode()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    os.close(leader)
    assert process.returncode == 130
    assert stderr == b"interrupted\n"


def test_progress_of_script_without_length_unit(records: Records) -> None:
    config = {"searcher": {"name": "single", "metric": "loss", "max_length": 40}}
    experiment = records.runs(records.experiment(config))
    trial = records.trial(experiment)
    records.database.start_run(trial)
    records.report(trial, "training", 10, loss=1.0)
    records.database.set_trial_state(trial, TrialState.RUNNING)
    rows = records.data("top", "--experiment", str(experiment))["trials"]
    assert [row["progress"] for row in rows] == [0.25]
    records.database.set_experiment_state(experiment, ExperimentState.COMPLETED)


def test_progress_of_single_trial_in_epochs(records: Records) -> None:
    config = {"searcher": {"name": "single", "metric": "val_loss", "max_length": {"epochs": 3}}}
    experiment = records.runs(records.experiment(config))
    trial = records.trial(experiment)
    records.database.start_run(trial)
    records.database.set_trial_state(trial, TrialState.RUNNING)
    records.database.set_search_progress(experiment, 0.25)
    rows = records.data("top", "--experiment", str(experiment))["trials"]
    assert [row["progress"] for row in rows] == [0.25]
    assert "25%" in records("top", "--experiment", str(experiment)).stdout
    assert "RUNNING 25%" in records("experiment", "list").stdout
    records.database.set_experiment_state(experiment, ExperimentState.COMPLETED)
