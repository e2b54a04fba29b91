"""Displays of a running experiment: a live panel, or plain lines."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from detcore.cli.output import printable, state_text
from detcore.cli.run_progress import (
    RunProgress,
    TrialProgress,
    format_checkpoint,
    format_metrics,
)
from detcore.describe import describe_start, format_duration, format_number

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.contract.values import TrialInfo
    from detcore.launch import WorkerEvent
    from detcore.run import TrialStatus


_PLAIN_INTERVAL_S = 1.0
# Between summary lines of a search: at first, the factor by which it grows, and at most.
_SEARCH_INTERVAL_S, _INTERVAL_GROWTH, _LONGEST_INTERVAL_S = 10.0, 1.2, 600.0
# Lines of a trial's standard error in a search: shown at once, and held in case it fails.
_MOST_ERROR_LINES, _MOST_HELD_LINES = 3, 50
_MOST_KNOWN_LINES = 1000
_MAX_REMEMBERED_LINES = 100
_RANK = re.compile(r"^rank \d+: ")
_TRACEBACK = "Traceback (most recent call last):"
_MOST_ROWS = 20
_MAX_LINES_AT_ONCE = 500
# Header, title of the table, the line about omitted rows, and some lines of earlier output.
_OTHER_LINES = 7
# Columns of the table.
_HPARAMS, _RUNG = 2, 4
_BEST = "*"  # marks the best trial, also where there are no colours
_WAITING = "waiting for promotion"
# In the order in which they are counted in the header.
_STATES = ("running", "completed", "error", "canceled", "not started", _WAITING, "interrupted")


class _Display:
    """Base class of the displays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = RunProgress()
        self._shown: deque[str] = deque(maxlen=_MAX_REMEMBERED_LINES)

    def has_shown(self, error: str) -> bool:
        """Whether one of the last lines contains an error, but for its rank."""
        text = _RANK.sub("", error)
        return any(text in line for line in list(self._shown))

    def search_started(self, config: ExperimentConfig) -> None:
        """Begin to show an experiment."""
        self._progress.search_started(config)

    def search_progress(self, progress: float, planned_length: int = 0) -> None:
        """Record how much is done."""
        self._progress.advanced(progress, planned_length)

    def trial_changed(self, status: TrialStatus) -> None:
        """Show the state of a trial."""
        before = self._progress.trial(status.trial_id).status
        trial = self._progress.changed(status)
        was_running = before is not None and before.state.value == "RUNNING"
        has_ended = was_running and status.state.value != "RUNNING"
        starts_again = status.state.value == "PAUSED" and status.error  # the runner says so
        if self._progress.is_search and has_ended and not starts_again:
            self.notice(_ending(trial, self._progress))

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Show which trial starts, and from which checkpoint."""
        self._progress.trial(info.trial_id).started(info)
        self.notice(_opening(info, pid))

    def notice(self, text: str) -> None:
        """Show a message of the runner."""
        raise NotImplementedError

    def _with_source(self, info: TrialInfo, line: str, rank: int) -> str:
        """Return a worker's line, prefixed with its trial and rank if there are several."""
        parts = [f"trial {info.trial_id}"] if self._progress.is_search else []
        if info.settings.slots_per_trial > 1:
            parts.append(f"rank={rank}")
        return f"[{' '.join(parts)}] {line}" if parts else line


