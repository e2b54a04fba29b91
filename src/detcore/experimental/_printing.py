"""The lines that `create` prints while an experiment runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detcore.launch import WorkerEvent
    from detcore.runner import TrialStatus
    from detcore.types import TrialInfo

__all__ = ["PrintingListener"]


class PrintingListener:
    """A `detcore.runner.RunListener` that prints starts, validations, checkpoints and output."""

    def __init__(self) -> None:
        self._is_search = False

    def search_started(self, config: Mapping[str, Any]) -> None:
        """Take note of whether lines have to say which trial they are of."""
        self._is_search = config["searcher"]["name"] != "single"

    def trial_changed(self, status: TrialStatus) -> None:
        """Print what went wrong, if something did."""
        if status.error:
            _say(f"trial {status.trial_id}: {status.error.splitlines()[0]}")

    def search_progress(self, progress: float, planned_length: int = 0) -> None:
        """Not shown: the lines of the trials tell."""

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Print where the trial starts, and with which hyperparameters."""
        at = f"batch {info.steps_completed}" if info.latest_checkpoint else "the start"
        what = f"  {_metrics(info.hparams)}" if self._is_search else ""
        _say(f"experiment {info.experiment_id}, trial {info.trial_id}: from {at}{what}")

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Print validations and checkpoints."""
        fields = event.fields
        at = f"trial {info.trial_id}: batch {fields.get('steps_completed', '?')}"
        if event.type == "validation":
            _say(f"{at}: validation: {_metrics(fields['metrics'])}")
        elif event.type == "checkpoint":
            _say(f"{at}: checkpoint saved: {fields['uuid']}")

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Print a line of a worker."""
        _say(f"[trial {info.trial_id}] {line}" if self._is_search else line)

    def notice(self, text: str) -> None:
        """Print it."""
        _say(text)

    def tick(self) -> None:
        """Nothing is redrawn."""


def _say(text: str) -> None:
    # One write for text and end: other threads print too.
    print(f"{text}\n", end="", flush=True)


def _metrics(metrics: Mapping[str, Any]) -> str:
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
    )
