"""What a person sees while an experiment runs: a panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from detcore.cli._output import format_bytes, format_duration, format_number

if TYPE_CHECKING:
    from detcore.launch import WorkerEvent
    from detcore.types import TrialInfo

__all__ = ["LiveDisplay", "PlainDisplay", "format_metrics"]

_PLAIN_INTERVAL_S = 1.0
_RATE_WINDOW_S = 15.0


@dataclasses.dataclass
class _Progress:
    """What is known of a trial so far."""

    info: TrialInfo | None = None
    pid: int = 0
    length: int = 0
    steps: int = 0
    training: str = ""
    validation: str = ""
    checkpoint: str = ""
    status: str = "starting"
    history: deque[tuple[float, int]] = dataclasses.field(default_factory=deque)

    def update(self, event: WorkerEvent) -> None:
        fields = event.fields
        if event.type == "started":
            self.length, self.status = int(fields["length"]), "training"
        # A checkpoint may be told of when training is far beyond it.
        if "steps_completed" in fields and event.type != "checkpoint":
            self._moved(int(fields["steps_completed"]))
        if event.type == "training":
            self.training = format_metrics(fields["metrics"])
        elif event.type == "validation":
            self.validation = f"{format_metrics(fields['metrics'])}  (batch {self.steps})"
        elif event.type == "checkpoint":
            self.checkpoint = format_checkpoint(fields)
        elif event.type == "finished":
            self.status = str(fields["state"]).lower()

    def _moved(self, steps: int) -> None:
        now = time.monotonic()
        self.steps = max(self.steps, steps)
        self.history.append((now, steps))
        while len(self.history) > 2 and now - self.history[0][0] > _RATE_WINDOW_S:
            self.history.popleft()

    @property
    def rate(self) -> float | None:
        """Batches per second lately, or None while it cannot be told."""
        if len(self.history) < 2:
            return None
        (first_at, first), (last_at, last) = self.history[0], self.history[-1]
        if last_at <= first_at or last <= first:
            return None
        return (last - first) / (last_at - first_at)

    @property
    def seconds_left(self) -> float | None:
        rate = self.rate
        return (self.length - self.steps) / rate if rate and self.length else None


class PlainDisplay:
    """Lines for logs: each validation and checkpoint, training at most once a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = _Progress()
        self._last_line_at = -math.inf

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        self._progress = _Progress(info=info, pid=pid)
        self._say(_opening(info, pid))

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        progress = self._progress
        progress.update(event)
        at = f"trial {info.trial_id}: batch {progress.steps}"
        if event.type == "training":
            now = time.monotonic()
            if now - self._last_line_at >= _PLAIN_INTERVAL_S:
                self._last_line_at = now
                of = f"/{progress.length}" if progress.length else ""
                self._say(f"{at}{of}  {_speed(progress)}  {progress.training}")
        elif event.type == "validation":
            self._say(f"{at}: validation: {format_metrics(event.fields['metrics'])}")
        elif event.type == "checkpoint":
            self._say(f"{at}: checkpoint saved: {format_checkpoint(event.fields)}")

    def output(self, stream: str, line: str) -> None:
        self._say(line)

    def notice(self, text: str) -> None:
        self._say(text)

    def tick(self) -> None:
        """Nothing to redraw."""

    def close(self) -> None:
        """Nothing to put away."""

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay:
    """A panel that is redrawn in place; what the trial prints scrolls above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = _Progress()
        self._lock = threading.Lock()
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        self._progress = _Progress(info=info, pid=pid)
        self.notice(_opening(info, pid))

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        self._progress.update(event)

    def output(self, stream: str, line: str) -> None:
        with self._lock:
            self._console.print(Text.from_ansi(line), soft_wrap=True)

    def notice(self, text: str) -> None:
        with self._lock:
            self._console.print(Text(text, style="dim"), soft_wrap=True)

    def tick(self) -> None:
        with self._lock:
            self._live.update(self._draw(), refresh=True)

    def close(self) -> None:
        """Draw once more and leave the last state on the screen."""
        self.tick()
        self._live.stop()

    def _draw(self) -> Group | Text:
        progress = self._progress
        if progress.info is None:
            return Text("")
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(f"trial {progress.info.trial_id}", style="bold"),
            ProgressBar(total=progress.length or 1, completed=progress.steps, width=30),
            Text(f"{progress.steps}/{progress.length or '?'} batches"),
            Text(_speed(progress)),
            Text(_left(progress), style="cyan"),
        )
        rows = Table.grid(padding=(0, 2))
        rows.add_row(Text("training", style="dim"), Text(progress.training or "-"))
        rows.add_row(Text("validation", style="dim"), Text(progress.validation or "-"))
        rows.add_row(Text("checkpoint", style="dim"), Text(progress.checkpoint or "-"))
        return Group(bar, rows)


def _opening(info: TrialInfo, pid: int) -> str:
    start = (
        f"going on from batch {info.steps_completed} (checkpoint {info.latest_checkpoint})"
        if info.latest_checkpoint
        else "from the start"
    )
    return f"experiment {info.experiment_id}, trial {info.trial_id}: {start}; process {pid}"


def _speed(progress: _Progress) -> str:
    rate = progress.rate
    return "- batches/s" if rate is None else f"{rate:.4g} batches/s"


def _left(progress: _Progress) -> str:
    if progress.status != "training":
        return progress.status
    left = progress.seconds_left
    return "" if left is None else f"{format_duration(left)} left"


def format_checkpoint(fields: Mapping[str, Any]) -> str:
    """Return which checkpoint was saved, and what that took."""
    parts = [format_bytes(fields["size_bytes"])]
    if fields.get("stalled_s") is not None:
        parts.append(f"training stood still {fields['stalled_s']:.2f} s")
    if fields.get("total_s") is not None:
        parts.append(f"saved in {fields['total_s']:.2f} s")
    return f"{fields['uuid']} at batch {fields['steps_completed']}: {', '.join(parts)}"


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Return metrics as ``name value`` pairs."""
    return "  ".join(f"{name} {format_number(value)}" for name, value in metrics.items())
