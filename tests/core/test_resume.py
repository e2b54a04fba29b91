"""Standalone scripts that resume runs of earlier processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from forked import call_in_child

from detcore import core
from detcore.environment import read_environment
from detcore.errors import ConfigError, InvalidHP, RunError
from detcore.plugins import PluginManager
from detcore.records import Database, ingest_event_logs
from detcore.run import control_experiment, hold_experiment_lock, reconcile_experiment
from detcore.run.script_runs import ScriptRuns, _identify_process
from detcore.types import Control, ExperimentState, TrialState

# Adds a number that depends on the step, so that a skipped step is detected.
SCRIPT = """
import signal, sys
from detcore import core
with core.init(resume=True, script=core.ScriptExperiment(hparams={"rate": 2})) as context:
    total, steps = 0, context.info.steps_completed
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            total = int((path / "total").read_text())
    print("from", steps, flush=True)
    while steps < 40:
        steps += 1
        total += context.info.hparams["rate"] * steps * steps
        context.train.report_training_metrics(steps, {"total": total})
        is_preempted = context.preempt.should_preempt()
        if is_preempted or steps % 10 == 0:
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                (path / "total").write_text(str(total))
        if is_preempted:
            raise SystemExit(75)
        print("step", steps, flush=True)
        sys.stdin.readline()  # until the test says so
    print("total", total)
