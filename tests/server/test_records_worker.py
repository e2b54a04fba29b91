"""A trial's worker whose records are behind a server, by what reaches the records."""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_worker import LoneTrial, wait_for
from running_server import RunningServer

from detcore.checkpoint import recover_checkpoints
from detcore.database import Database, MetricRecord, Spool, ingest_spools
from detcore.environment import read_environment
from detcore.errors import (
    ContextStateError,
    ForbiddenError,
    NotFoundError,
    UnauthenticatedError,
)
from detcore.hooks import PluginManager
from detcore.remote import ServerAway, Session
from detcore.remote.reporting import Reach, RemoteRecords, SpoolSender
from detcore.storage import open_storage
from detcore.testing import DetcoreCommand
from detcore.types import TrialState

REPORTS = """
import sys
from detcore import core

with core.init() as context:
    for step in range(1, int(sys.argv[1]) + 1):
        context.train.report_training_metrics(step, {"loss": 1 / step})
        if step % 10 == 0:
            context.train.report_validation_metrics(step, {"loss": 1 / step})
    print("best", context.train.get_experiment_best_validation())
    with context.checkpoint.store_path({"steps_completed": step, "note": "x"}) as (path, uuid):
        (path / "weights").write_text("0.5")
    print("uuid", uuid)
"""

# A report for each line on its standard input.
ON_DEMAND = """
import sys
from detcore import core

with core.init() as context:
    for step, line in enumerate(sys.stdin, 1):
        context.train.report_training_metrics(step, {"loss": 1 / step})
        print("reported", step, flush=True)
"""


class Reporter:
    """A spool and its sender, closed at the end of the test."""

    def __init__(self, session: Session, trial: LoneTrial) -> None:
        with trial.database() as database:
            run_id = database.start_run(trial.trial_id)
        self.spool = Spool(
            trial.spool(run_id), trial_id=trial.trial_id, run_id=run_id, server=session.url
        )
        reach = Reach()
        self.sender = SpoolSender(session, self.spool.path, reach)
        self.records = RemoteRecords(
            session,
            trial_id=trial.trial_id,
            append=self.spool.append,
            sender=self.sender,
            reach=reach,
        )

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.close(10)
        self.spool.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers of a server that has stopped for seconds: the machine is busy."""
    monkeypatch.setattr("detcore.remote._records._READ_TIMEOUT_S", 60.0)


@pytest.fixture
def trial(server: RunningServer, tmp_path: Path) -> LoneTrial:
    return LoneTrial(server, tmp_path)


def test_what_a_worker_reports_is_in_the_records(trial: LoneTrial) -> None:
    output = trial.run(REPORTS, 20)
    assert trial.steps() == list(range(1, 21))
    assert trial.steps("validation") == [10, 20]
    assert "best 0.05" in output
    uuid = output.split("uuid ")[1].strip()
    with trial.database() as database:
        [checkpoint] = database.list_checkpoints(trial_id=trial.trial_id)
        assert database.events(trial.trial_id) == []
    assert (checkpoint.uuid, checkpoint.state) == (uuid, "COMPLETED")
    assert checkpoint.metadata == {"steps_completed": 20, "note": "x"}
    assert set(checkpoint.resources) == {"weights", "metadata.json"}
    assert checkpoint.committed_at is not None
    assert checkpoint.started_at <= checkpoint.committed_at


def test_nothing_is_lost_or_doubled_by_a_server_that_is_killed_again_and_again(
    server: RunningServer, trial: LoneTrial
) -> None:
    number = 0
    with trial.start(ON_DEMAND) as process:
        for _ in range(4):
            for _ in range(50):
                number += 1
                report(process, number)
            server.kill()  # in the middle of what is being sent, or before
            for _ in range(5):
                number += 1
                report(process, number)
            server.start()
        wait_for(lambda: len(trial.steps()) == number)
        rest, _ = process.communicate()
        assert process.returncode == 0, rest
    assert trial.steps() == list(range(1, number + 1))


def report(process: subprocess.Popen[str], number: int) -> None:
    """Let a worker report once; what it says of the server is passed over."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    while (line := process.stdout.readline()) != f"reported {number}\n":
        assert line, "the worker ended"


