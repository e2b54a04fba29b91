"""Pause, cancel and kill experiments from other processes than their runner; its lock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
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


_OVER = (ExperimentState.COMPLETED, ExperimentState.ERROR, ExperimentState.CANCELED)
# A worker whose runner was killed notices within milliseconds; this is for a loaded machine.
_WAIT_S = 10.0
_POLL_INTERVAL_S = 0.05
_KILLED = "the script ended without saying how (killed, or the machine went down)"


def control_experiment(
    experiment_id: int, control: Control, *, database: Database, environment: Environment
) -> bool:
    """Ask the runner of an experiment to pause, cancel or kill it; without a runner, do it.

    Returns at once: the runner looks for requests about twice a second, and its trials checkpoint
    first, unless they are killed.

    Args:
        experiment_id: Which experiment.
        control: Pause, cancel or kill.
        database: The records.
        environment: Where the experiment's lock is.

    Returns:
        True if a runner was asked; False if no runner exists and the records have the new state.
        To cancel or kill a CANCELED experiment has no effect.

    Raises:
        NotFoundError: If there is no such experiment.
        RunError: If the experiment is over otherwise, or is a script that is to be killed.
    """
    control = Control(control)
    while True:  # until the state has not changed between reading and acting
        record, is_alive = database.observe_experiment(experiment_id)
        if record.state is ExperimentState.CANCELED and control is not Control.PAUSE:
            return False
        if record.state in _OVER:
            raise RunError(
                f"experiment {experiment_id} is over ({record.state.value}): there is nothing to "
                f"{control.value}.\nThose that can be: detcore experiment list"
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
                f"experiment {experiment_id} is a script that runs by itself, as process "
                f"{number}.\nIts runner is part of it. End it: kill -9 {number}, or let it save a "
                f"checkpoint first: detcore experiment cancel {experiment_id}"
            )
        if database.request_control(experiment_id, control):
            return True


def control_trial(
    trial_id: int, control: Control | str, *, database: Database, environment: Environment
) -> bool:
    """Ask the runner of an experiment to end one of its trials for good; the others continue.

    The search method is notified that the trial stopped. Without a runner, the next one ends the
    trial. The only trial that an experiment can have is ended with the experiment.

    Args:
        trial_id: Which trial.
        control: CANCEL lets it checkpoint first; KILL does not.
        database: The records.
        environment: Where the experiment's lock is.

    Returns:
        True if a runner was asked; False if no runner exists. To cancel or kill a CANCELED trial
        has no effect.

    Raises:
        InvalidArgumentError: If `control` is another request.
        NotFoundError: If there is no such trial.
        RunError: If the trial is over otherwise, or has no runner: a standalone script.
    """
    if control not in (Control.CANCEL, Control.KILL):
        raise InvalidArgumentError(f"{control!r} is nothing that can be done with a trial")
    control = Control(control)
    trial = database.get_trial(trial_id)
    if trial.state is TrialState.CANCELED:
        return False
    experiment = database.get_experiment(trial.experiment_id)
    if trial.state not in _OVER and _is_alone(experiment):
        return control_experiment(
            experiment.id, control, database=database, environment=environment
        )
    if not database.request_trial_control(trial_id, control):
        raise RunError(
            f"trial {trial_id} is over ({trial.state.value}): there is nothing to "
            f"{control.value}.\nThose that can be: detcore experiment describe {experiment.id}"
        )
    return database.is_experiment_alive(experiment.id)


def _is_alone(experiment: ExperimentRecord) -> bool:
    return experiment.searcher.name in (None, "single")


def reconcile_experiment(
    experiment_id: int,
    *,
    database: Database,
    environment: Environment,
    control: Control = Control.PAUSE,
) -> ExperimentState:
    """Correct the records of an experiment whose runner is gone.

    Trials and experiments that are recorded as running become PAUSED. One that is over stays as it
    is.

    Args:
        experiment_id: Which experiment.
        database: The records.
        environment: Where the experiment's lock is.
        control: CANCEL and KILL make it, and its trials that are not over, CANCELED.

    Returns:
        The experiment's state now.

    Raises:
        NotFoundError: If there is no such experiment.
        RunError: If its runner, or one of its workers, is still there.
    """
    database.get_experiment(experiment_id)
    with hold_experiment_lock(database, environment, experiment_id):
        ingest_event_logs(database, environment.home)
        record = database.get_experiment(experiment_id)
        if record.state in _OVER:
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
    """Settle the leftovers of a script that was killed, or that ended while it saved a checkpoint.

    Those are its checkpoints and, after a kill, its state, which its observers get as its end.

    Args:
        experiment_id: Its experiment.
        database: The records.
        environment: Where the experiment's lock is.
        plugins: Open its storage.

    Raises:
        DetcoreError: If its storage cannot be used now, or the script is still there.
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
    """Record a state of the trials of an experiment that are not over."""
    for trial in database.list_trials(experiment_id):
        if trial.state not in (*_OVER, state):
            database.set_trial_state(trial.id, state)
    log_trial_ends(database, experiment_id)


