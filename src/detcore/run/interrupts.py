"""Events that end trials early: signals of this process, and requests of other processes."""

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
    """SIGINT, SIGTERM, SIGUSR1 and SIGHUP are noted; the runner's loop passes them on.

    A second SIGINT ends the workers without waiting for their checkpoints. SIGHUP stays ignored if
    it was (nohup). Outside of the main thread there are no signals.

    Attributes:
        is_urgent: Whether there was a second SIGINT.
    """

    def __init__(self) -> None:
        self._received: list[int] = []
        self._num_observed = 0
        self.is_urgent = False

    def listen(self) -> AbstractContextManager[None]:
        """Return a context during which signals are noted."""
        return handle_signals(find_stop_signals(), self._note)

    def _note(self, number: int) -> None:
        self.is_urgent = self.is_urgent or (number == signal.SIGINT and bool(self._received))
        if number == signal.SIGHUP:
            leave_closed_terminal()
        if number not in self._received:
            self._received.append(number)

    def observe(self) -> list[Signaled]:
        """Return the signals since the last call, each kind once; an urgent stop in every call."""
        events = [Signaled(signal.SIGINT, is_urgent=True)] if self.is_urgent else []
        new = self._received[self._num_observed :]
        self._num_observed += len(new)
        return [*events, *map(Signaled, new)]


class Requests:
    """Polls the requests that other processes make of the runner of an experiment."""

    def __init__(self, database: Database, experiment_id: int, lock: RunnerLock) -> None:
        self._database = database
        self._experiment_id = experiment_id
        self._lock = lock
        self._look_at = 0.0

    def observe(self) -> list[Requested]:
        """Return all requests; none if it is too soon to look again.

        Raises:
            RunError: If another process took or ended the experiment while the database was
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
            return []  # the trials continue; a process that has to record waits
        if record.state is not ExperimentState.RUNNING:
            self._lock.is_lost = True
        if self._lock.is_lost:
            raise RunError(
                f"experiment {self._experiment_id} was taken over or ended by another process, "
                "while this runner could not reach the database.\n"
                "This one ends, so that nothing is trained twice.\n"
                f"See what became of it: detcore experiment describe {self._experiment_id}"
            )
        found = [Requested(each, index) for index, each in trials.items()]
        return found if record.control is None else [*found, Requested(record.control)]
