"""Experiments whose trials report to a server: the same records, whatever happens to it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lone_worker import wait_for
from running_server import RunningServer
from toy_command import MODEL_DIR, TESTS, TOY_PLUGIN, Detcore

from detcore.database import Database, token_digest
from detcore.errors import DatabaseError
from detcore.runner import ReportTo
from detcore.runner._listener import NullListener
from detcore.runner._tokens import TrialTokens
from detcore.testing import DetcoreCommand
from detcore.testing._command import finish
from detcore.types import TrialState

# Whether to save depends on how good all trials were, and runs before this one.
SETTINGS = {"checkpoint_policy": "best"}


class Reporting(Detcore):
    """A runner whose trials report to a server, under a home of its own."""

    def __init__(self, folder: Path, server: RunningServer) -> None:
        super().__init__(folder)
        DetcoreCommand.__init__(
            self,
            folder,
            python_path=[TOY_PLUGIN, TESTS / "support"],
            variables={"DETCORE_DB": server.database_url},
        )
        self._server = server

    def begin(self, *arguments: object) -> subprocess.Popen[str]:
        """Start the runner."""
        return self.start_python(
            TESTS / "support" / "run_reporting.py", self._server.url, *arguments
        )

    def run(self, *arguments: object) -> tuple[int, str]:
        """Run to the end; return the experiment's id and what was printed."""
        finished = finish(self.begin(*arguments), 200)
        output = finished.stdout
        assert finished.code == 0, finished.output
        number, state = output.splitlines()[-1].split()
        assert state == "COMPLETED", output
        return int(number), finished.output


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an embedded run records."""
    with Detcore(tmp_path_factory.mktemp("embedded")) as embedded:
        finished = embedded("run", embedded.config(**SETTINGS), MODEL_DIR, "--json")
        assert finished.code == 0, finished.output
        with Database.open(f"sqlite:///{embedded.home / 'detcore.db'}") as database:
            [found] = records(database, finished.summary["experiment_id"], embedded.home)
    return found


@pytest.fixture
def runner(tmp_path: Path, server: RunningServer) -> Iterator[Reporting]:
    with Reporting(tmp_path / "runner", server) as reporting:
        yield reporting


def records(database: Database, experiment_id: int, home: Path) -> list[Any]:
    """Return what is recorded of an experiment's trials, but for times and names.

    Reports are the last part, and weights with the random state the one before.
    """
    found = []
    for trial in database.list_trials(experiment_id):
        reports = {
            (row.kind, row.steps_completed, row.run_id, row.n_records): dict(row.metrics)
            for kind in ("training", "validation")
            for row in database.metrics(trial.id, kind)
        }
        checkpoints = [
            (each.state, each.steps_completed, sorted(each.resources), sorted(each.metadata))
            for each in database.list_checkpoints(trial_id=trial.id)
        ]
        events = [(event.kind, event.payload) for event in database.events(trial.id)]
        latest = database.latest_checkpoint(trial.id)
        assert latest is not None
        weights = (home / "checkpoints" / latest.uuid / "toy.json").read_text()
        state = (trial.state, trial.error)
        found.append((state, trial.hparams, checkpoints, events, weights, reports))
    return found


def assert_same_reports(found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    """Compare the numbers of reports, up to the last digits.

    How many batches are trained between two looks at the clock decides how a mean is summed up.
    """
    assert list(found) == list(expected)
    for place, metrics in found.items():
        assert metrics == pytest.approx(expected[place], rel=1e-12)


def test_the_records_are_those_of_an_embedded_run(
    server: RunningServer, runner: Reporting, expected: Any
) -> None:
    number, output = runner.run(runner.config(**SETTINGS), MODEL_DIR)
    with Database.open(server.database_url) as database:
        [found] = records(database, number, runner.home)
        trials = database.list_trials(number)
    assert found[:-1] == expected[:-1]
    assert_same_reports(found[-1], expected[-1])
    told = (runner.home / f"experiments/{number}/trials/{trials[0].id}/run-1.json").read_text()
    assert server.url in told
    # Tokens are nowhere but in the workers' environment.
    for path in runner.home.rglob("*"):
        if path.is_file():
            assert b"detcore_" not in path.read_bytes().replace(b"detcore_toy", b""), path
    assert "detcore_" not in output
    with Database.open(server.database_url) as database, database._read() as connection:
        left = connection.exec_driver_sql("SELECT trial_id FROM tokens").fetchall()
    assert [row for row in left if row[0] is not None] == []


def test_a_trial_killed_and_resumed_without_its_server_ends_bit_identical(
    server: RunningServer, runner: Reporting, expected: Any
) -> None:
    slow = runner.config(**SETTINGS, hyperparameters=runner.slow(pause_from=10))
    process = runner.begin(slow, MODEL_DIR)
    with Database.open(server.database_url) as database:

        def has_saved() -> bool:
            running = database.list_experiments(states=[TrialState.RUNNING])
            return any(
                database.list_checkpoints(experiment_id=each.id, states=["COMPLETED"])
                for each in running
            )

        wait_for(has_saved, 60)
        server.kill()
        time.sleep(1.0)  # steps that only the spool knows
        process.send_signal(signal.SIGKILL)
        process.communicate()
        runner.hurry()
        experiment = database.list_experiments(newest_first=True)[0]
        _, output = runner.run("--resume", experiment.id)
        assert "from batch" in output
        [found] = records(database, experiment.id, runner.home)
        [trial] = database.list_trials(experiment.id)
        assert trial.run_id == 2
    assert found[0] == expected[0]
    assert found[-2] == expected[-2]  # the weights, and the random state

    def by_step(reports: dict[Any, Any]) -> dict[Any, Any]:
        return {(kind, steps): each for (kind, steps, *_), each in sorted(reports.items())}

    assert_same_reports(by_step(found[-1]), by_step(expected[-1]))
    server.start()
    trials = server.ask("GET", f"/api/detcore/v1/experiments/{experiment.id}", token=server.token())
    assert trials["state"] == "COMPLETED"


def test_tokens_are_renewed_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        user = database.create_user("ada", password_hash="x")
        other = database.create_user("bob", password_hash="x")
        report_to = ReportTo(
            url="https://host:8080/", user_id=user.id, certificate=Path("/etc/authority.pem")
        )
        notices: list[str] = []
        listener = NullListener()
        monkeypatch.setattr(listener, "notice", notices.append)
        tokens = TrialTokens(report_to, database, listener)
        assert tokens.url == "https://host:8080"
        told = tokens.variables(3)
        assert told["DETCORE_MASTER_CERT"] == "/etc/authority.pem"
        digest = token_digest(told["DETCORE_TOKEN"])
        found = database.find_token(digest)
        assert found is not None
        assert (found.trial_id, found.user_id) == (3, user.id)

        database.extend_token(digest, expires_at=time.time() + 60)
        tokens.renew()  # it is not time yet
        found = database.find_token(digest)
        assert found is not None
        assert found.expires_at < time.time() + 61
        start = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: start + 2 * 3600)
        tokens.renew()
        found = database.find_token(digest)
        assert found is not None
        assert found.expires_at > time.time() + 23 * 3600
        # Its user gets another password, and with it loses all tokens; the trial goes on.
        database.update_user(user.id, password_hash="y")
        assert database.find_token(digest) is None
        monkeypatch.setattr(time, "monotonic", lambda: start + 4 * 3600)
        tokens.renew()
        assert database.find_token(digest) is not None

        again = tokens.variables(3)["DETCORE_TOKEN"]  # the trial starts again
        assert database.find_token(digest) is None
        database.add_token("f" * 64, user_id=other.id, expires_at=time.time() + 60, trial_id=4)
        tokens.revoke(3)
        assert database.find_token(token_digest(again)) is None
        assert database.find_token("f" * 64) is not None
        assert notices == []


class Unwritable:
    """A database whose disk is full."""

    def extend_token(self, *_: object, **__: object) -> bool:
        raise DatabaseError("no room")

    def remove_trial_tokens(self, _: int) -> None:
        raise DatabaseError("no room")


def test_a_token_that_cannot_be_renewed_now_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        user = database.create_user("ada", password_hash="x")
        notices: list[str] = []
        listener = NullListener()
        monkeypatch.setattr(listener, "notice", notices.append)
        tokens = TrialTokens(ReportTo(url="http://h:1", user_id=user.id), database, listener)
        digest = token_digest(tokens.variables(3)["DETCORE_TOKEN"])
        database.extend_token(digest, expires_at=time.time() + 600)
        start = time.monotonic()
        monkeypatch.setattr(tokens, "_database", Unwritable())
        monkeypatch.setattr(time, "monotonic", lambda: start + 3601)
        tokens.renew()
        monkeypatch.setattr(time, "monotonic", lambda: start + 3701)
        tokens.renew()
        assert notices == ["tokens of trials are not renewed yet: no room"]
        monkeypatch.setattr(tokens, "_database", database)
        monkeypatch.setattr(time, "monotonic", lambda: start + 3801)
        tokens.renew()
        found = database.find_token(digest)
        assert found is not None
        assert found.expires_at > time.time() + 3600
        monkeypatch.setattr(tokens, "_database", Unwritable())
        tokens.revoke(3)
        assert "expires in 24 hours" in notices[-1]
