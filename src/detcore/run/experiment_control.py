"""Pause, cancel and kill experiments from other processes; lock experiments."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import InvalidArgumentError, RunError
from detcore.contract.values import Control, ExperimentState, TrialState
from detcore.log.events import TrialFinished
from detcore.plugins.delivery import append_to_killed
from detcore.records import ingest_event_logs, restore_secrets
from detcore.run.checkpoint_source import recover_trial
from detcore.storage import open_storage

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from detcore.environment import Environment
    from detcore.plugins import PluginManager
    from detcore.records import Database, ExperimentRecord, Runner, RunnerLock
    from detcore.storage import StorageBackend


_FINAL_STATES = (ExperimentState.COMPLETED, ExperimentState.ERROR, ExperimentState.CANCELED)
# Workers of a killed runner exit within milliseconds. The timeout allows for a loaded machine.
_LOCK_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.05
_PAST_TENSES = {Control.PAUSE: "paused", Control.CANCEL: "canceled", Control.KILL: "killed"}
_KILLED = "the script ended without a report (it was killed, or the machine went down)"


def control_experiment(
    experiment_id: int, control: Control, *, database: Database, environment: Environment
) -> bool:
    """Request the runner of an experiment to pause, cancel or kill it.

    Returns immediately. The runner polls for requests about twice a second, and its trials save a
    checkpoint first, unless they are killed. Without a runner, only the records are changed.

    Args:
        experiment_id: The experiment.
        control: Pause, cancel or kill.
        database: The records.
        environment: Its home directory contains the experiment's lock.

    Returns:
        True if a runner was notified. False if no runner exists and the records have the new state.
        Cancelling or killing a CANCELED experiment has no effect.

    Raises:
        NotFoundError: If the experiment does not exist.
        RunError: If the experiment has ended otherwise, or if `control` is KILL for a script.
    """
    control = Control(control)
    while True:  # repeat if the state has changed between reading and requesting
        record, is_alive = database.observe_experiment(experiment_id)
        if record.state is ExperimentState.CANCELED and control is not Control.PAUSE:
            return False
        if record.state in _FINAL_STATES:
            raise RunError(
                f"experiment {experiment_id} has ended ({record.state.value}), so it cannot be "
                f"{_PAST_TENSES[control]}.\nList experiments with:  detcore experiment list"
            )
        if not is_alive:
            reconcile_experiment(
                experiment_id, control=control, database=database, environment=environment
            )
            return False
        if record.config.get("is_standalone") and control is Control.KILL:
            runner = database.find_runner(experiment_id)
            number = runner.pid if runner and runner.pid else "PROCESS"
            raise RunError(
                f"experiment {experiment_id} is a standalone script, process {number}, which "
                f"contains its runner.\nKill it with:  kill -9 {number}\nTo let it save a "
                f"checkpoint first:  detcore experiment cancel {experiment_id}"
            )
        if database.request_control(experiment_id, control):
            return True


def control_trial(
    trial_id: int, control: Control | str, *, database: Database, environment: Environment
) -> bool:
    """Request the runner of an experiment to end one of its trials for good.

    The other trials continue. The search method is notified that the trial stopped. Without a
    runner, the next runner ends the trial. If the experiment has only one trial, the experiment
    ends.

    Args:
        trial_id: The trial.
        control: CANCEL lets it save a checkpoint first; KILL does not.
        database: The records.
        environment: Its home directory contains the experiment's lock.

    Returns:
        True if a runner was notified; False if no runner exists. Cancelling or killing a CANCELED
        trial has no effect.

    Raises:
        InvalidArgumentError: If `control` is another request.
        NotFoundError: If the trial does not exist.
        RunError: If the trial has ended otherwise, or if `control` is KILL for a script.
    """
    if control not in (Control.CANCEL, Control.KILL):
        raise InvalidArgumentError(f"control is {control!r}; expected CANCEL or KILL for a trial")
    control = Control(control)
    trial = database.get_trial(trial_id)
    if trial.state is TrialState.CANCELED:
        return False
    experiment = database.get_experiment(trial.experiment_id)
    if trial.state not in _FINAL_STATES and _has_single_trial(experiment):
        return control_experiment(
            experiment.id, control, database=database, environment=environment
        )
    if not database.request_trial_control(trial_id, control):
        raise RunError(
            f"trial {trial_id} has ended ({trial.state.value}), so it cannot be "
            f"{_PAST_TENSES[control]}.\n"
            f"List the trials with:  detcore experiment describe {experiment.id}"
        )
    return database.is_experiment_alive(experiment.id)


def _has_single_trial(experiment: ExperimentRecord) -> bool:
    return experiment.searcher.name in (None, "single")


def reconcile_experiment(
    experiment_id: int,
    *,
    database: Database,
    environment: Environment,
    control: Control = Control.PAUSE,
) -> ExperimentState:
    """Correct the records of an experiment whose runner has exited.

    Running experiments and trials become PAUSED. An experiment that has ended is unchanged.

    Args:
        experiment_id: The experiment.
        database: The records.
        environment: Its home directory contains the experiment's lock.
        control: With CANCEL or KILL, the experiment and its unfinished trials become CANCELED.

    Returns:
        The new state of the experiment.

    Raises:
        NotFoundError: If the experiment does not exist.
        RunError: If its runner or one of its workers is still running.
    """
    database.get_experiment(experiment_id)
    with hold_experiment_lock(database, environment, experiment_id):
        ingest_event_logs(database, environment.home)
        record = database.get_experiment(experiment_id)
        if record.state in _FINAL_STATES:
            return record.state
        state = ExperimentState.PAUSED
        if control is not Control.PAUSE:
            state = ExperimentState.CANCELED
        set_open_trial_states(database, experiment_id, state)
        if record.state is not state:
            database.set_experiment_state(experiment_id, state)
        database.request_control(experiment_id, None)
        return state


def recover_killed_script(
    experiment_id: int, *, database: Database, environment: Environment, plugins: PluginManager
) -> None:
    """Recover the records of a script that was killed, or that ended while saving a checkpoint.

    Recovers its checkpoints and, after a kill, records its end and notifies its observers.

    Args:
        experiment_id: The script's experiment.
        database: The records.
        environment: Its home directory contains the experiment's lock.
        plugins: Provide its storage.

    Raises:
        DetcoreError: If its storage cannot be used now, or the script is still running.
    """
    home = environment.home
    with hold_experiment_lock(database, environment, experiment_id):
        record = database.get_experiment(experiment_id)
        was_killed = record.state is ExperimentState.RUNNING
        ingest_event_logs(database, home, experiment_id=experiment_id)
        spec = restore_secrets(home, experiment_id, record.config).config["checkpoint_storage"]
        with contextlib.closing(open_storage(spec, home=home, plugins=plugins)) as storage:
            for trial in database.list_trials(experiment_id):
                recover_trial(database, storage, trial)
                if was_killed:
                    database.set_trial_state(trial.id, TrialState.ERROR, error=_KILLED)
        if was_killed:
            log_trial_ends(database, experiment_id)
            database.set_experiment_state(experiment_id, ExperimentState.ERROR, error=_KILLED)


def set_open_trial_states(database: Database, experiment_id: int, state: ExperimentState) -> None:
    """Record a state for the unfinished trials of an experiment."""
    for trial in database.list_trials(experiment_id):
        if trial.state not in (*_FINAL_STATES, state):
            database.set_trial_state(trial.id, state)
    log_trial_ends(database, experiment_id)


def log_trial_ends(
    database: Database,
    experiment_id: int,
    storage: StorageBackend | None = None,
    *,
    without: Container[int] = (),
) -> None:
    """Append the recorded ends of killed runs to their logs, for observers.

    Args:
        database: The records.
        experiment_id: The experiment. No process works on its trials that are not running.
        storage: Storage of unreported checkpoints, which are logged before the ends.
        without: Trials whose workers outlive their runner.
    """
    for cursor in database.list_cursors(experiment_id=experiment_id):
        trial = database.get_trial(cursor.trial_id)
        if trial.id in without:
            continue
        if trial.state is not TrialState.RUNNING and trial.run_id == cursor.run_id:
            if storage is not None:
                recover_trial(database, storage, trial)
            end = TrialFinished(state=trial.state.value, error=trial.error)
            append_to_killed(database, trial, end)


@contextlib.contextmanager
def hold_experiment_lock(
    database: Database, environment: Environment, experiment_id: int
) -> Iterator[RunnerLock]:
    """Hold an experiment's lock, which the chief workers of its trials inherit.

    The lock is held while any process has its file open, so it outlives a killed runner until its
    workers have exited. This function waits for such workers, and for a runner that has recorded
    the experiment's end.

    Args:
        database: The records.
        environment: Its home directory contains the lock file if the records are on a server.
        experiment_id: The experiment.

    Raises:
        RunError: If the experiment is still running.
    """
    lock = database.open_lock(experiment_id, environment.home)
    with contextlib.closing(lock):
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not lock.acquire():
            holder = lock.find_holder()
            is_at_work = holder.is_alive and not _has_ended(database, experiment_id)
            if time.monotonic() >= deadline or is_at_work:
                remaining_pids = [] if holder.is_alive else _find_processes_with(lock.fd)
                raise RunError(_describe_holder(experiment_id, holder, remaining_pids))
            time.sleep(_POLL_INTERVAL_S)
        yield lock


@contextlib.contextmanager
def create_locked_experiment(
    database: Database, environment: Environment, *, model_dir: str, **recorded: Any
) -> Iterator[tuple[int, RunnerLock]]:
    """Record a new experiment, and hold its lock before other processes can see it.

    Args:
        database: The records.
        environment: As for `hold_experiment_lock`.
        model_dir: Directory of the user's code.
        recorded: Additional arguments of `Database.create_experiment`.

    Yields:
        The experiment's id and its lock.
    """
    with contextlib.ExitStack() as stack:
        locks: list[RunnerLock] = []

        def take_lock(_: Connection, experiment_id: int) -> str:
            lock = database.open_lock(experiment_id, environment.home)
            stack.enter_context(contextlib.closing(lock))
            if not lock.acquire():  # held for an earlier database with the same ids
                raise RunError(_describe_holder(experiment_id, lock.find_holder(), []))
            locks.append(lock)
            return model_dir

        experiment_id = database.create_experiment(place=take_lock, **recorded)
        yield experiment_id, locks[-1]


def _describe_holder(experiment_id: int, holder: Runner, remaining_pids: list[str]) -> str:
    if remaining_pids:  # a stopped worker does not notice that its runner has exited
        return (
            f"the runner {holder.pid} of experiment {experiment_id} has exited, but its workers "
            f"are still running: {', '.join(remaining_pids)}.\nThey would train the same trial.\n"
            f"Kill them first:  kill -9 {' '.join(remaining_pids)}"
        )
    location = "" if holder.is_here else f" on {holder.host}"
    return (
        f"experiment {experiment_id} is already running, in process {holder.pid}{location}.\n"
        "Two runners would train the same trial twice.\n"
        f"Wait for it, or end it first:  kill {holder.pid or 'PROCESS'}"
    )


def _find_processes_with(descriptor: int) -> list[str]:
    """Return the other processes that have a descriptor's file open, from Linux's /proc."""
    file_status, pids = os.fstat(descriptor), []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            files = [os.stat(path) for path in (directory / "fd").iterdir()]
            if any(os.path.samestat(file_status, file) for file in files):
                pids.append(directory.name)
    return [pid for pid in pids if pid != str(os.getpid())]


def _has_ended(database: Database, experiment_id: int) -> bool:
    return database.get_experiment(experiment_id).state is not ExperimentState.RUNNING
