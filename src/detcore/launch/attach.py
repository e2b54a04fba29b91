"""Launchers whose workers outlive a killed runner."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from detcore.contract.launch import OutputSink, WorkerGroup
from detcore.contract.values import TrialInfo


@runtime_checkable
class SupportsAttach(Protocol):
    """A launcher that finds the workers that an earlier runner has started, such as Slurm jobs.

    Its groups may send the event ``submitted`` with the id of their ``job``, which commands show,
    and ``preempted`` with a ``reason`` before they end. The trial then starts again without
    counting a restart.
    """

    def find_run(self, trial_dir: Path, *, slots: int) -> int | None:
        """Return the run of a trial whose workers can be followed, or None.

        They may also have ended, if no runner has seen it. Workers that cannot be followed are
        ended first, and this waits for their end.

        Args:
            trial_dir: Directory of the trial.
            slots: Number of workers that the trial has now.

        Raises:
            WorkerError: If the workers are unknown now, or do not end.
        """

    def attach(
        self, info: TrialInfo, *, keep_open: tuple[int, ...] = (), on_output: OutputSink
    ) -> WorkerGroup:
        """Follow the workers of the run that `find_run` returned.

        Args:
            info: The trial, as the earlier runner has started it.
            keep_open: As for `detcore.launch.Launcher.start`.
            on_output: Called with the output that the earlier runner has not received.
        """

    def abandon(self, trial_dir: Path) -> None:
        """End the workers of a trial that is not trained now, and wait for their end.

        Raises:
            WorkerError: If the workers do not end.
        """
