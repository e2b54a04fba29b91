"""One runner for an experiment, and no second one while any of its workers lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.errors import RunError
from detcore.types import ExperimentState

if TYPE_CHECKING:
    from detcore.database import Database

__all__ = ["experiment_lock"]

# A worker whose runner was killed notices within milliseconds; this is for a loaded machine.
_WAIT_S = 10.0
_POLL_S = 0.05


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
                raise RunError(
                    f"experiment {experiment_id} is running already, under process {holder}.\n"
                    "Two runners would train the same trial twice.\n"
                    f"Wait for it, or end it first: kill {holder}"
                ) from None
            time.sleep(_POLL_S)


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