def log_trial_ends(
    database: Database, experiment_id: int, storage: StorageBackend | None = None
) -> None:
    """Append the recorded ends of killed runs to their logs, for observers.

    Args:
        database: The records.
        experiment_id: The experiment; no process works on those of its trials that do not run.
        storage: Where checkpoints are that belong before the ends and are not reported yet.
    """
    for cursor in database.list_cursors(experiment_id=experiment_id):
        trial = database.get_trial(cursor.trial_id)
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

    The lock is held as long as any process has its file open, so it outlives a killed runner until
    these are gone too. They are waited for, and so is a runner that has recorded the
    experiment's end.

    Args:
        database: Where the experiment is recorded.
        environment: Its `home` holds the file of the lock where the records are on a server.
        experiment_id: Its number.

    Raises:
        RunError: If the experiment is still running.
    """
    lock = database.open_lock(experiment_id, environment.home)
    with contextlib.closing(lock):
        deadline = time.monotonic() + _WAIT_S
        while not lock.acquire():
            holder = lock.find_holder()
            is_at_work = holder.is_alive and not _has_ended(database, experiment_id)
            if time.monotonic() >= deadline or is_at_work:
                left = [] if holder.is_alive else _processes_with(lock.fd)
                raise RunError(_describe_holder(experiment_id, holder, left))
            time.sleep(_POLL_INTERVAL_S)
        yield lock


@contextlib.contextmanager
def create_locked_experiment(
    database: Database, environment: Environment, *, model_dir: str, **recorded: Any
) -> Iterator[tuple[int, RunnerLock]]:
    """Record a new experiment; hold its lock from before other processes see it.

    Args:
        database: Where it is recorded.
        environment: As for `hold_experiment_lock`.
        model_dir: Folder of the user's code.
        recorded: Further arguments of `Database.create_experiment`.

    Yields:
        Its id, and its lock.
    """
    with contextlib.ExitStack() as stack:
        locks: list[RunnerLock] = []

        def take_lock(_: Connection, experiment_id: int) -> str:
            lock = database.open_lock(experiment_id, environment.home)
            stack.enter_context(contextlib.closing(lock))
            if not lock.acquire():  # of another database that was here before
                raise RunError(_describe_holder(experiment_id, lock.find_holder(), []))
            locks.append(lock)
            return model_dir

        experiment_id = database.create_experiment(place=take_lock, **recorded)
        yield experiment_id, locks[-1]


def _describe_holder(experiment_id: int, holder: Runner, left: list[str]) -> str:
    if left:  # a stopped worker does not notice that its runner is gone
        return (
            f"experiment {experiment_id} has processes left of its runner {holder.pid}, "
            f"which is gone: {', '.join(left)}.\nThey would train the same trial.\n"
            f"End them first: kill -9 {' '.join(left)}"
        )
    where = "" if holder.is_here else f" on {holder.host}"
    return (
        f"experiment {experiment_id} is running already, under process {holder.pid}{where}.\n"
        "Two runners would train the same trial twice.\n"
        f"Wait for it, or end it first: kill {holder.pid or 'PROCESS'}"
    )


def _processes_with(descriptor: int) -> list[str]:
    """Return the other processes that have the file of a descriptor open, from Linux's /proc."""
    wanted, found = os.fstat(descriptor), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            files = [os.stat(path) for path in (process / "fd").iterdir()]
            if any(os.path.samestat(wanted, file) for file in files):
                found.append(process.name)
    return [pid for pid in found if pid != str(os.getpid())]


def _has_ended(database: Database, experiment_id: int) -> bool:
    return database.get_experiment(experiment_id).state is not ExperimentState.RUNNING
