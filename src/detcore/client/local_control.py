"""Start, end and delete experiments of the embedded store."""

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
# A trial that is paused saves a checkpoint first.
_PAUSE_WAIT_S = 60.0
_TAIL_BYTES = 1 << 14
# Starts the runner from a separate process that ends at once, so that the runner is no child of
# the caller: it outlives the caller, and leaves it no zombie.
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


def control(database: Database, environment: Environment, experiment_id: int, action: str) -> None:
    """Do one of: activate, pause, cancel, kill, archive, unarchive, delete.

    Raises:
        NotFoundError: If there is no such experiment.
        RunError: If its state does not allow it, or, for "delete", another experiment starts from
            one of its checkpoints.
        CheckpointStateError: If `action` is "delete" and a model needs a checkpoint of it.
    """
    if action in ("archive", "unarchive"):
        database.set_experiment_archived(experiment_id, action == "archive")
    elif action == "activate":
        _activate(database, environment, experiment_id)
    elif action == "delete":
        _delete(database, environment, experiment_id)
    else:
        from detcore.run import control_experiment

        control_experiment(
            experiment_id, Control(action), database=database, environment=environment
        )


def _activate(database: Database, environment: Environment, experiment_id: int) -> None:
    from detcore.run import get_experiment_dir

    if database.get_experiment(experiment_id).state is ExperimentState.COMPLETED:
        raise RunError(
            f"experiment {experiment_id} is complete: there is nothing to go on with.\n"
            "Start a new one, with searcher.source_checkpoint_uuid to begin with its weights."
        )
    if _is_at_work(database, experiment_id):
        return
    record = database.get_experiment(experiment_id)
    folder = get_experiment_dir(environment, experiment_id)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / _LOG
    begin = log.stat().st_size if log.exists() else 0
    with _start_runner(environment, log, experiment_id) as (pid, ended):
        while not _is_taken_over(database, record, pid):
            if select.select([ended], [], [], _POLL_INTERVAL_S)[0]:
                if _is_taken_over(database, record, pid):  # short, and over already
                    return
                raise RunError(
                    f"experiment {experiment_id} could not be started again: the process of "
                    f"detcore run --resume {experiment_id} ended. It said:\n{_tail(log, begin)}"
                )


def _is_at_work(database: Database, experiment_id: int) -> bool:
    """Whether a runner looks after an experiment; one that is ending for a pause is waited for."""
    deadline = time.monotonic() + _PAUSE_WAIT_S
    while True:
        # Its state and the request to it, at one moment: a runner that ends changes both.
        record, is_alive = database.observe_experiment(experiment_id)
        if not is_alive:
            return False
        if record.control is not Control.PAUSE:
            return True
        if time.monotonic() >= deadline:
            raise RunError(
                f"experiment {experiment_id} is still being paused: its trials checkpoint first.\n"
                "Activate it again when its state is PAUSED: detcore experiment list"
            )
        time.sleep(_POLL_INTERVAL_S)


@contextmanager
def _start_runner(
    environment: Environment, log: Path, experiment_id: int
) -> Iterator[tuple[int, int]]:
    """Start a runner; yield its process and a descriptor that is at its end when it is gone."""
    ended, held = os.pipe()
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
                pass_fds=[held],
                start_new_session=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise RunError(f"no process can be started for the experiment: {error}") from error
        finally:
            os.close(held)
        yield int(started.stdout), ended
    finally:
        os.close(ended)


def _is_taken_over(database: Database, before: ExperimentRecord, pid: int) -> bool:
    """Whether a process has taken over an experiment; it may be done with it already."""
    runner, record = database.find_runner(before.id), database.get_experiment(before.id)
    if runner is not None and runner.pid == pid:
        return record.state is ExperimentState.RUNNING
    return record.ended_at not in (None, before.ended_at)


def _tail(log: Path, begin: int) -> str:
    """Return the last lines that were added to a log."""
    with log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:]) or f"  nothing ({log})"


def _delete(database: Database, environment: Environment, experiment_id: int) -> None:
    """Delete checkpoints, then the folder, then the records; can be repeated if interrupted.

    All checkpoints are marked before the first file goes, so that nothing starts from one of them
    meanwhile. The records go last, so that the number is not given to another experiment while its
    event logs are still there.
    """
    from detcore.run import get_experiment_dir, hold_experiment_lock

    check_deletable(database, experiment_id)
    folder = get_experiment_dir(environment, experiment_id)
    with hold_experiment_lock(database, environment, experiment_id):
        checkpoints = check_deletable(database, experiment_id)
        doomed = [found.uuid for found in checkpoints if found.state != "DELETED"]
        with CheckpointFiles(database, environment) as files:
            # Nothing is marked while a storage is away: the experiment may be resumed instead.
            by_place = {found.storage_url: found for found in checkpoints if found.uuid in doomed}
            for found in by_place.values():
                files.storage(found).list(found.uuid)
            for uuid in doomed:
                database.record_checkpoint(CheckpointDeleting(uuid=uuid))
            for uuid in doomed:
                files.delete(database.get_checkpoint(uuid))
        if folder.exists():
            shutil.rmtree(folder)
        database.delete_experiment(experiment_id)


def check_deletable(database: Database, experiment_id: int) -> list[CheckpointRecord]:
    """Return the checkpoints of an experiment that may be deleted with them.

    Raises:
        NotFoundError: If there is no such experiment.
        RunError: If it is running, or if another experiment starts from one of its checkpoints.
        CheckpointStateError: If a checkpoint is in the model registry.
    """
    _, is_alive = database.observe_experiment(experiment_id)
    if is_alive:
        raise RunError(
            f"experiment {experiment_id} is running, so it is not deleted.\n"
            f"End it first: .kill(), or detcore experiment kill {experiment_id}"
        )
    checkpoints = database.list_checkpoints(experiment_id=experiment_id)
    uuids = [found.uuid for found in checkpoints]
    _refuse_registered(database, experiment_id, uuids)
    _refuse_sources(database, experiment_id, uuids)
    return checkpoints


def _refuse_sources(database: Database, experiment_id: int, uuids: list[str]) -> None:
    """Refuse while an experiment that may start trials yet starts them from one of the checkpoints.

    One that is COMPLETED or CANCELED starts none any more.
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
            "They could not be started again. Nothing was deleted.\n"
            f"Complete, cancel or delete it first: detcore experiment {way} {first.id}"
        )


def _refuse_registered(database: Database, experiment_id: int, uuids: list[str]) -> None:
    registered = database.list_registered_checkpoints()
    used = [name for uuid in uuids for name in registered.get(uuid, ())]
    if used:
        raise CheckpointStateError(
            f"checkpoints of experiment {experiment_id} are in the model registry: "
            f"{', '.join(used)}.\n"
            "The models would lose their files. Nothing was deleted.\n"
            "Delete those versions first: Model.delete_version(number), or detcore model delete"
        )