def test_a_trial_without_its_server_ends_as_soon_and_its_reports_arrive_later(
    server: RunningServer, trial: LoneTrial, tmp_path: Path
) -> None:
    token, home = trial.new_token(), trial.home
    server.kill()
    began = time.monotonic()
    output = trial.run(REPORTS, 20, token=token)
    took_s = time.monotonic() - began
    assert took_s < 30  # nothing that is waited for took its time-out
    assert "best 0.05" in output
    assert "not all reports have reached" in output
    assert "connection refused. Is it running (detcore serve), and is the address right?" in output
    assert "is the address right? They are kept in " in output
    assert f"detcore plugins deliver --master {server.url}" in output
    assert token not in output
    assert trial.steps() == []

    server.start()
    told = {"DETCORE_HOME": str(home), "DETCORE_TOKEN": server.token()}
    with DetcoreCommand(tmp_path / "command", variables=told) as detcore:
        first = detcore("plugins", "deliver", "--master", server.url)
        assert first.code == 0, first.output
        assert "spool-1.jsonl" in first.stdout
        assert trial.steps() == list(range(1, 21))
        with trial.database() as database:
            [checkpoint] = database.list_checkpoints(trial_id=trial.trial_id)
            assert checkpoint.state == "COMPLETED"
        again = detcore("plugins", "deliver", "--master", server.url)
        assert (again.code, again.stdout) == (0, "nothing waits\n")
    # Who has both takes in nothing twice.
    with trial.database() as database:
        assert ingest_spools(database, home) == 0


def test_a_token_of_another_trial_or_an_expired_one_costs_no_report(
    server: RunningServer, trial: LoneTrial, tmp_path: Path
) -> None:
    other = LoneTrial(server, tmp_path / "other")
    for token, said in (
        (trial.new_token(trial_id=other.trial_id), f"workers of trial {other.trial_id}, not of"),
        (trial.new_token(lifetime_s=-1), "the token is not, or no longer, good"),
        ("", "the token is not, or no longer, good"),
    ):
        output = trial.run(REPORTS, 10, token=token or "none")
        assert "does not accept the token of this trial" in output
        assert said in output
        assert "training goes on" in output
        assert not token or token not in output
    assert trial.steps() == []
    assert other.steps() == []
    # The next start has a good one, and sends what was left first.
    trial.run(REPORTS, 10)
    with trial.database() as database:
        with database._read() as connection:
            rows = connection.exec_driver_sql(
                "SELECT run_id, seq FROM metrics WHERE kind = 'training' AND trial_id = ? "
                "ORDER BY id",
                (trial.trial_id,),
            ).fetchall()
        assert list(map(tuple, rows)) == [
            (run, seq) for run in (1, 2, 3, 4) for seq in range(1, 11)
        ]
        checkpoints = database.list_checkpoints(trial_id=trial.trial_id)
    assert [each.state for each in checkpoints] == ["COMPLETED"] * 4


@pytest.mark.usefixtures("patient")
def test_a_trial_sees_its_own_records_and_how_good_the_others_are(
    server: RunningServer, trial: LoneTrial, tmp_path: Path
) -> None:
    trial.run(REPORTS, 10)
    token = trial.new_token()
    with trial.database() as database:
        other = database.create_trial(experiment_id=trial.experiment_id, hparams={}, seed=8)
        run_id = database.start_run(other)
        for step, value in enumerate((0.25, math.inf, math.nan, 0.01)):
            database.add_metrics(
                [
                    MetricRecord(
                        trial_id=other, run_id=run_id, kind="validation", steps_completed=step,
                        metrics={"loss": value},
                    )
                ]
            )  # fmt: skip
        [checkpoint] = database.list_checkpoints(trial_id=trial.trial_id)
        database.add_checkpoint_metadata(checkpoint.uuid, {"score": math.inf, "text": "NaN"})
        [checkpoint] = database.list_checkpoints(trial_id=trial.trial_id)
    stranger = LoneTrial(server, tmp_path / "other")
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(contextlib.closing(Session(server.url, token)))
        reporter = stack.enter_context(Reporter(session, trial))
        records = reporter.records
        for smaller, best in ((True, 0.01), (False, math.inf)):
            assert best == records.best_of_other_trials(
                trial.trial_id, "loss", smaller_is_better=smaller
            )
        assert records.best_of_other_trials(
            trial.trial_id, "unknown", smaller_is_better=True
        ) is None  # fmt: skip
        assert records.get_checkpoint(checkpoint.uuid) == checkpoint
        assert records.list_checkpoints(trial_id=trial.trial_id) == [checkpoint]
        assert records.list_checkpoints(trial_id=trial.trial_id, states=["ACTIVE"]) == []
        assert records.latest_checkpoint(trial.trial_id) == checkpoint
        # An observer was there, and a checkpoint came whose event was lost with its process.
        assert records.untold_checkpoints() == []
        reporter.spool.append("trial_started", {"run_id": 2})
        assert reporter.sender.settle(30)
        uuid = "00000000-0000-4000-8000-000000000001"
        with trial.database() as database:
            database.checkpoint_started(
                uuid=uuid, trial_id=trial.trial_id, experiment_id=trial.experiment_id,
                storage_url="file:///s", steps_completed=20,
            )  # fmt: skip
            database.checkpoint_committed(uuid, metadata={}, resources={"a": 3}, steps_completed=20)
        [(kind, event)] = records.untold_checkpoints()
        assert kind == "checkpoint_saved"
        assert event["uuid"] == uuid
        assert event["url"] == f"file:///s/{uuid}"
        with pytest.raises(NotFoundError, match="ffff"):
            records.get_checkpoint("ffffffff")
        with pytest.raises(ContextStateError, match="records of that trial only"):
            records.list_checkpoints(trial_id=stranger.trial_id)
        prefix = "/api/detcore/v1"
        for method, path in (
            ("GET", f"/worker/trials/{stranger.trial_id}/checkpoints"),
            ("GET", f"/trials/{stranger.trial_id}/runs/1/spool"),
            ("POST", f"/trials/{stranger.trial_id}/runs/1/spool?offset=0&first=0"),
            ("GET", f"/experiments/{trial.experiment_id}"),
            ("GET", "/me"),
        ):
            with pytest.raises(ForbiddenError, match="trial"):
                session.ask(method, prefix + path)
    with (
        contextlib.closing(Session(server.url, trial.new_token(lifetime_s=-1))) as session,
        pytest.raises(UnauthenticatedError, match="token"),
    ):
        session.ask("GET", f"{prefix}/worker/trials/{trial.trial_id}/latest-checkpoint")


