"""Settings of a run, and the interface of listeners such as displays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from detcore.contract.values import TrialInfo, TrialState
from detcore.launch import WorkerEvent

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.environment import Environment
    from detcore.plugins import PluginManager


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialStatus:
    """Status of a trial in a search.

    Attributes:
        index: Its number in the search, from 0.
        state: PAUSED also while the trial waits for its turn or for a promotion.
        is_waiting: Whether it has trained to `length` and may be promoted.
        length: Target of its training, in the unit of ``searcher.max_length``.
        rung: Number of reports of its metric.
        metric: Best reported value of the searcher's metric, or None.
        error: The error, or None.
    """

    trial_id: int
    index: int
    state: TrialState
    hparams: Mapping[str, Any]
    length: int
    rung: int = 0
    metric: float | None = None
    is_waiting: bool = False
    error: str | None = None


class RunListener(Protocol):
    """Receives the events of a run, called from the runner's thread except for `output`.

    Subclasses override the methods for the events that they need.
    """

    def search_started(self, config: ExperimentConfig) -> None:
        """Called once when the run starts, with the experiment's configuration."""
        return

    def trial_changed(self, status: TrialStatus) -> None:
        """Called for all trials at the start, and when a trial is created or its status changes."""
        return

    def search_progress(self, progress: float, planned_length: int = 0) -> None:
        """Called with the completed fraction of the search, 0 to 1.

        The planned length is the sum over all trials, in the unit of ``searcher.max_length``, or 0
        if the search method does not know it.
        """
        return

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Called when a worker process of a trial was started."""
        return

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Called when a worker reports metrics, a checkpoint, progress or another event."""
        return

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Called from threads when a worker prints a line on ``"stdout"`` or ``"stderr"``."""
        return

    def notice(self, text: str) -> None:
        """Called with a message for the user."""
        return

    def tick(self) -> None:
        """Called about ten times a second while workers run."""
        return


class NullListener(RunListener):
    """A `RunListener` that ignores all events."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run: environment, plugins, listener and slots.

    Attributes:
        max_slots: Slots for all trials together. Default: ``resources.max_slots``, or the number of
            accelerators of this machine, or the slots of one trial.
        is_server_managed: Whether a server resumes the experiment if this process ends before it
            does. Then only requests in the records pause it, including requests from before this
            process started.
        is_verbose: Whether to display the start-up messages of frameworks as well.
        seconds_left: Returns the seconds until this process is killed, or None if unknown.
    """

    environment: Environment
    plugins: PluginManager
    listener: RunListener
    max_slots: int | None = None
    is_server_managed: bool = False
    is_verbose: bool = False
    seconds_left: Callable[[], float | None] = lambda: None
