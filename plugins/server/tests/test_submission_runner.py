"""Tests which events pause a runner's experiment."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_server import wait_for
from toy_command import MODEL_DIR, Detcore

from detcore.config import load_config
from detcore.records import Database
from detcore.types import Control, ExperimentState

PAUSED, RUNNING, CANCELED = (
    ExperimentState.PAUSED,
    ExperimentState.RUNNING,
    ExperimentState.CANCELED,
)

# Sends a request after the trial ends and before the experiment ends.
ASKS_LATE = """
import sys
from detcore.records import Database
from detcore_server.jobs import submission_runner
from detcore.client.http.journal import JournalListener
from detcore.types import Control, TrialState

url, asked = sys.argv[1:]
tell, seen = JournalListener.trial_changed, []

def trial_changed(listener, status):
    if TrialState.RUNNING in seen and status.state is TrialState.PAUSED:
        with Database.open(url) as database:
            database.request_control(1, Control(asked) if asked else None)
    seen.append(status.state)
    tell(listener, status)

JournalListener.trial_changed = trial_changed
sys.exit(submission_runner.main())
"""

# Withdraws the pause after the last check for requests and before the end is recorded.
ASKS_TOO_LATE = """
import sys
from detcore.records import Database
from detcore_server.jobs import submission_runner

look = Database.get_control_request

def look_and_be_overtaken(database, experiment_id):
    asked = look(database, experiment_id)
    if sys._getframe(1).f_code.co_name == "_record_end" and asked is not None:
        database.request_control(experiment_id, None)
    return asked

Database.get_control_request = look_and_be_overtaken
sys.exit(submission_runner.main())
"""

# Fails during a decision.
FAILS = """
import sys
from detcore.records import DatabaseUnavailableError
from detcore.errors import DatabaseError
from detcore_server.jobs import submission_runner
from detcore.run.search_log import SearchLog

def record(*_, **__):
    raise {error}("the connection broke")

