"""Tests of requests while a runner starts or ends, or while the server is killed."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from job_server import JobServer, toy_config, wait_for

from detcore.client import Determined, ExperimentReference
from detcore.client.http import send_submission
from detcore.client.http.http_transport import HttpTransport
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore.run import hold_experiment_lock
from detcore.types import Control, ExperimentState
from detcore_server import ServerSettings
from detcore_server.api.job_routes import Submission, _accept
from detcore_server.jobs.job_queue import Jobs
from detcore_server.jobs.uploads import Uploads
from detcore_server.server_database import ServerDatabase, TokenRecord
from detcore_server.server_state import ServerState


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[JobServer]:
    with JobServer(tmp_path / "jobs") as running:
        yield running


@pytest.fixture
def database(jobs: JobServer) -> Iterator[ServerDatabase]:
    with jobs.database() as opened:
        yield opened


def submit(jobs: JobServer, **changes: Any) -> ExperimentReference:
    changes = {"searcher__max_length__batches": 100_000, **changes}
    submission, context = jobs.given(**changes)
    with context.file:
        number = send_submission(jobs.session(), submission, context)
    return Determined(transport=HttpTransport(jobs.session())).get_experiment(number)


def is_run_by_a_runner(database: ServerDatabase, number: int) -> bool:
    return database.find_runner(number) is not None


def add_asker(database: ServerDatabase) -> TokenRecord:
    user = database.create_user("ada", password_hash=None)
    return TokenRecord(user_id=user.id, user_name="ada", is_admin=False, expires_at=0.0)


def add_submission(
    database: ServerDatabase, code: Path, **changes: object
) -> tuple[int, TokenRecord]:
    """Record a queued experiment and its owner."""
    requester = add_asker(database)
    number = database.submit_experiment(
        user_id=requester.user_id,
        submission_id="one",
        test_mode=False,
        config=toy_config(**changes),
        config_text="",
        place=lambda number: str(code),
    )
    return number, requester


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ServerState]:
    """State of a server in this process."""
    environment = read_environment({"DETCORE_HOME": str(tmp_path)})
    settings = ServerSettings(environment=environment, plugins=PluginManager(environment))
    with contextlib.closing(ServerState.open(settings)) as opened:
        yield opened


def test_request_during_start_survives_server_kill(
    jobs: JobServer, database: ServerDatabase
) -> None:
    experiment = submit(jobs, hyperparameters__pause_s=0.05)

    def is_starting() -> bool:
        submission = database.get_submission(experiment.id)
        return submission is not None and submission.phase == "STARTED"

    wait_for(is_starting)
    experiment.cancel()
    jobs.server.kill()

    def has_ended() -> bool:
        return database.get_experiment(experiment.id).ended_at is not None

    def has_no_runner() -> bool:
        """Whether the server was killed before it had completely started a runner."""
        return not any(
            "jobs.submission_runner" in line for line in jobs.client.leftovers(0).values()
        )

    wait_for(lambda: is_run_by_a_runner(database, experiment.id) or has_ended() or has_no_runner())
    jobs.server.start()
    wait_for(has_ended)
    assert database.get_experiment(experiment.id).state is ExperimentState.CANCELED


def test_activate_while_pausing(jobs: JobServer, database: ServerDatabase) -> None:
    experiment = submit(jobs, hyperparameters__pause_s=1.0)

    def journal() -> str:
        path = jobs.server.home / "experiments" / str(experiment.id) / "journal.jsonl"
        return path.read_text() if path.exists() else ""

    wait_for(lambda: '"state": "RUNNING"' in journal())
    experiment.pause()
    wait_for(lambda: "pause: all trials checkpoint" in journal())
    experiment.activate()
    assert database.get_control_request(experiment.id) is None
    wait_for(lambda: journal().count('"search_started"') == 2)
    assert database.get_experiment(experiment.id).state is ExperimentState.RUNNING
    experiment.kill()
    assert experiment.wait(interval=0.1).value == "CANCELED"


def test_activate_just_after_pause(
    state: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner ends between two queries of the database."""
    database = state.database
    number, requester = add_submission(database, tmp_path)
    database.request_control(number, Control.PAUSE)
    ask = database.request_control

    def end_and_ask(experiment_id: int, control: Control | None) -> None:
        database.set_experiment_state(experiment_id, ExperimentState.PAUSED)
        ask(experiment_id, control)

    monkeypatch.setattr(database, "request_control", end_and_ask)
    state.jobs.control(requester, number, "activate")
    submission = database.get_submission(number)
    assert submission is not None
    assert (submission.state, submission.phase) == (ExperimentState.RUNNING, "QUEUED")
    assert submission.control is None


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", ExperimentState.RUNNING),
        ("signal.signal(1, signal.SIG_DFL); signal.raise_signal(1)", ExperimentState.RUNNING),
        ("os._exit(128 + signal.SIGTERM)", ExperimentState.RUNNING),
        ("os.kill(os.getpid(), signal.SIGKILL)", ExperimentState.ERROR),
        ("signal.signal(signal.SIGSEGV, 0); signal.raise_signal(11)", ExperimentState.ERROR),
        ("os._exit(1)", ExperimentState.ERROR),
    ],
)
def test_signal_during_start_is_no_failure(
    state: ServerState,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
    outcome: ExperimentState,
) -> None:
    database = state.database
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("detcore_server.jobs.job_queue.time", clock)
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", f"import os, signal; {ends}"]
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return started[-1]

    monkeypatch.setattr(Jobs, "_start_runner", start)
    number, _ = add_submission(database, tmp_path)
    jobs = state.jobs
    jobs._update_queue()
    for _ in range(5):
        started[-1].wait()
        clock.now += 1
        num_started = len(started)
        jobs._update_queue()
        # From the second restart on there is a delay.
        assert (len(started) > num_started) == (num_started == 1)
        if database.get_experiment(number).state is not ExperimentState.RUNNING:
            break
        if len(started) == num_started:
            clock.now += 60
            jobs._update_queue()
    for process in started:
        process.wait()
    assert database.get_experiment(number).state is outcome
    assert len(started) == (6 if outcome is ExperimentState.RUNNING else 3)


