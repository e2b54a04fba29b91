"""Pause, cancel and kill experiments from other processes than their runner; its lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.atomic_files import is_file_locked
from detcore.contract.errors import InvalidArgumentError, RunError
from detcore.contract.values import Control, ExperimentState, TrialState
from detcore.log.events import TrialFinished
from detcore.plugins.delivery import append_to_killed
from detcore.records import ingest_event_logs, restore_secrets
from detcore.run.checkpoint_source import recover_trial
from detcore.run.trial_start import experiment_folder
from detcore.storage import open_storage

if TYPE_CHECKING:
    from detcore.environment import Environment
    from detcore.plugins import PluginManager
    from detcore.records import Database, ExperimentRecord


_OVER = (ExperimentState.COMPLETED, ExperimentState.ERROR, ExperimentState.CANCELED)
# A worker whose runner was killed notices within milliseconds; this is for a loaded machine.
_WAIT_S = 10.0
_POLL_S = 0.05
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
        if is_alive is False:
            settle_experiment(
                experiment_id, control=control, database=database, environment=environment
            )
            return False
        if record.config.get("is_standalone") and control is Control.KILL:
            number = record.process.pid if record.process else "?"
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
    return bool(database.experiment_is_alive(experiment.id))


def _is_alone(experiment: ExperimentRecord) -> bool:
    return experiment.searcher.name in (None, "single")


def settle_experiment(
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
    folder = experiment_folder(environment, experiment_id)
    with experiment_lock(folder, experiment_id, records=database):
        ingest_event_logs(database, environment.home)
        record = database.get_experiment(experiment_id)
        if record.state in _OVER:
            return record.state
        state = ExperimentState.PAUSED
        if control is not Control.PAUSE:
            state = ExperimentState.CANCELED
        settle_trials(database, experiment_id, state)
        if record.state is not state:
            database.set_experiment_state(experiment_id, state)
        database.request_control(experiment_id, None)
        return state


def settle_killed(
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
    folder = experiment_folder(environment, experiment_id)
    with experiment_lock(folder, experiment_id, records=database):
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
            report_ends(database, experiment_id)
            database.set_experiment_state(experiment_id, ExperimentState.ERROR, error=_KILLED)


def settle_trials(database: Database, experiment_id: int, state: ExperimentState) -> None:
    """Record a state of the trials of an experiment that are not over."""
    for trial in database.list_trials(experiment_id):
        if trial.state not in (*_OVER, state):
            database.set_trial_state(trial.id, state)
    report_ends(database, experiment_id)


def report_ends(database: Database, experiment_id: int) -> None:
    """Append the recorded ends of killed runs to their logs, for observers.

    Args:
        database: The records.
        experiment_id: The experiment; no process works on those of its trials that do not run.
    """
    for cursor in database.list_cursors(experiment_id=experiment_id):
        trial = database.get_trial(cursor.trial_id)
        if trial.state is not TrialState.RUNNING and trial.run_id == cursor.run_id:
            end = TrialFinished(state=trial.state.value, error=trial.error)
            append_to_killed(database, trial, end)


@contextlib.contextmanager
def experiment_lock(
    folder: Path, experiment_id: int, *, records: Database | None = None
) -> Iterator[int]:
    """Hold an experiment's lock; yield its file descriptor, for workers to inherit.

    The lock is held as long as any process has the descriptor open, so it outlives a killed
    runner until its workers are gone too.

    Args:
        folder: Of the experiment.
        experiment_id: Its number.
        records: Where it is recorded. A holder of the lock that has recorded the experiment's end
            is about to exit, and is waited for.

    Raises:
        RunError: If the experiment is still running.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire(descriptor, experiment_id, records)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of the experiment with a folder."""
    return is_file_locked(folder / "lock")


def keep_lock(folder: Path) -> list[int]:
    """Hold the lock of an experiment until this process ends, unless it is held already.

    Returns:
        Its descriptor, if it was not.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return []
    return [descriptor]


def _acquire(descriptor: int, experiment_id: int, records: Database | None) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            is_at_work = _is_alive(holder) and not _has_ended(records, experiment_id)
            if time.monotonic() >= deadline or is_at_work:
                left = [] if _is_alive(holder) else _processes_with(descriptor)
                if left:  # a stopped worker does not notice that its runner is gone
                    raise RunError(
                        f"experiment {experiment_id} has processes left of its runner {holder}, "
                        f"which is gone: {', '.join(left)}.\nThey would train the same trial.\n"
                        f"End them first: kill -9 {' '.join(left)}"
                    ) from None
                raise RunError(
                    f"experiment {experiment_id} is running already, under process {holder}.\n"
                    "Two runners would train the same trial twice.\n"
                    f"Wait for it, or end it first: kill {holder}"
                ) from None
            time.sleep(_POLL_S)


def _processes_with(descriptor: int) -> list[str]:
    """Return the other processes that have the file of a descriptor open, from Linux's /proc."""
    wanted, found = os.fstat(descriptor), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is another user's
            files = [os.stat(path) for path in (process / "fd").iterdir()]
            if any(os.path.samestat(wanted, file) for file in files):
                found.append(process.name)
    return [pid for pid in found if pid != str(os.getpid())]


def _has_ended(records: Database | None, experiment_id: int) -> bool:
    if records is None:
        return False
    return records.get_experiment(experiment_id).state is not ExperimentState.RUNNING


def _is_alive(pid: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