class PlainDisplay(_Display):
    """Lines for logs.

    A single trial: each validation and checkpoint, training metrics at most once a second, and the
    lines that it prints. A search: the start and end of each trial, its errors, and a summary line
    at growing intervals; everything else is in the trials' logs.

    Args:
        console: Where to.
        is_verbose: Whether trials of a search are shown like one trial.
    """

    def __init__(self, console: Console, *, is_verbose: bool = False) -> None:
        super().__init__(console)
        self._is_verbose = is_verbose
        self._last_line_at = -math.inf
        self._next_summary_at = math.inf
        self._interval_s = _SEARCH_INTERVAL_S
        self._last_summary = ""
        self._has_hidden = False
        self._errors = _ErrorLines()

    @property
    def _is_brief(self) -> bool:
        return self._progress.is_search and not self._is_verbose

    def search_started(self, config: ExperimentConfig) -> None:
        """Begin to show an experiment."""
        super().search_started(config)
        if self._progress.is_search:
            self._next_summary_at = time.monotonic() + self._interval_s

    def trial_changed(self, status: TrialStatus) -> None:
        """Show the state of a trial, and its held error lines if it failed."""
        self._show_held_errors(status)
        super().trial_changed(status)

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Show an event of a worker."""
        trial = self._progress.update(info, event)
        if self._is_brief:
            return
        # A checkpoint is reported after training has moved beyond it.
        at = f"trial {info.trial_id}: batch {event.fields.get('steps_completed', trial.steps)}"
        if event.type == "training":
            now = time.monotonic()
            if now - self._last_line_at >= _PLAIN_INTERVAL_S:
                self._last_line_at = now
                of = f"/{trial.length}" if trial.length else ""
                speed = "" if trial.rate is None else _speed(trial)
                parts = [f"{at}{of}", speed, _left(trial), trial.training]
                self.notice("  ".join(filter(None, parts)))
        elif event.type == "validation":
            self.notice(f"{at}: validation: {format_metrics(event.fields['metrics'])}")
        elif event.type == "checkpoint":
            self.notice(f"{at}: checkpoint saved: {format_checkpoint(event.fields)}")

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Show a line that a worker printed."""
        text = printable(self._with_source(info, line, rank), keep_colours=True)
        if not self._is_brief:
            self._show(text)
        elif stream == "stderr":
            if self._errors.is_shown(info.trial_id, line, text):
                self._show(text)
        elif not self._has_hidden:
            self._has_hidden = True
            self._show(
                "lines that trials print are only in their logs: detcore trial logs "
                f"{info.trial_id} shows those of trial {info.trial_id}"
            )

    def notice(self, text: str) -> None:
        """Show a message of the runner."""
        self._show(printable(text))

    def tick(self) -> None:
        """Print the summary line of a search when it is due."""
        now = time.monotonic()
        if now >= self._next_summary_at:
            line = _search_line(self._progress)
            if line != self._last_summary:  # while trials start there is no news
                self.notice(line)
            self._last_summary = line
            self._interval_s = min(self._interval_s * _INTERVAL_GROWTH, _LONGEST_INTERVAL_S)
            self._next_summary_at = now + self._interval_s

    def close(self) -> None:
        """Nothing to put away."""

    def _show(self, text: str) -> None:
        self._shown.append(text)
        # A program may print 100,000 lines, and the console needs 0.3 ms to lay out each of them.
        self._console.file.write(f"{text}\n")
        self._console.file.flush()

    def _show_held_errors(self, status: TrialStatus) -> None:
        held = self._errors.take(status.trial_id)
        if status.error:
            for text in held:
                self._show(text)


class _ErrorLines:
    """Decides which lines are shown that trials of a search write to standard error.

    A line is shown once, whichever trial writes it. A trial shows its first new lines, up to a
    traceback; its last ones are held in case it fails. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._counts: Counter[int] = Counter()
        self._held: dict[int, deque[str]] = {}

    def is_shown(self, trial_id: int, line: str, text: str) -> bool:
        """Return whether to show a line now; else it may be held, as `text`."""
        with self._lock:
            if line in self._known:
                return False
            if len(self._known) < _MOST_KNOWN_LINES:
                self._known.add(line)
            self._counts[trial_id] += _MOST_ERROR_LINES if line == _TRACEBACK else 1
            if self._counts[trial_id] <= _MOST_ERROR_LINES and line != _TRACEBACK:
                return True
            self._held.setdefault(trial_id, deque(maxlen=_MOST_HELD_LINES)).append(text)
            return False

    def take(self, trial_id: int) -> list[str]:
        """Return the lines that are held of a trial, and forget them."""
        with self._lock:
            return list(self._held.pop(trial_id, ()))


class QuietDisplay(PlainDisplay):
    """Display of errors only."""

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Show nothing of how it goes."""

    def trial_changed(self, status: TrialStatus) -> None:
        """Show the held error lines of a trial that failed."""
        self._show_held_errors(status)

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Show nothing of how it goes."""

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Show a line that a worker wrote to standard error."""
        if stream == "stderr":
            super().output(info, stream, line, rank=rank)

    def tick(self) -> None:
        """Show nothing of how it goes."""