"""
TOTAL = 2 * sum(step * step for step in range(1, 41))


def advance(process: Any, to_step: int) -> None:
    """Let a script continue until it waits at a step."""
    for line in process.stdout:
        if line == f"step {to_step}\n":
            return
        if line.startswith("step"):
            process.stdin.write("\n")
            process.stdin.flush()
    raise AssertionError(process.stderr.read())


def finish(process: Any) -> str:
    stdout, stderr = process.communicate("\n" * 50, timeout=60)
    assert process.returncode == 0, stderr
    return str(stdout)


def test_killed_script_resumes_exactly(home: Any) -> None:
    killed = home.start(SCRIPT)
    advance(killed, 13)
    killed.kill()
    killed.communicate()
    preempted = home.start(SCRIPT)
    advance(preempted, 17)
    preempted.send_signal(signal.SIGTERM)
    preempted.communicate("\n", timeout=60)
    assert preempted.returncode == 75

    printed = finish(home.start(SCRIPT))

    assert "from 18\n" in printed
    assert f"total {TOTAL}\n" in printed
    with home.database() as database:
        (experiment,) = database.list_experiments()
        assert (experiment.state, experiment.error) == (ExperimentState.COMPLETED, None)
        assert [run.run_id for run in database.list_runs(1)] == [1, 2, 3]
        assert [m.steps_completed for m in database.metrics(1, "training")] == list(range(1, 41))
        assert database.get_trial(1).state is ExperimentState.COMPLETED


def test_script_killed_before_checkpoint_starts_over(home: Any) -> None:
    killed = home.start(SCRIPT)
    advance(killed, 3)
    killed.kill()
    killed.communicate()

    printed = finish(home.start(SCRIPT))

    assert "from 0\n" in printed
    assert f"total {TOTAL}\n" in printed
    with home.database() as database:
        assert len(database.list_experiments()) == 1


def test_running_script_is_not_resumed(home: Any) -> None:
    first = home.start(SCRIPT)
    advance(first, 11)
    second = home.start(SCRIPT)
    advance(second, 1)
    finish(first)
    finish(second)
    with home.database() as database:
        states = [experiment.state for experiment in database.list_experiments()]
    assert states == [ExperimentState.COMPLETED] * 2


Open = Callable[..., core.Context]


def leave(context: core.Context, ending: BaseException | None = None) -> tuple[int, int]:
    """In a separate process, save a checkpoint and end in some way.

    Returns:
        The experiment, and the step where it started.
    """

    def run() -> tuple[int, int]:
        with pytest.raises(type(ending)) if ending else contextlib.nullcontext(), context:
            assert context.info is not None
            position = context.info.experiment_id, context.info.steps_completed
            with context.checkpoint.store_path({"steps_completed": position[1] + 5}) as (path, _):
                (path / "w").write_text("w")
            if ending is not None:
                raise ending
        return position

    return call_in_child(run)


@pytest.mark.parametrize("ending", [SystemExit(75), ValueError("a bug"), SystemExit(3)])
def test_early_ended_script_is_resumed(alone: Open, ending: BaseException) -> None:
    assert leave(alone(resume=True), ending) == (1, 0)
    assert leave(alone(resume=True)) == (1, 5)


def test_script_without_resume_starts_new_experiment(alone: Open) -> None:
    leave(alone(), SystemExit(75))
    assert leave(alone()) == (2, 0)
    assert leave(alone(resume=True)) == (3, 0), "the newest is complete"


def test_script_recorded_without_resume_is_resumed(alone: Open) -> None:
    leave(alone(), SystemExit(75))
    assert leave(alone(resume=True)) == (1, 5)


def test_rejected_hyperparameters_are_not_resumed(alone: Open) -> None:
    leave(alone(resume=True), InvalidHP("too large"))
    assert leave(alone(resume=True)) == (2, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"hparams": {"rate": 3}},
        {"seed": 1},
        {"name": "other"},
        {"config": {"searcher": {"metric": "loss"}}},
        {"model_dir": Path("/elsewhere")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_different_settings_start_new_experiment(alone: Open, changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"hparams": {"rate": 2, "shape": (2, 3)}, "name": "mine"}
    leave(alone(resume=True, script=core.ScriptExperiment(**settings)), SystemExit(75))
    other = core.ScriptExperiment(**{**settings, **changes})
    assert leave(alone(resume=True, script=other), SystemExit(75)) == (2, 0)
    same = core.ScriptExperiment(**settings)
    assert leave(alone(resume=True, script=same)) == (1, 5), "older, but the same"


def test_resumed_script_may_train_longer(alone: Open) -> None:
    leave(alone(resume=True, max_length={"batches": 5}), SystemExit(75))
    with alone(resume=True, max_length={"batches": 9}) as context:
        assert context.info is not None
        assert (context.info.experiment_id, context.info.steps_completed) == (1, 5)
        assert [operation.length for operation in completed(context)] == [9]


def completed(context: core.Context) -> Iterator[core.SearcherOperation]:
    for operation in context.searcher.operations():
        yield operation
        operation.report_completed(0.5)


def test_different_storage_starts_new_experiment(alone: Open, tmp_path: Path) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    leave(alone(resume=True, checkpoint_storage=here), SystemExit(75))
    assert leave(alone(resume=True, checkpoint_storage=there)) == (2, 0)
    assert leave(alone(resume=True, checkpoint_storage=here)) == (1, 5)


def test_settings_with_secret_are_recognized(alone: Open) -> None:
    secret = core.ScriptExperiment(config={"data": {"api_token": "s3cr3t-t0ken"}})
    leave(alone(resume=True, script=secret), SystemExit(75))
    assert leave(alone(resume=True, script=secret)) == (1, 5)


def test_resume_checkpoint_is_parent_of_next(alone: Open, home: Any) -> None:
    leave(alone(resume=True), SystemExit(75))
    leave(alone(resume=True))
    with home.database() as database:
        first, second = database.list_checkpoints()
    context = alone()
    with context:
        assert context.checkpoint.get_manifest(second.uuid).parent == first.uuid


def test_worker_ignores_resume_argument(
    alone: Open, managed: Callable[..., tuple[core.Context, Any]]
) -> None:
    context, info = managed(resume=True)
    with context:
        assert context.info == info


def test_experiment_is_claimed_once(home: Any) -> None:
    with home.database() as database:
        experiment = database.create_experiment(
            config={}, config_text=None, model_dir="/", name="x"
        )
        assert not database.claim_experiment(experiment), "it is running"
        database.set_experiment_state(experiment, ExperimentState.PAUSED)
        barrier, claimed = threading.Barrier(4), []

        def claim() -> None:
            with home.database() as second_database:
                barrier.wait()
                claimed.append(second_database.claim_experiment(experiment))

        threads = [threading.Thread(target=claim) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(claimed) == [False, False, False, True]
        assert database.get_experiment(experiment).state is ExperimentState.RUNNING
        assert not database.claim_experiment(99)


SAVING = """
import sys
from detcore import core
with core.init(resume=True) as context:
    with context.checkpoint.store_path({"steps_completed": 4}) as (path, uuid):
        (path / "w").write_text("weights")
        print("saving", flush=True)
        sys.stdin.read()