def test_a_question_in_an_outage_is_not_waited_for(server: RunningServer, trial: LoneTrial) -> None:
    with (
        contextlib.closing(Session(server.url, trial.new_token())) as session,
        Reporter(session, trial) as reporter,
    ):
        records = reporter.records
        ask = functools.partial(
            records.best_of_other_trials, trial.trial_id, "loss", smaller_is_better=True
        )
        with trial.database() as database:
            other = database.create_trial(experiment_id=trial.experiment_id, hparams={}, seed=8)
            database.add_metrics(
                [
                    MetricRecord(
                        trial_id=other, run_id=1, kind="validation", steps_completed=1,
                        metrics={"loss": 0.5},
                    )
                ]
            )  # fmt: skip
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("detcore.remote._records._READ_TIMEOUT_S", 60.0)
            assert ask() == 0.5
        # Not refused: nobody answers, as when a machine is gone.
        server.signal(signal.SIGSTOP)
        try:
            assert ask() == 0.5  # what was known last, after a moment
            began = time.monotonic()
            for _ in range(100):
                assert ask() == 0.5
            assert time.monotonic() - began < 60  # as long as the first one each: 200 s
            with pytest.raises(ServerAway):
                records.latest_checkpoint(trial.trial_id)
        finally:
            server.signal(signal.SIGCONT)
        reporter.spool.append("training", {"steps_completed": 1, "metrics": {"loss": 1.0}})
        wait_for(lambda: trial.steps() == [1], 60)

        def answers() -> bool:
            try:
                return records.latest_checkpoint(trial.trial_id) is None
            except ServerAway:  # it has the report, and the sender not yet its answer
                return False

        wait_for(answers)


class LostWhileItLooks(Reach):
    """The reader finds the server away right after the sender has looked for the first time."""

    looks = 0

    @property
    def is_away(self) -> bool:
        was_away = super().is_away
        self.looks += 1
        if self.looks == 2:
            self.lost()
        return was_away


def test_nothing_to_send_does_not_mean_that_the_server_is_there(
    server: RunningServer, trial: LoneTrial
) -> None:
    server.kill()
    with (
        contextlib.closing(Session(server.url, "token")) as session,
        contextlib.closing(
            Spool(trial.spool(), trial_id=trial.trial_id, run_id=1, server=session.url)
        ) as spool,
    ):
        reach = LostWhileItLooks()
        sender = SpoolSender(session, spool.path, reach)
        wait_for(lambda: reach.looks >= 6)  # some passes later
        assert reach.is_away
        sender.close(10)
    server.start()


DELETES = """
import sys
from detcore import core
from detcore.errors import CheckpointStateError
from detcore.remote import _records

# A server on a busy machine may stop for seconds.
_records._READ_TIMEOUT_S = _records._SETTLE_S = 60.0

def save(step):
    with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
        (path / "weights").write_text("0.5")
        (path / "optimizer").write_text("0.5")
    return uuid

with core.init() as context:
    kept, part, gone = save(1), save(2), save(3)
    print("uuids", kept, part, gone, flush=True)
    sys.stdin.readline()
    print("gone", sorted(context.checkpoint.delete(gone)), flush=True)
    print("part", sorted(context.checkpoint.delete(part, ["optimizer"])), flush=True)
    try:
        context.checkpoint.delete(kept)
    except CheckpointStateError as error:
        print("refused", flush=True)
    else:
        print("kept", context.checkpoint.get_metadata(kept), flush=True)
"""


