"""Opening and closing a context: whose trial it is, and how it ended."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import call_in_child
from processes import wait_until

from detcore import core
from detcore.checkpoint import verify_checkpoint
from detcore.environment import read_environment
from detcore.errors import ConfigError, ContextStateError, InvalidHP, RunError, StorageError
from detcore.records import ingest_event_logs
from detcore.storage import LocalStorage
from detcore.types import Length, Unit

Open = Callable[..., core.Context]

SCRIPT = """
from detcore import InvalidHP, core
with core.init({arguments}) as context:
    context.train.report_training_metrics(1, {{"loss": 0.5}})
    with context.checkpoint.store_path({{"steps_completed": 1}}) as (path, uuid):
        (path / "w").write_text("weights")
    {body}
"""


def records(home: Any) -> tuple[Any, Any, Any]:
    with home.database() as database:
        ingest_event_logs(database, home.path)
        experiment = database.list_experiments()[-1]
        trial = database.list_trials(experiment.id)[-1]
        return experiment, trial, database.metrics(trial.id, "training")


def test_script_is_recorded_as_experiment(home: Any) -> None:
    code, _, stderr = home.run(SCRIPT.format(arguments="", body="raise SystemExit(3)"))
    assert code == 3, stderr
    experiment, trial, metrics = records(home)
    assert (experiment.name, experiment.state.value) == ("train.py", "ERROR")
    assert experiment.error == trial.error == "the script ended with exit code 3"
    assert experiment.model_dir == str(home.path.parent)
    assert [row.metrics for row in metrics] == [{"loss": 0.5}]
    with home.database() as database:
        (checkpoint,) = database.list_checkpoints()
    assert checkpoint.state == "COMPLETED"
    assert (home.path / "checkpoints" / checkpoint.uuid / "w").read_text() == "weights"


def test_script_warns_that_server_is_unused(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCORE_MASTER", "http://127.0.0.1:9")  # no server is contacted
    code, _, stderr = home.run(SCRIPT.format(arguments="", body="pass"))
    assert code == 0, stderr
    assert "not on the server http://127.0.0.1:9" in stderr
    experiment, _, metrics = records(home)
    assert (experiment.state.value, len(metrics)) == ("COMPLETED", 1)


def agree_to_stop(context: core.Context) -> None:
    context.preempt.request()
    assert context.preempt.should_preempt()


def raising(error: BaseException) -> Callable[[core.Context], None]:
    def end(_: core.Context) -> None:
        raise error

    return end


def exiting_early(reason: core.EarlyExitReason) -> Callable[[core.Context], None]:
    return lambda context: context.train.report_early_exit(reason)


@pytest.mark.parametrize(
    ("end", "state", "error"),
    [
        (lambda _: None, "COMPLETED", None),
        (raising(SystemExit(0)), "COMPLETED", None),
        (raising(SystemExit()), "COMPLETED", None),
        (raising(SystemExit(75)), "PAUSED", None),
        (agree_to_stop, "PAUSED", None),
        (lambda context: context.preempt.request(), "COMPLETED", None),
        (raising(ValueError("bad\nluck")), "ERROR", "ValueError: bad"),
        (raising(ConfigError("not so\nbut so")), "ERROR", "not so"),
        (raising(InvalidHP("lr too high")), "ERROR", "InvalidHP: lr too high"),
        (raising(InvalidHP()), "ERROR", "InvalidHP: InvalidHP"),
        (raising(KeyboardInterrupt()), "ERROR", "KeyboardInterrupt"),
        (
            exiting_early(core.EarlyExitReason.INVALID_HP),
            "ERROR",
            "InvalidHP: the trial rejected its hyperparameters",
        ),
        (exiting_early(core.EarlyExitReason.USER_REQUESTED_STOP), "COMPLETED", None),
    ],
)
def test_state_follows_from_block_exit(
    alone: Open, home: Any, end: Any, state: str, error: str | None
) -> None:
    with contextlib.suppress(BaseException), alone() as context:
        end(context)
    experiment, trial, _ = records(home)
    assert (trial.state.value, trial.error) == (state, error)
    reason = error and error.removeprefix("InvalidHP: ")
    assert (experiment.state.value, experiment.error) == (state, reason)


def test_start_and_close_replace_with(alone: Open, home: Any) -> None:
    context = alone()
    assert context.info is None
    with pytest.raises(ContextStateError, match=r"not open.*\n.*with core.init\(\) as context"):
        _ = context.train
    assert context.start() is context
    assert context.info is not None
    assert context.info.run_id == 1
    with pytest.raises(ContextStateError, match="was started before"):
        context.start()
    context.close()
    context.close()
    with pytest.raises(ContextStateError, match="was started before"):
        context.start()
    assert records(home)[0].state.value == "COMPLETED"


def test_checkpoint_storage_is_chosen(alone: Open, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    root.mkdir()
    with (
        alone(checkpoint_storage={"type": "shared_fs", "host_path": str(root)}) as context,
        context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid),
    ):
        assert path == root / uuid
    assert verify_checkpoint(LocalStorage(root), uuid) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"distributed": 3}, "distributed is a int; expected a DistributedContext"),
        ({"preempt_mode": "CHIEF"}, "preempt_mode is 'CHIEF'; expected a member of PreemptMode"),
        ({"tensorboard_mode": None}, "tensorboard_mode is None"),
    ],
)
def test_init_refuses_wrong_argument_types(alone: Open, arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        alone(**arguments)


def test_init_refuses_unwritable_storage(alone: Open, tmp_path: Path, home: Any) -> None:
    (tmp_path / "file").write_text("")
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StorageError, match="Not a directory"):
        alone(checkpoint_storage=str(tmp_path / "file" / "below")).start()
    assert signal.getsignal(signal.SIGTERM) == handler
    with home.database() as database:
        assert database.list_experiments() == []


def test_worker_uses_trial_of_runner(managed: Any, home: Any) -> None:
    context, info = managed({"searcher": {"max_length": {"batches": 5}}}, max_length={"epochs": 9})
    with context:
        assert context.info == info
        assert next(context.searcher.operations()).length == 5  # the file's, not the script's
        context.train.report_training_metrics(2, {"loss": 1.0})
    experiment, trial, metrics = records(home)
    # The runner records the end, because it sees also those that are killed.
    assert (experiment.state.value, trial.state.value) == ("RUNNING", "RUNNING")
    assert [row.steps_completed for row in metrics] == [2]


def test_worker_reports_invalid_hp(managed: Any, home: Any) -> None:
    ours, runner_end = socket.socketpair()
    context, _ = managed(channel_fd=runner_end.fileno())
    with pytest.raises(InvalidHP), context:
        raise InvalidHP("too deep")
    runner_end.close()
    with ours, ours.makefile("rb") as file:
        messages = [json.loads(line) for line in file]
    assert {"type": "finished", "state": "INVALID_HP", "error": "too deep"} in messages
    assert {"type": "early_exit", "reason": "INVALID_HP"} in messages
    assert records(home)[1].error == "INVALID_HP"


def test_trial_info_requires_a_runner() -> None:
    with pytest.raises(RunError, match=r"not started for a trial.*\n.*\n.*detcore run"):
        core.read_trial_info(read_environment({}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "info.json cannot be read"),
        ("{", "info.json does not describe a trial"),
        ('{"trial_id": 1}', "does not describe a trial.*missing"),
        ('{"colour": 1}', r"does not know: colour.*\n.*same detcore release"),
    ],
)
def test_invalid_trial_file_is_described(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "info.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RunError, match=message):
        core.read_trial_info(read_environment({"DETCORE_TRIAL_INFO": str(path)}))


HANGING = """
import os, sys
from detcore import core
with core.init() as context:
    context.train.report_training_metrics(3, {"loss": 0.25})
    with context.checkpoint.store_path({"steps_completed": 3}) as (path, uuid):
        (path / "w").write_text("whole")
    with context.checkpoint.store_path({"steps_completed": 4}) as (path, uuid):
        (path / "w").write_bytes(b"x" * 1_000_000)
        print("saving", flush=True)
        sys.stdin.read()
