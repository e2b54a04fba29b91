"""Who is told how a run goes: the display of the command line, or a program."""

from __future__ import annotations

from typing import Protocol

from detcore.launch import WorkerEvent
from detcore.types import TrialInfo

__all__ = ["RunListener"]


class RunListener(Protocol):
    """Told of a run's progress. Calls come from the runner's thread, except `output`."""

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """A worker process was started for a trial."""

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """The worker told something: metrics, a checkpoint, progress."""

    def output(self, stream: str, line: str) -> None:
        """The worker printed a line on ``"stdout"`` or ``"stderr"``; called from a thread."""

    def notice(self, text: str) -> None:
        """The runner has something to say to the person."""

    def tick(self) -> None:
        """About ten times a second while a worker runs."""