def read_line(process: subprocess.Popen[str], beginning: str) -> str:
    """Read what a worker prints until a line that begins so; return that."""
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith(beginning):
        assert line, "the worker ended"
    return line


def states_of(database: Database, trial: LoneTrial) -> dict[str, str]:
    """Return the states of a trial's checkpoints."""
    found = database.list_checkpoints(trial_id=trial.trial_id)
    return {each.uuid: each.state for each in found}


def test_deleting_asks_whether_a_model_needs_it(trial: LoneTrial) -> None:
    with trial.start(DELETES) as process:
        kept, part, gone = read_line(process, "uuids").split()[1:]
        with trial.database() as database:
            wait_for(
                lambda: (
                    len(database.list_checkpoints(trial_id=trial.trial_id, states=["COMPLETED"]))
                    == 3
                )
            )
            database.create_model("digits")
            database.register_version("digits", kept)
            rest, _ = process.communicate("\n")
            assert process.returncode == 0, rest
            states = {
                each.uuid: each.state for each in database.list_checkpoints(trial_id=trial.trial_id)
            }
            resources = set(database.get_checkpoint(part).resources)
            [event] = database.events(trial.trial_id)
    assert "refused" in rest
    assert states == {kept: "COMPLETED", part: "PARTIALLY_DELETED", gone: "DELETED"}
    assert resources == {"weights", "metadata.json"}
    assert (event.kind, event.payload["uuid"]) == ("checkpoint_deleting", kept)
    assert not (trial.storage / gone).exists()
    assert not (trial.storage / part / "optimizer").exists()
    assert (trial.storage / kept / "manifest.json").exists()


def test_deleting_in_an_outage_is_put_off(server: RunningServer, trial: LoneTrial) -> None:
    with trial.start(DELETES) as process:
        kept, part, gone = read_line(process, "uuids").split()[1:]
        with trial.database() as database:
            wait_for(
                lambda: (
                    len(database.list_checkpoints(trial_id=trial.trial_id, states=["COMPLETED"]))
                    == 3
                )
            )
        server.kill()
        rest, _ = process.communicate("\n")
        assert process.returncode == 0, rest
    assert f"checkpoint {gone} is not deleted yet" in rest
    for uuid in (kept, part, gone):  # no file goes before it is known that it may
        assert (trial.storage / uuid / "optimizer").exists()
    server.start()
    trial.run("from detcore import core\nwith core.init():\n    pass\n")
    with trial.database() as database:
        plugins = PluginManager(read_environment({"DETCORE_HOME": str(trial.home)}))
        storage = open_storage(str(trial.storage), home=trial.home, plugins=plugins)
        with contextlib.closing(storage):
            recover_checkpoints(database, storage, trial.trial_id)
        states = {
            each.uuid: each.state for each in database.list_checkpoints(trial_id=trial.trial_id)
        }
    assert states == {kept: "DELETED", part: "PARTIALLY_DELETED", gone: "DELETED"}
    assert not (trial.storage / gone).exists()
    assert not (trial.storage / kept).exists()
    assert not (trial.storage / part / "optimizer").exists()
    assert (trial.storage / part / "weights").exists()


REJECTS = """
from detcore import InvalidHP, core

with core.init() as context:
    context.train.report_training_metrics(1, {"loss": 1.0})
    context.train.report_early_exit(core.EarlyExitReason.INVALID_HP)
"""


def test_rejected_hyperparameters_are_recorded(trial: LoneTrial) -> None:
    trial.run(REJECTS)
    with trial.database() as database:
        record = database.get_trial(trial.trial_id)
    assert (record.state, record.error) == (TrialState.ERROR, "INVALID_HP")


TOO_LONG = """
from detcore import core
from detcore.errors import DatabaseError

with core.init() as context:
    try:
        context.train.report_training_metrics(1, {"loss": 1.0}, [{"loss": 0.5}] * 800_000)
    except DatabaseError as error:
        print(error)
    context.train.report_training_metrics(2, {"loss": 0.5})
    context.train.report_training_metrics(3, {"loss": 0.5}, [{"loss": 0.5}] * 500_000)
"""


def test_a_report_that_no_server_takes_is_refused_at_once(trial: LoneTrial) -> None:
    output = trial.run(TOO_LONG)
    assert "takes no more than" in output
    assert trial.steps() == [2, 3]
