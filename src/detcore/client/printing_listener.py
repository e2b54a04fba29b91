"""The lines that `create` prints while an experiment runs, and how it ends for its caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.client.class_location import is_interactive
from detcore.contract.errors import RunError
from detcore.record_descriptions import format_number
from detcore.run import RunListener

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.contract.values import TrialInfo
    from detcore.launch import WorkerEvent
    from detcore.run import ExperimentResult, TrialStatus


_EXIT_TEMPFAIL = 75  # sysexits' EX_TEMPFAIL: run again later


class PrintingListener(RunListener):
    """A listener that prints starts, validations, checkpoints and output."""

    def __init__(self) -> None:
        self._is_search = False

    def search_started(self, config: ExperimentConfig) -> None:
        """Take note of whether lines have to say which trial they are of."""
        self._is_search = config.searcher.name != "single"

    def trial_changed(self, status: TrialStatus) -> None:
        """Print what went wrong, if something did."""
        if status.error:
            _say(f"trial {status.trial_id}: {status.error.splitlines()[0]}")

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


def raise_unless_complete(
    result: ExperimentResult, *, at: str = "", was: str = "interrupted"
) -> None:
    """Raise, or end the script, unless an experiment is complete.

    Args:
        result: How it ended.
        at: Options of ``detcore run`` that say where it is.
        was: The word for a pause.
    """
    name = f"experiment {result.experiment_id}"
    again = f"detcore run --resume {result.experiment_id}{at}"
    if result.state == "COMPLETED":
        return
    if result.state == "PAUSED":
        text = f"{name} was {was}; resume with: {again}"
        if is_interactive():
            raise RunError(text)
        print(text, flush=True)
        raise SystemExit(130 if result.was_killed else _EXIT_TEMPFAIL)
    if result.state == "CANCELED":
        raise RunError(f"{name} was canceled.\nIts checkpoints stay.")
    raise RunError(
        f"{name} failed: {result.error or 'no trial was completed'}\n"
        f"Its trials' output is above. Fix the cause, then resume the experiment: {again}"
    )


def _say(text: str) -> None:
    # One write for text and end: other threads print too.
    print(f"{text}\n", end="", flush=True)


def _metrics(metrics: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {format_number(value)}" for name, value in metrics.items())