SearchLog.record_event = record
sys.exit(submission_runner.main())
"""


class Job:
    """Experiment that runs until it is ended, with its runners."""

    def __init__(self, detcore: Detcore, num_batches: int) -> None:
        self._detcore = detcore
        self._runners: list[subprocess.Popen[str]] = []
        path = detcore.config(
            hyperparameters__pause_s=0.02, searcher__max_length__batches=num_batches
        )
        self.url = f"sqlite:///{detcore.home / 'detcore.db'}"
        self.database = Database.open(self.url)
        self.id = self.database.create_experiment(
            config=load_config(path).config.model_dump(mode="json"),
            config_text=None,
            model_dir=str(MODEL_DIR),
            name="toy",
        )

    def start(self, *program: str) -> subprocess.Popen[str]:
        """Start a runner as a server does."""
        home = str(self._detcore.home)
        settings = {"experiment_id": self.id, "home": home, "database_url": self.url}
        process = subprocess.Popen(
            [sys.executable, *(program or ("-m", "detcore_server.jobs.submission_runner"))],
            env=self._detcore.variables(),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._runners.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings))
        process.stdin.close()
        process.stdin = None
        return process

    def close(self) -> None:
        for runner in self._runners:
            runner.kill()
            runner.communicate()
        self.database.close()

    def wait_until_it_trains(self, runner: subprocess.Popen[str]) -> None:
        def trains() -> bool:
            trials = self.database.list_trials(self.id)
            return bool(trials and self.database.metrics(trials[0].id, "training"))

        wait_for(trains, runner)

    def end(self, runner: subprocess.Popen[str]) -> tuple[int, ExperimentState]:
        """Wait for a runner's end. Returns its exit code and the experiment's state."""
        _, stderr = runner.communicate(timeout=60)
        print(stderr)
        return runner.returncode, self.database.get_experiment(self.id).state

    def states(self) -> list[str]:
        return [trial.state.value for trial in self.database.list_trials(self.id)]


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    with Detcore(tmp_path) as command:
        yield command


@pytest.fixture
def job(detcore: Detcore) -> Iterator[Job]:
    with contextlib.closing(Job(detcore, 100_000)) as job_run:
        yield job_run


def test_external_signal_never_shows_paused(job: Job, detcore: Detcore) -> None:
    """A server would not resume a paused experiment."""
    with sqlite3.connect(detcore.home / "detcore.db") as connection:
        connection.execute("CREATE TABLE seen (state TEXT)")
        connection.execute(
            "CREATE TRIGGER see AFTER UPDATE OF state ON experiments "
            "BEGIN INSERT INTO seen VALUES (new.state); END"
        )
    connection.close()
    runner = job.start()
    job.wait_until_it_trains(runner)
    runner.send_signal(signal.SIGTERM)
    assert job.end(runner) == (75, RUNNING)
    assert job.states() == ["PAUSED"]
    with sqlite3.connect(detcore.home / "detcore.db") as connection:
        assert set(connection.execute("SELECT state FROM seen")) == {("RUNNING",)}
    connection.close()


def test_pause_counts_despite_signal(job: Job) -> None:
    runner = job.start()
    job.wait_until_it_trains(runner)
    runner.send_signal(signal.SIGSTOP)
    job.database.request_control(job.id, Control.PAUSE)
    runner.send_signal(signal.SIGTERM)
    runner.send_signal(signal.SIGCONT)
    assert job.end(runner) == (0, PAUSED)
    assert job.database.get_control_request(job.id) is None


def test_pause_before_runner_start_counts(job: Job) -> None:
    job.database.request_control(job.id, Control.CANCEL)
    assert job.end(job.start()) == (0, CANCELED)
    assert job.states() == ["CANCELED"]


def test_cancel_before_runner_start_counts(job: Job) -> None:
    job.database.set_experiment_state(job.id, CANCELED)
    assert job.end(job.start()) == (0, CANCELED)
    assert job.states() == []


def test_cancel_during_pause_counts(job: Job) -> None:
    runner = job.start("-c", ASKS_LATE, job.url, "cancel")
    job.wait_until_it_trains(runner)
    job.database.request_control(job.id, Control.PAUSE)
    assert job.end(runner) == (0, CANCELED)
    assert job.states() == ["CANCELED"]
    assert job.database.get_control_request(job.id) is None


@pytest.mark.parametrize("program", [ASKS_LATE, ASKS_TOO_LATE], ids=["late", "too late"])
def test_withdrawn_pause_keeps_running(job: Job, program: str) -> None:
    runner = job.start("-c", program, job.url, "")
    job.wait_until_it_trains(runner)
    job.database.request_control(job.id, Control.PAUSE)
    assert job.end(runner) == (75, RUNNING)
    assert job.states() == ["PAUSED"]


def test_database_outage_keeps_experiment(detcore: Detcore) -> None:
    with contextlib.closing(Job(detcore, 10)) as job:
        assert job.end(job.start("-c", FAILS.format(error="DatabaseUnavailableError"))) == (
            1,
            RUNNING,
        )
        assert job.end(job.start()) == (0, ExperimentState.COMPLETED)


def test_other_decision_error_ends_experiment(detcore: Detcore) -> None:
    with contextlib.closing(Job(detcore, 10)) as job:
        runner = job.start("-c", FAILS.format(error="DatabaseError"))
        assert job.end(runner) == (1, ExperimentState.ERROR)
        assert job.database.get_experiment(job.id).error == "the connection broke"


def test_jobs_of_other_launcher_end_experiment(job: Job) -> None:
    """A user may have resumed it on a cluster, whose jobs the server's launcher cannot follow."""
    runner = job.start()
    job.wait_until_it_trains(runner)
    job.database.set_trial_job(job.database.list_trials(job.id)[0].id, "17")
    runner.kill()
    runner.wait()
    assert job.end(job.start()) == (1, ExperimentState.ERROR)
    assert job.database.get_experiment(job.id).error == (
        "the jobs 17 of experiment 1 may still run, and would train the same trials."
    )
    assert job.states() == ["RUNNING"]
