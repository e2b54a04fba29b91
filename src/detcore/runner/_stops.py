"""What makes the trials of a search end early, and passing it on to them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detcore.types import Control, TrialState

if TYPE_CHECKING:
    from detcore.errors import DetcoreError
    from detcore.runner._interrupts import Interrupts, Requests
    from detcore.runner._listener import RunListener
    from detcore.runner._running import RunningTrial

__all__ = ["Stops"]


class Stops:
    """Looks for reasons to end all trials: signals, what another process asks for, a failure.

    Args:
        interrupts: Signals of this process.
        requests: What other processes ask for.
        listener: Is told.

    Attributes:
        control: What another process asked for, or None.
        unwanted: Trials that another process asked to end, by index.
        failure: Why the search cannot go on, or None.
        was_cut_short: Whether workers were killed by a second Ctrl-C.
    """

    def __init__(
        self, interrupts: Interrupts, requests: Requests, *, listener: RunListener
    ) -> None:
        self._interrupts = interrupts
        self._requests = requests
        self._listener = listener
        self._num_passed_on = 0
        self.control: Control | None = None
        self.unwanted: dict[int, Control] = {}
        self.failure: DetcoreError | None = None
        self.was_cut_short = False

    @property
    def is_stopping(self) -> bool:
        """Whether no trial is to be started any more."""
        return bool(
            self.control is not None or self.failure is not None or self._interrupts.received
        )

    @property
    def is_canceling(self) -> bool:
        """Whether the experiment is not to be gone on with."""
        return self.control in (Control.CANCEL, Control.KILL)

    @property
    def stopped_state(self) -> TrialState:
        """The state of trials that end early."""
        return TrialState.CANCELED if self.is_canceling else TrialState.PAUSED

    def fail(self, failure: DetcoreError, running: Sequence[RunningTrial]) -> None:
        """End all trials, because the search cannot go on."""
        self.failure = failure
        _signal_all(running, signal.SIGINT)

    def look(self, running: Sequence[RunningTrial]) -> None:
        """See whether this process, or another one, wants the trials to end; pass it on."""
        if self._interrupts.is_urgent:
            self.was_cut_short = True
            for trial in running:
                trial.kill()
        for number in self._interrupts.received[self._num_passed_on :]:
            self._num_passed_on += 1
            # As it is: what ends the machine gives less time than a person does.
            _signal_all(running, number)
            what = "the trial checkpoints" if len(running) < 2 else "all trials checkpoint"
            ends = "ends" if len(running) < 2 else "end"
            self._listener.notice(
                f"{signal.Signals(number).name}: {what} at the next batch boundary and {ends} "
                "(Ctrl-C again: end now, without a checkpoint)"
            )
        found = self._requests.look()
        if found is None:
            return
        self._look_at_trials(found.trials, running)
        asked = found.control
        if asked is None or asked is self.control:
            return
        self.control = asked
        if asked is Control.KILL:
            self._listener.notice("kill: all trials end now, without a checkpoint")
            for trial in running:
                trial.kill()
        else:
            self._listener.notice(
                f"{asked.value}: all trials checkpoint at the next batch boundary and end"
            )
            _signal_all(running, signal.SIGINT)

    def _look_at_trials(self, asked: dict[int, Control], running: Sequence[RunningTrial]) -> None:
        workers = {trial.index: trial for trial in running}
        for index, control in asked.items():
            if self.unwanted.get(index) is control:
                continue
            self.unwanted[index] = control
            trial = workers.get(index)
            if trial is None:
                continue
            name = f"trial {trial.info.trial_id}"
            if control is Control.KILL:
                trial.output.say(f"kill: {name} ends now, without a checkpoint")
                trial.kill()
            else:
                trial.output.say(f"cancel: {name} checkpoints at the next batch boundary and ends")
                trial.signal(signal.SIGINT)


def _signal_all(running: Sequence[RunningTrial], number: int) -> None:
    for trial in running:
        trial.signal(number)