class LiveDisplay(_Display):
    """A panel that is redrawn in place; the output of the trials scrolls above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._lock = threading.Lock()
        self._lines: list[Text] = []  # shown at the next redraw: each print redraws the panel
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Update the progress from a worker's event."""
        self._progress.update(info, event)

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Show a line that a worker printed."""
        with self._lock:
            text = printable(self._with_source(info, line, rank), keep_colours=True)
            self._show(text, Text.from_ansi(text))

    def notice(self, text: str) -> None:
        """Show a message of the runner."""
        with self._lock:
            self._show(printable(text), Text(printable(text), style="dim"))
            self._print_lines()

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Show which trial starts; in a search, leave that to the table."""
        if self._progress.is_search:
            self._progress.trial(info.trial_id).started(info)
        else:
            super().trial_started(info, pid=pid)

    def tick(self) -> None:
        """Show the lines since the last call, and redraw the panel."""
        with self._lock:
            self._print_lines()
            self._live.update(self._draw(), refresh=True)

    def close(self) -> None:
        """Draw once more and leave the last state on the screen."""
        self.tick()
        self._live.stop()

    def _show(self, text: str, line: Text) -> None:
        self._shown.append(text)
        self._lines.append(line)
        if len(self._lines) >= _MAX_LINES_AT_ONCE:
            self._print_lines()

    def _print_lines(self) -> None:
        if self._lines:
            self._console.print(Text("\n").join(self._lines), soft_wrap=True)
            self._lines.clear()

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
    name = f"experiment {info.experiment_id}, trial {info.trial_id}"
    return f"{name}: {describe_start(info)}; process {pid}"


def _ending(trial: TrialProgress, progress: RunProgress) -> str:
    best = "" if trial.best is None else f", best {progress.metric} {format_number(trial.best)}"
    hparams = progress.hparams(trial)
    state = state_of(trial)
    if trial.status is not None and state == "completed":
        length = trial.status.length
        if length < progress.max_length:
            state = f"stopped by the search at {length} of {progress.max_length} {progress.unit}"
    return (
        f"trial {trial.trial_id}: {state}{best}"
        f"{f' with {hparams}' if hparams else ''}; {progress.done:.0%} of the search is done"
    )


def _search_line(progress: RunProgress) -> str:
    """Return the summary line of a search."""
    counts = Counter(map(state_of, progress.trials.values()))
    ended = sum(counts[state] for state in ("completed", "error", "canceled"))
    parts = [f"{progress.done:.0%}", progress.amount, time_left(progress.seconds_left)]
    parts.append(f"{ended} of {len(progress.trials)} trials ended, {counts['running']} running")
    best = progress.best
    if best is not None and best.best is not None:
        parts.append(f"best {progress.metric} {format_number(best.best)} (trial {best.trial_id})")
    return f"search: {', '.join(filter(None, parts))}"


def _speed(trial: TrialProgress) -> str:
    rate = trial.rate
    return "- batches/s" if rate is None else f"{rate:.4g} batches/s"


def _left(trial: TrialProgress) -> str:
    if trial.phase != "training":
        return trial.phase
    return time_left(trial.seconds_left)