"""


class Meanwhile:
    """Records whose first answer to a question is followed by something else.

    The moment between a query and the following action cannot be hit from outside.
    """

    def __init__(self, database: Database, question: str, happens: Callable[[], None]) -> None:
        self._database = database
        self._question = question
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._database, name)
        if name != self._question:
            return method

        def ask(*arguments: object) -> object:
            answer = method(*arguments)
            self._question = ""
            self._happens()
            return answer

        return ask


@pytest.mark.parametrize(
    "state", [None, ExperimentState.ERROR], ids=["killed", "ended-while-saving"]
)
def test_experiment_claimed_by_other_is_skipped(home: Any, state: ExperimentState | None) -> None:
    first = home.start(SAVING, until="saving")
    first.kill()
    first.wait()
    with home.database() as database:
        ingest_event_logs(database, home.path)
    other_processes = []

    def another_starts() -> None:
        other_processes.append(home.start(SAVING, until="saving"))

    environment = read_environment({"DETCORE_HOME": str(home.path)})
    with home.database() as database:
        if state is not None:
            database.set_experiment_state(1, state)
        records = cast("Database", Meanwhile(database, "is_experiment_alive", another_starts))
        ScriptRuns(records, environment, PluginManager(environment)).recover_killed_scripts()
        (other,) = other_processes
        record, runner = database.get_experiment(1), database.find_runner(1)
        assert (record.state, runner.pid) == (ExperimentState.RUNNING, other.pid)
        assert database.list_trials(1)[0].state is TrialState.RUNNING
        ingest_event_logs(database, home.path)
        removed, remaining = database.list_checkpoints()
        assert (removed.state, remaining.state) == ("DELETED", "ACTIVE")
        other.communicate("", timeout=60)
        assert other.returncode == 0
        assert database.get_checkpoint(remaining.uuid).state == "COMPLETED"
        assert (home.path / "checkpoints" / remaining.uuid / "w").read_text() == "weights"
        assert database.get_experiment(1).state is ExperimentState.COMPLETED


def test_resume_waits_for_recovery_by_other(home: Any) -> None:
    """A restarted script does not start over because another script starts concurrently."""
    first = home.start(SCRIPT)
    advance(first, 15)
    first.kill()
    first.wait()
    other_processes = []

    def the_same_starts() -> None:
        other_processes.append(home.start(SCRIPT))
        time.sleep(2)  # it finds that this process has the lock, and tries again

    environment = read_environment({"DETCORE_HOME": str(home.path)})
    with home.database() as database:
        records = cast("Database", Meanwhile(database, "list_trials", the_same_starts))
        ScriptRuns(records, environment, PluginManager(environment)).recover_killed_scripts()
        output = finish(other_processes[0])
        assert output.startswith("from 10\n")
        assert output.endswith(f"total {TOTAL}\n")
        assert len(database.list_experiments()) == 1


@pytest.mark.soak
def test_concurrent_scripts_resume_different_runs(home: Any) -> None:
    """As the tasks of an array of a cluster's jobs do, after the machine was restarted."""
    names = [f"train_{number}.py" for number in range(5)]
    killed = [home.start(SCRIPT, name) for name in names]
    for process in killed:
        advance(process, 15)
    for process in killed:
        process.kill()
        process.wait()
    again = [home.start(SCRIPT, name) for name in names]
    for process in again:
        output = finish(process)
        assert output.startswith("from 10\n")
        assert output.endswith(f"total {TOTAL}\n")
    with home.database() as database:
        experiments = database.list_experiments()
        assert sorted(record.name for record in experiments) == names
        assert {record.state for record in experiments} == {ExperimentState.COMPLETED}
        checkpoints = database.list_checkpoints()
        assert {record.state for record in checkpoints} == {"COMPLETED"}
        assert len(checkpoints) == 5 * 4


def test_resumed_experiment_is_not_paused_later(home: Any) -> None:
    process = home.start(SAVING, until="saving")
    with home.database() as database:
        with pytest.raises(RunError, match=f"already running, in process {process.pid}"):
            reconcile_experiment(
                1,
                database=database,
                environment=read_environment({"DETCORE_HOME": str(home.path)}),
                control=Control.CANCEL,
            )
        process.communicate("", timeout=60)
        assert database.get_experiment(1).state is ExperimentState.COMPLETED


