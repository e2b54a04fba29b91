"""What a person sees while an experiment runs: a live panel, or plain lines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from detcore.cli._output import format_duration, format_number
from detcore.cli._printable import printable
from detcore.cli._progress import (
    RunProgress,
    TrialProgress,
    format_checkpoint,
    format_metrics,
)
from detcore.cli._search_table import draw_search, state_of

if TYPE_CHECKING:
    from detcore.launch import WorkerEvent
    from detcore.runner import TrialStatus
    from detcore.types import TrialInfo

__all__ = ["LiveDisplay", "PlainDisplay", "QuietDisplay", "format_metrics"]

_PLAIN_INTERVAL_S = 1.0


class _Display:
    """What both kinds of displays do."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = RunProgress()

    def search_started(self, config: Mapping[str, Any]) -> None:
        """Begin to show an experiment."""
        self._progress.search_started(config)

    def search_progress(self, progress: float) -> None:
        """Take note of how much is done."""
        self._progress.done = progress

    def trial_changed(self, status: TrialStatus) -> None:
        """Show how a trial stands."""
        before = self._progress.trial(status.trial_id).status
        trial = self._progress.changed(status)
        was_running = before is not None and before.state.value == "RUNNING"
        if self._progress.is_search and was_running and status.state.value != "RUNNING":
            self.notice(_ending(trial, self._progress))

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Say which trial starts, and where it goes on from."""
        self._progress.trial(info.trial_id).started(info)
        self.notice(_opening(info, pid))

    def notice(self, text: str) -> None:
        """Show what the runner says."""
        raise NotImplementedError

    def _with_source(self, info: TrialInfo, line: str, rank: int) -> str:
        """Return a line of a worker with whose it is in front, where there are several."""
        parts = [f"trial {info.trial_id}"] if self._progress.is_search else []
        if int(info.config["resources"]["slots_per_trial"]) > 1:
            parts.append(f"rank={rank}")
        return f"[{' '.join(parts)}] {line}" if parts else line


class PlainDisplay(_Display):
    """Lines for logs: each validation and checkpoint, training at most once a second."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last_line_at = -math.inf

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Show what a worker tells."""
        trial = self._progress.update(info, event)
        at = f"trial {info.trial_id}: batch {trial.steps}"
        if event.type == "training":
            now = time.monotonic()
            if now - self._last_line_at >= _PLAIN_INTERVAL_S:
                self._last_line_at = now
                of = f"/{trial.length}" if trial.length else ""
                self.notice(f"{at}{of}  {_speed(trial)}  {trial.training}")
        elif event.type == "validation":
            self.notice(f"{at}: validation: {format_metrics(event.fields['metrics'])}")
        elif event.type == "checkpoint":
            # Saved behind the training, it is of an earlier batch than the trial has reached.
            at = f"trial {info.trial_id}: batch {event.fields['steps_completed']}"
            self.notice(f"{at}: checkpoint saved: {format_checkpoint(event.fields)}")

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Show what a worker printed."""
        text = printable(self._with_source(info, line, rank), keep_colours=True)
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def notice(self, text: str) -> None:
        """Show what the runner says."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Nothing to redraw."""

    def close(self) -> None:
        """Nothing to put away."""


class QuietDisplay(PlainDisplay):
    """What went wrong, and no more."""

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Show nothing of how it goes."""

    def trial_changed(self, status: TrialStatus) -> None:
        """Show nothing of how it goes."""

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Show nothing of how it goes."""

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Show what a worker wrote to standard error."""
        if stream == "stderr":
            super().output(info, stream, line, rank=rank)


class LiveDisplay(_Display):
    """A panel that is redrawn in place; what the trials print scrolls above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._lock = threading.Lock()
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Take note of what a worker tells."""
        self._progress.update(info, event)

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Show what a worker printed."""
        with self._lock:
            text = printable(self._with_source(info, line, rank), keep_colours=True)
            self._console.print(Text.from_ansi(text), soft_wrap=True)

    def notice(self, text: str) -> None:
        """Show what the runner says."""
        with self._lock:
            self._console.print(Text(printable(text), style="dim"), soft_wrap=True)

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Take note of a trial that starts; of several the table tells."""
        if self._progress.is_search:
            self._progress.trial(info.trial_id).started(info)
        else:
            super().trial_started(info, pid=pid)

    def tick(self) -> None:
        """Draw anew."""
        with self._lock:
            self._live.update(self._draw(), refresh=True)

    def close(self) -> None:
        """Draw once more and leave the last state on the screen."""
        self.tick()
        self._live.stop()

    def _draw(self) -> Group | Text:
        progress = self._progress
        if progress.is_search:
            return draw_search(progress, self._console)
        started = [trial for trial in progress.trials.values() if trial.info is not None]
        return _draw_trial(started[-1]) if started else Text("")


def _draw_trial(trial: TrialProgress) -> Group:
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(f"trial {trial.trial_id}", style="bold"),
        ProgressBar(total=trial.length or 1, completed=trial.steps, width=30),
        Text(f"{trial.steps}/{trial.length or '?'} batches"),
        Text(_speed(trial)),
        Text(_left(trial), style="cyan"),
    )
    rows = Table.grid(padding=(0, 2))
    rows.add_row(Text("training", style="dim"), Text(trial.training or "-"))
    rows.add_row(Text("validation", style="dim"), Text(trial.validation or "-"))
    rows.add_row(Text("checkpoint", style="dim"), Text(trial.checkpoint or "-"))
    return Group(bar, rows)


def _opening(info: TrialInfo, pid: int) -> str:
    start = (
        f"going on from batch {info.steps_completed} (checkpoint {info.latest_checkpoint})"
        if info.latest_checkpoint
        else "from the start"
    )
    return f"experiment {info.experiment_id}, trial {info.trial_id}: {start}; process {pid}"


def _ending(trial: TrialProgress, progress: RunProgress) -> str:
    best = "-" if trial.best is None else format_number(trial.best)
    hparams = progress.hparams(trial)
    return (
        f"trial {trial.trial_id}: {state_of(trial)}, best {progress.metric} {best}"
        f"{f' with {hparams}' if hparams else ''}; {progress.done:.0%} of the search is done"
    )


def _speed(trial: TrialProgress) -> str:
    rate = trial.rate
    return "- batches/s" if rate is None else f"{rate:.4g} batches/s"


def _left(trial: TrialProgress) -> str:
    if trial.phase != "training":
        return trial.phase
    left = trial.seconds_left
    return "" if left is None else f"{format_duration(left)} left"
