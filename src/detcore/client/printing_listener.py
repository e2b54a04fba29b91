"""Output of `create` while an experiment runs, and errors if it does not complete."""

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
    """A listener that prints trial starts, validations, checkpoints and output."""

    def __init__(self) -> None:
        self._is_search = False

    def search_started(self, config: ExperimentConfig) -> None:
        """Record whether lines must contain the id of their trial."""
        self._is_search = config.searcher.name != "single"

    def trial_changed(self, status: TrialStatus) -> None:
        """Print the error of a failed trial."""
        if status.error:
            _print_text(f"trial {status.trial_id}: {status.error.splitlines()[0]}")

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Print the start of a trial, with its hyperparameters in a search."""
        at = f"batch {info.steps_completed}" if info.latest_checkpoint else "the start"
        hparams = f"  {_format_metrics(info.hparams)}" if self._is_search else ""
        _print_text(f"experiment {info.experiment_id}, trial {info.trial_id}: from {at}{hparams}")

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Print validations and checkpoints."""
        fields = event.fields
        at = f"trial {info.trial_id}: batch {fields.get('steps_completed', '?')}"
        if event.type == "validation":
            _print_text(f"{at}: validation: {_format_metrics(fields['metrics'])}")
        elif event.type == "checkpoint":
            _print_text(f"{at}: checkpoint saved: {fields['uuid']}")

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Print an output line of a worker."""
        _print_text(f"[trial {info.trial_id}] {line}" if self._is_search else line)

    def notice(self, text: str) -> None:
        """Print a message."""
        _print_text(text)


def raise_unless_complete(
    result: ExperimentResult, *, at: str = "", was: str = "interrupted"
) -> None:
    """Raise an error, or end the script, unless an experiment is complete.

    Args:
        result: Result of the experiment.
        at: Options of ``detcore run`` that select the server.
        was: The verb for a pause.
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
        raise RunError(f"{name} was canceled.\nIts checkpoints are kept.")
    raise RunError(
        f"{name} failed: {result.error or 'no trial was completed'}\n"
        f"The output of its trials is above. Fix the cause, then resume the experiment: {again}"
    )


def _print_text(text: str) -> None:
    # A single write for the text and the line end, because other threads print, too.
    print(f"{text}\n", end="", flush=True)


def _format_metrics(metrics: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {format_number(value)}" for name, value in metrics.items())
