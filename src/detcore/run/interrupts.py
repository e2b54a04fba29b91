"""Events that end trials early: signals to this process, and requests of other processes."""

from __future__ import annotations

import signal
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from detcore.contract.errors import DatabaseError, RunError
from detcore.contract.values import ExperimentState
from detcore.run.supervisor import Requested, Signaled
from detcore.stop_signals import find_stop_signals, handle_signals, leave_closed_terminal

if TYPE_CHECKING:
    from detcore.records import Database, RunnerLock


_POLL_INTERVAL_S = 0.4


class Interrupts:
    """Notes SIGINT, SIGTERM, SIGUSR1 and SIGHUP, which the runner's loop forwards to workers.

    A second SIGINT ends the workers without waiting for their checkpoints. SIGHUP stays ignored if
    it was ignored before (nohup). Outside the main thread, no signals are noted.

    Attributes:
        is_urgent: Whether a second SIGINT arrived.
    """

    def __init__(self) -> None:
        self._received: list[int] = []
        self._num_observed = 0
        self.is_urgent = False

    def note_signals(self) -> AbstractContextManager[None]:
        """Return a context during which signals are noted."""
        return handle_signals(find_stop_signals(), self._note_signal)

    def _note_signal(self, number: int) -> None:
        self.is_urgent = self.is_urgent or (number == signal.SIGINT and bool(self._received))
        if number == signal.SIGHUP:
            leave_closed_terminal()
        if number not in self._received:
            self._received.append(number)

    def observe_signals(self) -> list[Signaled]:
        """Return the new signals, each at most once. A second SIGINT is returned by every call."""
        events = [Signaled(signal.SIGINT, is_urgent=True)] if self.is_urgent else []
        new = self._received[self._num_observed :]
        self._num_observed += len(new)
        return [*events, *map(Signaled, new)]


class Requests:
    """Polls requests of other processes to an experiment's runner."""

    def __init__(self, database: Database, experiment_id: int, lock: RunnerLock) -> None:
        self._database = database
        self._experiment_id = experiment_id
        self._lock = lock
        self._look_at = 0.0

    def observe_requests(self) -> list[Requested]:
        """Return all requests, or an empty list before the next poll is due.

        Raises:
            RunError: If another process adopted or ended the experiment while the database was
                unreachable.
        """
        now = time.monotonic()
        if now < self._look_at:
            return []
        self._look_at = now + _POLL_INTERVAL_S
        try:
            self._lock.is_held()
            record = self._database.get_experiment(self._experiment_id)
            trials = self._database.get_trial_control_requests(self._experiment_id)
        except DatabaseError:
            return []  # the trials continue
        if record.state is not ExperimentState.RUNNING:
            self._lock.is_lost = True
        if self._lock.is_lost:
            raise RunError(
                f"another process adopted or ended experiment {self._experiment_id} while this "
                "runner could not reach the database.\n"
                "This runner ends, so that no trial is trained twice.\n"
                f"Show its state with:  detcore experiment describe {self._experiment_id}"
            )
        trial_requests = [Requested(control, index) for index, control in trials.items()]
        return (
            trial_requests
            if record.control is None
            else [*trial_requests, Requested(record.control)]
        )