def draw_search(progress: RunProgress, console: Console) -> Group:
    """Return the table as it is now, at most as high as the terminal."""
    trials = list(progress.trials.values())
    limit = max(3, min(_MOST_ROWS, console.height - _OTHER_LINES))
    shown = _choose(progress, trials, limit)
    parts: list[RenderableType] = [
        _header(progress, trials),
        _table(progress, shown),
    ]
    if len(shown) < len(trials):
        rest = Counter(state_of(each) for each in trials if each not in shown)
        listed = ", ".join(f"{count} {state}" for state, count in rest.most_common())
        parts.append(Text(f"and {len(trials) - len(shown)} more: {listed}", style="dim"))
    return Group(*parts)


def state_of(trial: TrialProgress) -> str:
    """Return the state of a trial, in a word or two."""
    status = trial.status
    if status is None:
        return "running"
    if status.state.value == "PAUSED":
        if status.is_waiting:
            return _WAITING
        return "not started" if trial.info is None and not status.rung else "interrupted"
    return status.state.value.lower()


def time_left(seconds: float | None) -> str:
    """Return a remaining time such as "27s left", or "" if it is unknown."""
    return "" if seconds is None else f"{format_duration(seconds)} left"


def _header(progress: RunProgress, trials: list[TrialProgress]) -> Group:
    counts = Counter(map(state_of, trials))
    listed = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    line = Table.grid(padding=(0, 1))
    line.add_row(
        Text(progress.searcher, style="bold"),
        ProgressBar(total=1.0, completed=progress.done, width=20),
        Text(f"{progress.done:.0%}"),
        Text(progress.amount, no_wrap=True),
        Text(time_left(progress.seconds_left), style="cyan", no_wrap=True),
    )
    count = f"{len(trials)} trials: {listed}"
    if progress.best is not None:
        count += f"; {_BEST} best: trial {progress.best.trial_id}"
    return Group(line, Text(count, no_wrap=True, overflow="ellipsis"))


def _table(progress: RunProgress, shown: list[TrialProgress]) -> Table:
    everything = list(progress.trials.values())
    has_rungs = any(each.status and each.status.rung > 1 for each in everything)
    titles = ["trial", "state", "hyperparameters", "batches", "rung", f"best {progress.metric}"]
    rows = [_cells(progress, trial, progress.best) for trial in shown]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, title in enumerate(titles):
        if title == "rung" and not has_rungs:
            continue
        # The hyperparameters give way where the terminal is narrow.
        table.add_column(
            title,
            justify="left" if place in (1, _HPARAMS) else "right",
            no_wrap=place != _HPARAMS,
        )
    for row in rows:
        table.add_row(*(each for place, each in enumerate(row) if has_rungs or place != _RUNG))
    return table


def _cells(
    progress: RunProgress, trial: TrialProgress, best: TrialProgress | None
) -> tuple[Text, ...]:
    state = state_of(trial)
    of = f"/{trial.length}" if trial.length and state == "running" else ""
    metric = "-" if trial.best is None else format_number(trial.best)
    return (
        Text(f"{_BEST} {trial.trial_id}" if trial is best else str(trial.trial_id)),
        state_text(state),
        Text(progress.hparams(trial), no_wrap=True, overflow="ellipsis"),
        Text(f"{trial.steps}{of}" if trial.info or trial.steps else "-"),
        Text(str(trial.status.rung if trial.status else 0)),
        Text(metric, style="bold green" if trial is best else ""),
    )


def _choose(progress: RunProgress, trials: list[TrialProgress], limit: int) -> list[TrialProgress]:
    """Return the trials to show, by number: those that run, then the best, then the others."""
    sign = 1 if progress.smaller_is_better else -1

    def rank(trial: TrialProgress) -> tuple[int, float, int]:
        if state_of(trial) == "running":
            return (0, 0.0, trial.trial_id)
        if trial.best is not None:
            return (1, sign * trial.best, trial.trial_id)
        return (2, 0.0, trial.trial_id)

    return sorted(sorted(trials, key=rank)[:limit], key=lambda trial: trial.trial_id)