def test_resume_must_be_a_boolean() -> None:
    with pytest.raises(ConfigError, match="resume is 7; expected True or False"):
        core.init(resume=7)  # type: ignore[arg-type]  # what a user may try


def test_script_ignoring_checkpoint_is_warned(home: Any) -> None:
    forgetful = SCRIPT.replace("context.info.latest_checkpoint is not None", "False").replace(
        "context.info.steps_completed", "0"
    )
    for code, num_warnings, step in ((forgetful, 0, 31), (forgetful, 1, 31), (SCRIPT, 0, 35)):
        process = home.start(code)
        advance(process, step)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate("\n", timeout=60)
        assert process.returncode == 75, stderr
        assert stderr.count("restored no checkpoint and reports batch 1: it") == num_warnings
        assert stderr.count("restore_path(context.info.latest_checkpoint)") == num_warnings


def command(home: Any, *words: str) -> str:
    """Run a command of detcore; return its output."""
    result = subprocess.run(
        [sys.executable, "-m", "detcore", *words],
        env={**os.environ, "DETCORE_HOME": str(home.path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return result.stdout


def step_to_end(script: Any) -> None:
    """Let a script continue, step by step, until its runner has seen the request."""
    while script.poll() is None:
        with contextlib.suppress(BrokenPipeError):
            script.stdin.write("\n")
            script.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.wait(1)
    assert script.returncode == 75, script.stderr.read()


def test_command_pauses_and_cancels_script(home: Any) -> None:
    script = home.start(SCRIPT)
    advance(script, 13)
    command(home, "experiment", "pause", "1", "--no-wait")
    step_to_end(script)
    with home.database() as database:
        assert database.get_experiment(1).state is ExperimentState.PAUSED

    again = home.start(SCRIPT)
    assert int(again.stdout.readline().removeprefix("from ")) >= 14
    command(home, "experiment", "cancel", "1", "--no-wait")
    step_to_end(again)
    with home.database() as database:
        assert database.get_experiment(1).state is ExperimentState.CANCELED
    assert "from 0\n" in finish(home.start(SCRIPT)), "a canceled run is not continued"


def test_kill_command_refuses_scripts(home: Any) -> None:
    script = home.start(SCRIPT)
    advance(script, 3)
    with home.database() as database, pytest.raises(RunError, match=f"kill -9 {script.pid}"):
        control_experiment(
            1,
            Control.KILL,
            database=database,
            environment=read_environment({"DETCORE_HOME": str(home.path)}),
        )
    finish(script)


@pytest.mark.parametrize("place", ["argument", "configuration"])
@pytest.mark.parametrize(
    ("rules", "kept"),
    [("", 4), (', "save_trial_best": 1', 4), (', "save_trial_latest": 1', 1)],
    ids=["none", "no-metric", "latest"],
)
def test_script_keeps_all_checkpoints_by_default(
    home: Any, place: str, rules: str, kept: int
) -> None:
    storage = f'{{"type": "shared_fs", "host_path": {str(home.path.parent)!r}{rules}}}'
    code = SCRIPT.replace("resume=True", f"resume=True, checkpoint_storage={storage}")
    if place == "configuration":
        config = f'config={{"checkpoint_storage": {storage}}}, hparams='
        code = SCRIPT.replace("hparams=", config)
    finish(home.start(code))
    with home.database() as database:
        assert len(database.list_checkpoints(states=["COMPLETED"])) == kept


def test_run_of_live_process_is_not_claimed(home: Any) -> None:
    script = home.start(SCRIPT)
    advance(script, 11)
    script.send_signal(signal.SIGTERM)
    script.communicate("\n", timeout=60)
    with home.database() as database:
        start = _identify_process(os.getpid())
        with hold_experiment_lock(database, read_environment({"DETCORE_HOME": str(home.path)}), 1):
            database.claim_experiment(1, script_start=start)
            assert "from 0\n" in finish(home.start(SCRIPT))
            assert database.get_experiment(1).state is ExperimentState.RUNNING


def test_script_configuration_refuses_search(alone: Open) -> None:
    script = core.ScriptExperiment(
        config={"searcher": {"name": "random", "metric": "loss", "max_trials": 3}}
    )
    with pytest.raises(ConfigError, match=r"searcher\.name is 'random', but a standalone script"):
        alone(script=script).start()
