"""Start, end and delete experiments on this machine."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.client.recorded_checkpoints import CheckpointFiles
from detcore.contract.errors import CheckpointStateError, RunError
from detcore.contract.values import Control, ExperimentState
from detcore.environment import child_environment
from detcore.log.events import CheckpointDeleting

if TYPE_CHECKING:
    from detcore.environment import Environment
    from detcore.records import CheckpointRecord, Database, ExperimentRecord


_LOG = "runner.log"
_LOG_LINES = 15
_POLL_INTERVAL_S = 0.1
# Maximum time to wait for a pause, because trials save a checkpoint first.
_PAUSE_WAIT_S = 60.0
_TAIL_BYTES = 1 << 14
# Starts the runner through a process that exits immediately. The runner is not a child of the
# caller, so it outlives the caller and leaves no zombie process.
_STARTER = """
import os, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
child = os.fork()
if child:
    print(child)
    sys.exit()
os.dup2(log, 1)
os.dup2(log, 2)
os.execv(sys.executable, [sys.executable, "-m", "detcore", "run", "--resume", sys.argv[2]])
"""


def control_locally(
    database: Database, environment: Environment, experiment_id: int, action: str
) -> None:
    """Perform an action: activate, pause, cancel, kill, archive, unarchive or delete.

    Raises:
        NotFoundError: If no experiment has this id.
        RunError: If its state does not allow the action, or, for "delete", if another experiment
            starts from one of its checkpoints.
        CheckpointStateError: If `action` is "delete" and one of its checkpoints is registered.
    """
    if action in ("archive", "unarchive"):
        database.set_experiment_archived(experiment_id, action == "archive")
    elif action == "activate":
        activate_locally(database, environment, experiment_id)
    elif action == "delete":
        _delete_experiment(database, environment, experiment_id)
    else:
        from detcore.run import control_experiment

        if _list_lost_jobs(database, experiment_id):  # only a runner can let them save
            activate_locally(database, environment, experiment_id)
        control_experiment(
            experiment_id, Control(action), database=database, environment=environment
        )


def activate_locally(database: Database, environment: Environment, experiment_id: int) -> Path:
    """Resume an experiment in a process that outlives this one, and return its output file.

    Raises:
        NotFoundError: If no experiment has this id.
        RunError: If the experiment is complete, or the process exits.
    """
    from detcore.run import get_experiment_dir, hold_experiment_lock

    if database.get_experiment(experiment_id).state is ExperimentState.COMPLETED:
        raise RunError(
            f"experiment {experiment_id} is complete and cannot be resumed.\n"
            "Start a new experiment, and set searcher.source_checkpoint_uuid to start from its "
            "weights."
        )
    log = get_experiment_dir(environment, experiment_id) / _LOG
    if _is_at_work(database, experiment_id):
        return log
    if database.get_experiment(experiment_id).state is ExperimentState.RUNNING:
        # The runner was killed. A new runner has taken over when the state is RUNNING again.
        with hold_experiment_lock(database, environment, experiment_id):
            database.set_experiment_state(experiment_id, ExperimentState.PAUSED)
    record = database.get_experiment(experiment_id)
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = log.stat().st_size if log.exists() else 0
    with _start_runner(environment, log, experiment_id) as (pid, ended):
        while not _is_taken_over(database, record, pid):
            if select.select([ended], [], [], _POLL_INTERVAL_S)[0]:
                if _is_taken_over(database, record, pid):  # a short run may have ended already
                    return log
                raise RunError(
                    f"experiment {experiment_id} could not be resumed: the process detcore run "
                    f"--resume {experiment_id} exited. Its output:\n{_read_tail(log, begin)}"
                )
    return log


def _list_lost_jobs(database: Database, experiment_id: int) -> list[str]:
    """Return the jobs of an experiment that has no runner any more."""
    _, is_alive = database.observe_experiment(experiment_id)
    return [] if is_alive else database.list_running_jobs(experiment_id)


def _is_at_work(database: Database, experiment_id: int) -> bool:
    """Return whether a runner manages an experiment. Wait for a runner that is pausing it."""
    deadline = time.monotonic() + _PAUSE_WAIT_S
    while True:
        # State and request are read together, because a runner changes both when it ends.
        record, is_alive = database.observe_experiment(experiment_id)
        if not is_alive:
            return False
        if record.control is not Control.PAUSE:
            return True
        if time.monotonic() >= deadline:
            raise RunError(
                f"experiment {experiment_id} is still pausing, because its trials save "
                "checkpoints.\n"
                f"Resume it when its state is PAUSED: detcore experiment wait {experiment_id}"
            )
        time.sleep(_POLL_INTERVAL_S)


@contextmanager
def _start_runner(
    environment: Environment, log: Path, experiment_id: int
) -> Iterator[tuple[int, int]]:
    """Start a runner. Yield its process id and a pipe that is closed when it exits."""
    exit_pipe, runner_end = os.pipe()
    try:
        try:
            started = subprocess.run(
                [sys.executable, "-c", _STARTER, str(log), str(experiment_id)],
                env=child_environment(
                    {
                        "DETCORE_HOME": str(environment.home),
                        "DETCORE_DB": environment.database_url,
                    }
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[runner_end],
                start_new_session=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise RunError(f"cannot start a process for the experiment: {error}") from error
        finally:
            os.close(runner_end)
        yield int(started.stdout), exit_pipe
    finally:
        os.close(exit_pipe)


def _is_taken_over(database: Database, before: ExperimentRecord, pid: int) -> bool:
    """Return whether a process has taken over an experiment. The process may have finished."""
    runner, record = database.find_runner(before.id), database.get_experiment(before.id)
    if runner is not None and runner.pid == pid:
        return record.state is ExperimentState.RUNNING
    return record.ended_at not in (None, before.ended_at)


def _read_tail(log: Path, begin: int) -> str:
    """Return the last lines that were added to a log."""
    with log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:]) or f"  nothing ({log})"


def _delete_experiment(database: Database, environment: Environment, experiment_id: int) -> None:
    """Delete checkpoints, then the directory, then the records. Can be repeated if interrupted.

    All checkpoints are marked before the first file is deleted, so that no trial starts from one of
    them. The records are deleted last, so that the id is not reused while event logs exist.
    """
    from detcore.run import get_experiment_dir, hold_experiment_lock

    check_deletable(database, experiment_id)
    folder = get_experiment_dir(environment, experiment_id)
    with hold_experiment_lock(database, environment, experiment_id):
        checkpoints = check_deletable(database, experiment_id)
        stored = [record for record in checkpoints if record.state != "DELETED"]
        with CheckpointFiles(database, environment) as files:
            # If a storage is unreachable, nothing is marked, and the experiment can be resumed.
            by_storage = {record.storage_url: record for record in stored}
            for record in by_storage.values():
                files.open_storage(record).list(record.uuid)
            for record in stored:
                database.record_checkpoint(CheckpointDeleting(uuid=record.uuid))
            for record in stored:
                files.delete_files(database.get_checkpoint(record.uuid))
        if folder.exists():
            shutil.rmtree(folder)
        database.delete_experiment(experiment_id)


def check_deletable(database: Database, experiment_id: int) -> list[CheckpointRecord]:
    """Return the checkpoints of an experiment if it can be deleted.

    Raises:
        NotFoundError: If no experiment has this id.
        RunError: If it or one of its jobs is running, or if another experiment starts from one of
            its checkpoints.
        CheckpointStateError: If one of its checkpoints is in the model registry.
    """
    _, is_alive = database.observe_experiment(experiment_id)
    if is_alive:
        raise RunError(
            f"experiment {experiment_id} is running and cannot be deleted.\n"
            f"End it first: .kill(), or detcore experiment kill {experiment_id}"
        )
    jobs = database.list_running_jobs(experiment_id)
    if jobs:
        raise RunError(
            f"experiment {experiment_id} has no runner, but its jobs may still run: "
            f"{', '.join(jobs)}.\n"
            f"End them first: .kill(), or detcore experiment kill {experiment_id}"
        )
    checkpoints = database.list_checkpoints(experiment_id=experiment_id)
    uuids = [checkpoint.uuid for checkpoint in checkpoints]
    _refuse_registered(database, experiment_id, uuids)
    _refuse_sources(database, experiment_id, uuids)
    return checkpoints


def _refuse_sources(database: Database, experiment_id: int, uuids: list[str]) -> None:
    """Raise an error if an unfinished experiment starts trials from one of the checkpoints.

    COMPLETED and CANCELED experiments start no more trials.
    """
    open_states = [ExperimentState.RUNNING, ExperimentState.PAUSED, ExperimentState.ERROR]
    users = [
        other
        for other in database.list_experiments(states=open_states)
        if other.id != experiment_id and other.searcher.source_checkpoint_uuid in uuids
    ]
    if users:
        first = users[0]
        way = "delete" if first.state is ExperimentState.ERROR else "cancel"
        raise RunError(
            f"trials of experiment {', '.join(str(user.id) for user in users)} start from a "
            f"checkpoint of experiment {experiment_id}.\n"
            "They could not be restarted. Nothing was deleted.\n"
            f"Complete, cancel or delete this experiment first: detcore experiment {way} {first.id}"
        )


def _refuse_registered(database: Database, experiment_id: int, uuids: list[str]) -> None:
    registered = database.list_registered_checkpoints()
    used = [name for uuid in uuids for name in registered.get(uuid, ())]
    if used:
        raise CheckpointStateError(
            f"checkpoints of experiment {experiment_id} are in the model registry: "
            f"{', '.join(used)}.\n"
            "The models would lose their files. Nothing was deleted.\n"
            "Delete these versions first: Model.delete_version(number), or "
            "detcore model delete MODEL --version N"
        )