"""


def test_next_script_recovers_killed_script(home: Any) -> None:
    killed = home.start(HANGING, "killed.py", until="saving")
    alive = home.start(HANGING, "alive.py", until="saving")
    killed.kill()
    killed.wait()
    code, _, stderr = home.run(SCRIPT.format(arguments="", body="pass"), "next.py")
    assert code == 0, stderr
    with home.database() as database:
        first, second, third = database.list_experiments()
        assert (first.name, first.state.value) == ("killed.py", "ERROR")
        assert "ended without a report" in first.error
        assert (second.name, second.state.value) == ("alive.py", "RUNNING")
        assert (third.name, third.state.value) == ("next.py", "COMPLETED")
        # Its reports are on their way to the database.
        wait_until(lambda: len(database.list_checkpoints(experiment_id=second.id)) == 2)
        states = [
            [record.state for record in database.list_checkpoints(experiment_id=number.id)]
            for number in (first, second, third)
        ]
        assert states == [["COMPLETED", "DELETED"], ["COMPLETED", "ACTIVE"], ["COMPLETED"]]
        there = {path.name for path in (home.path / "checkpoints").iterdir()}
        checkpoints = database.list_checkpoints(states=["COMPLETED", "ACTIVE"])
        assert there == {record.uuid for record in checkpoints}
    alive.communicate(input="", timeout=30)
    assert records_of(home, "alive.py").state.value == "COMPLETED"


def records_of(home: Any, name: str) -> Any:
    with home.database() as database:
        return next(
            experiment for experiment in database.list_experiments() if experiment.name == name
        )


def test_unreachable_storage_does_not_block_others(home: Any, tmp_path: Path) -> None:
    root, away = tmp_path / "mounted", tmp_path / "away"
    code = HANGING.replace("core.init()", f"core.init(checkpoint_storage={str(root)!r})")
    killed = home.start(code, "killed.py", until="saving")
    killed.kill()
    killed.wait()
    root.rename(away)
    code, _, stderr = home.run(SCRIPT.format(arguments="", body="pass"), "next.py")
    assert code == 0, stderr
    assert "experiment 1 could not be recovered yet" in stderr
    assert records_of(home, "killed.py").state.value == "RUNNING"  # to be looked at again
    away.rename(root)
    home.run(SCRIPT.format(arguments="", body="pass"), "next.py")
    assert records_of(home, "killed.py").state.value == "ERROR"
    with home.database() as database:
        checkpoints = database.list_checkpoints(experiment_id=1)
    assert [checkpoint.state for checkpoint in checkpoints] == ["COMPLETED", "DELETED"]


def test_report_survives_sigkill(home: Any) -> None:
    code = """