@pytest.mark.parametrize("is_done", [True, False])
def test_removed_archive_was_used_or_is_requested_again(
    state: ServerState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """Two attempts of one submission see the archive, and the first removes it."""
    database = state.database
    data = gzip.compress(b"\0" * 10240)  # a tar archive without entries
    digest = hashlib.sha256(data).hexdigest()
    submission = Submission(
        submission_id="the-same-one",
        config=yaml.safe_dump(toy_config()),
        archive=digest,
        archive_size=len(data),
    )
    requester = add_asker(database)
    Uploads(state.settings.environment, requester.user_id).append(digest, 0, data)
    finished = Uploads.find_finished

    def finish_and_be_overtaken(uploads: Uploads, digest: str, size_bytes: int) -> Path | None:
        path = finished(uploads, digest, size_bytes)
        monkeypatch.setattr(Uploads, "find_finished", finished)
        if is_done:
            assert _accept(state, requester, submission).experiment_id == 1
        else:
            uploads.remove(digest)
        return path

    monkeypatch.setattr(Uploads, "find_finished", finish_and_be_overtaken)
    answer = _accept(state, requester, submission)
    assert (answer.experiment_id, answer.uploaded) == (1 if is_done else None, 0)
    assert database.count_experiments() == is_done
    assert not list(tmp_path.glob("experiments/.incoming-*"))


def test_kill_waits_for_workers_of_dead_runner(state: ServerState, tmp_path: Path) -> None:
    """The workers hold the experiment's lock, so the kill completes after they end."""
    database, environment = state.database, state.settings.environment
    number, requester = add_submission(database, tmp_path)
    died = "from detcore.records import Database; import sys; Database.open(sys.argv[1])"
    died += ".set_experiment_state(1, 'RUNNING')"
    subprocess.run([sys.executable, "-c", died, environment.database_url], check=True)
    assert database.is_experiment_alive(number) is False
    jobs = state.jobs
    with hold_experiment_lock(database, environment, number):
        jobs.control(requester, number, "kill")
        jobs.start()
    wait_for(lambda: database.get_experiment(number).state is ExperimentState.CANCELED)
    jobs.stop()


@pytest.mark.parametrize(("searcher", "is_all"), [("single", True), ("random", False)])
def test_killing_last_trial_ends_experiment(
    state: ServerState, tmp_path: Path, searcher: str, is_all: bool
) -> None:
    database = state.database
    number, requester = add_submission(database, tmp_path, searcher__name=searcher)
    trial = database.create_trial(experiment_id=number, hparams={}, seed=0)
    state.jobs.control_trial(requester, trial, "kill")
    requests = (database.get_control_request(number), database.get_trial(trial).control)
    assert requests == ((Control.KILL, None) if is_all else (None, Control.KILL))
