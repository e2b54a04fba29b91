"""The settings of a run, with the listener that it reports to: a display, or a program."""

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
    """The status of a trial of a search.

    Attributes:
        index: Its number in the search, from 0.
        state: PAUSED also while it waits for its turn, or for a promotion.
        is_waiting: Whether it has trained up to `length`, and may be promoted.
        length: The target of its training, in the unit of ``searcher.max_length``.
        rung: How often it has reported its metric.
        metric: The best value of the searcher's metric that it has reported, or None.
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
    """Receives the events of a run. Calls come from the runner's thread, except `output`.

    A class that derives from it ignores the events for which it has no method.
    """

    def search_started(self, config: ExperimentConfig) -> None:
        """The run begins; called once, with the experiment's configuration."""
        return

    def trial_changed(self, status: TrialStatus) -> None:
        """A trial was created, or its status has changed; at the start, called for all trials."""
        return

    def search_progress(self, progress: float, planned_length: int = 0) -> None:
        """How much of the search is done, 0 to 1.

        The planned length is that of all trials together, in the unit of ``searcher.max_length``;
        0 where the search method does not know it.
        """
        return

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """A worker process was started for a trial."""
        return

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """A worker reported metrics, a checkpoint, progress or another event."""
        return

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """A worker printed a line on ``"stdout"`` or ``"stderr"``; called from threads."""
        return

    def notice(self, text: str) -> None:
        """The runner has a message for the user."""
        return

    def tick(self) -> None:
        """About ten times a second while workers run."""
        return


class NullListener(RunListener):
    """A `RunListener` that ignores everything."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run: environment, plugins, listener and slots.

    Attributes:
        max_slots: Slots for all trials together; default: ``resources.max_slots``, else the
            accelerators of this machine, else those of one trial.
        is_server_managed: Whether a server resumes the experiment when this process ends before it
            does. Then only requests in the records pause it, and they may have been made before
            this process began.
        is_verbose: Whether the messages of frameworks at every start are displayed, too.
        seconds_left: Returns the time to the kill of this process, None where it is unknown.
    """

    environment: Environment
    plugins: PluginManager
    listener: RunListener
    max_slots: int | None = None
    is_server_managed: bool = False
    is_verbose: bool = False
    seconds_left: Callable[[], float | None] = lambda: None