import os, signal
from detcore import core
with core.init() as context:
    for step in range(1, 500):
        context.train.report_training_metrics(step, {"loss": float(step)})
        if step == 321:
            os.kill(os.getpid(), signal.SIGKILL)
"""
    returned, _, stderr = home.run(code)
    assert returned == -signal.SIGKILL, stderr
    assert [row.steps_completed for row in records(home)[2]] == list(range(1, 322))


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    output = capsys.readouterr()
    assert output.out == ""  # is the script's own
    return output.err.splitlines()


def test_script_prints_trial_and_outcome(
    alone: Any, home: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with alone() as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
        (start,) = said(capsys)
    assert start == (
        f"experiment 1, trial 1: from the start; records in {home.url}; "
        "show the trial with: detcore trial describe 1"
    )
    assert said(capsys) == ["experiment 1, trial 1: completed"]
    with pytest.raises(ZeroDivisionError), alone():
        raise ZeroDivisionError("my mistake")
    assert said(capsys)[-1] == "experiment 2, trial 2: error: ZeroDivisionError: my mistake"


def test_resumed_script_prints_origin(alone: Any, capsys: pytest.CaptureFixture[str]) -> None:
    context = alone().start()
    with context.checkpoint.store_path({"steps_completed": 7}) as (_, uuid):
        pass
    context.close(SystemExit(75))
    assert said(capsys)[-1] == (
        "experiment 1, trial 1: paused; "
        "core.init(resume=True) resumes it from its latest checkpoint"
    )

    def resume() -> list[str]:
        with alone(resume=True):
            return said(capsys)

    assert call_in_child(resume)[0].startswith(
        f"experiment 1, trial 1: from batch 7 (checkpoint {uuid}); records in "
    )


def test_script_without_checkpoint_prints_start(
    alone: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    alone().start().close(SystemExit(75))
    assert said(capsys)[-1] == (
        "experiment 1, trial 1: paused; "
        "core.init(resume=True) resumes it from the start: it has no checkpoint"
    )
    with pytest.raises(SystemExit), alone():
        raise SystemExit("no data\nat all")
    assert said(capsys)[-1] == "experiment 2, trial 2: error: the script ended: no data"


def test_script_prints_early_end(alone: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with alone(max_length={"batches": 10}) as context:
        context.train.report_training_metrics(5, {"loss": float("nan")})
    assert said(capsys)[-2:] == [
        "experiment 1, trial 1: the script ended at batch 5 of 10, before searcher.max_length",
        "experiment 1, trial 1: completed",
    ]
    alone(resume=True).start().close(SystemExit(75))
    assert said(capsys)[-1].endswith(
        "paused; start the script again: it resumes from the start: it has no checkpoint"
    )


def test_worker_prints_no_trial_lines(managed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    context, _ = managed()
    with context:
        pass
    assert said(capsys) == []


@pytest.mark.parametrize(
    "length",
    [0, -1, 1.5, True, "9", {}, {"batches": 0}, {"steps": 9}, {"batches": "9"},
     {"batches": 1, "epochs": 1}],
)  # fmt: skip
def test_invalid_length_is_refused(alone: Any, length: Any) -> None:
    with pytest.raises(ConfigError, match=r"max_length is .*; expected one of"):
        alone(max_length=length)


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        ({"records": 9}, {"records": 9}),
        (Length(2, Unit.EPOCHS), {"epochs": 2}),
        (7, {"batches": 7}),
    ],
)
def test_script_length_is_recorded(alone: Any, home: Any, length: Any, shown: Any) -> None:
    with alone(max_length=length) as context:
        operations = context.searcher.operations()
        operation = next(operations)
        operation.report_completed(0.5)
        assert list(operations) == []
    assert operation.length == next(iter(shown.values()))
    assert records(home)[0].config["searcher"]["max_length"] == shown


def test_interrupt_while_opening_has_no_traceback(
    managed: Any, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(storage: LocalStorage) -> None:
        raise KeyboardInterrupt  # as Python's own handler does, which pytest-xdist replaces

    context, _ = managed()
    monkeypatch.setattr(LocalStorage, "probe", interrupt)
    with pytest.raises(SystemExit) as ended, context:
        raise AssertionError("it is open")
    assert ended.value.code == 130
    assert ended.value.__suppress_context__
    monkeypatch.delenv("DETCORE_TRIAL_INFO")
    with pytest.raises(KeyboardInterrupt), alone():  # a standalone script has no other output
        raise AssertionError("it is open")
