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

from detcore.cli.output import Column, NumberColumn, make_table, printable
from detcore.cli.run_progress import RunProgress, TrialProgress, describe_report
from detcore.record_descriptions import describe_start, format_number
from detcore.run.run_listener import RunListener

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.contract.values import TrialInfo
    from detcore.launch import WorkerEvent
    from detcore.run import TrialStatus


_PLAIN_INTERVAL_S = 1.0
# Interval between summary lines of a search: initial value, growth factor, and maximum.
_SEARCH_INTERVAL_S, _INTERVAL_GROWTH, _MAX_INTERVAL_S = 10.0, 1.2, 600.0
# Lines of a trial's standard error in a search: shown immediately, and held until it fails.
_MAX_ERROR_LINES, _MAX_HELD_LINES = 3, 50
_MAX_KNOWN_LINES = 1000
_MAX_REMEMBERED_LINES = 100
_RANK = re.compile(r"^rank \d+: ")
_TRACEBACK = "Traceback (most recent call last):"
_MAX_ROWS = 20
_MAX_LINES_AT_ONCE = 500
# Height of the header, the table's title, the line about omitted rows, and earlier output.
_OTHER_LINES = 7
# Width of the columns other than the hyperparameters.
_OTHER_COLUMNS = 64
_BEST = "*"  # marks the best trial


class QuietDisplay(RunListener):
    """A display of errors only.

    In a search, a line of standard error is shown once, even if several trials write it. The first
    new lines of a trial are shown, up to a traceback. Its last lines are shown if it fails.

    Args:
        console: Receives the output.
        is_verbose: Whether trials of a search are shown like a single trial.
    """

    def __init__(self, console: Console, *, is_verbose: bool = False) -> None:
        self._console = console
        self._progress = RunProgress()
        self._is_verbose = is_verbose
        self._known: set[str] = set()
        self._counts: Counter[int] = Counter()
        self._held: dict[int, deque[str]] = {}
        self._shown: deque[str] = deque(maxlen=_MAX_REMEMBERED_LINES)

    def has_shown(self, error: str) -> bool:
        """Whether one of the last lines contains an error, ignoring the rank."""
        text = _RANK.sub("", error)
        return any(text in line for line in tuple(self._shown))

    @property
    def _is_brief(self) -> bool:
        return self._progress.is_search and not self._is_verbose

    def search_started(self, config: ExperimentConfig) -> None:
        """Start showing an experiment."""
        self._progress.search_started(config)

    def search_progress(self, progress: float, planned_length: int = 0) -> None:
        """Record the progress of the search."""
        self._progress.record_progress(progress, planned_length)

    def trial_changed(self, status: TrialStatus) -> None:
        """Record the state of a trial, and show its held error lines if it failed."""
        self._progress.record_status(status)
        held_lines = self._held.pop(status.trial_id, ())
        if status.error:
            for text in tuple(held_lines):
                self._show(text)

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Show a line that a worker wrote to standard error."""
        if stream == "stderr":
            parts = [f"trial {info.trial_id}"] if self._progress.is_search else []
            if info.settings.slots_per_trial > 1:
                parts.append(f"rank={rank}")
            text = printable(f"[{' '.join(parts)}] {line}" if parts else line, keep_colours=True)
            if not self._is_brief or self._is_news(info.trial_id, line, text):
                self._show(text)

    def notice(self, text: str) -> None:
        """Show a message of the runner."""
        self._show(printable(text))

    def close(self) -> None:
        """No-op: nothing to release."""

    def _show(self, text: str) -> None:
        self._shown.append(text)
        # Written directly, because the console needs 0.3 ms per line and trials may print 100,000.
        self._console.file.write(f"{text}\n")
        self._console.file.flush()

    def _is_news(self, trial_id: int, line: str, text: str) -> bool:
        """Return whether to show a line now. Otherwise `text` may be held."""
        if line in self._known:
            return False
        if len(self._known) < _MAX_KNOWN_LINES:
            self._known.add(line)
        self._counts[trial_id] += _MAX_ERROR_LINES + 1 if line == _TRACEBACK else 1
        if self._counts[trial_id] <= _MAX_ERROR_LINES:
            return True
        self._held.setdefault(trial_id, deque(maxlen=_MAX_HELD_LINES)).append(text)
        return False


class PlainDisplay(QuietDisplay):
    """A display of plain lines for logs.

    For a single trial, it shows each validation and checkpoint, training metrics at most once per
    second, and the trial's output. For a search, it shows the start and end of each trial, errors,
    and summary lines at growing intervals. All other output is in the trials' logs.
    """

    def __init__(self, console: Console, *, is_verbose: bool = False) -> None:
        super().__init__(console, is_verbose=is_verbose)
        self._last_line_at = -math.inf
        self._next_summary_at = time.monotonic() + _SEARCH_INTERVAL_S
        self._interval_s = _SEARCH_INTERVAL_S
        self._last_summary = ""
        self._has_hidden = False

    def trial_changed(self, status: TrialStatus) -> None:
        """Show the end of a trial of a search."""
        trial = self._progress.get_trial_progress(status.trial_id)
        was_running = trial.status is not None and trial.status.state.value == "RUNNING"
        super().trial_changed(status)
        has_ended = was_running and status.state.value != "RUNNING"
        starts_again = status.state.value == "PAUSED" and status.error  # the runner reports it
        if self._progress.is_search and has_ended and not starts_again:
            self.notice(_describe_end(trial, status, self._progress))

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Show which trial starts, and from which checkpoint."""
        self._progress.get_trial_progress(info.trial_id).record_start(info)
        name = f"experiment {info.experiment_id}, trial {info.trial_id}"
        self.notice(f"{name}: {describe_start(info)}; process {pid}")

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Show an event of a worker."""
        trial = self._progress.update(info, event)
        report = describe_report(event)
        if self._is_brief or not report:
            return
        at = f"trial {info.trial_id}: batch {event.fields['steps_completed']}"
        if event.type != "training":
            suffix = " saved" if event.type == "checkpoint" else ""
            self.notice(f"{at}: {event.type}{suffix}: {report}")
        elif time.monotonic() - self._last_line_at >= _PLAIN_INTERVAL_S:
            self._last_line_at = time.monotonic()
            of = f"/{trial.length}" if trial.length else ""
            self.notice("  ".join([f"{at}{of}", *trial.pace, report]))

    def output(self, info: TrialInfo, stream: str, line: str, *, rank: int) -> None:
        """Show a line that a worker printed."""
        if stream == "stderr" or not self._is_brief:
            super().output(info, "stderr", line, rank=rank)
        elif not self._has_hidden:
            self._has_hidden = True
            self._show(
                "the output of trials is only in their logs; show it with:  "
                f"detcore trial logs {info.trial_id}"
            )

    def tick(self) -> None:
        """Print the summary line of a search when it is due."""
        now = time.monotonic()
        if self._progress.is_search and now >= self._next_summary_at:
            line = f"search: {self._progress.describe_search()}"
            if line != self._last_summary:  # nothing changes while trials start
                self.notice(line)
            self._last_summary = line
            self._interval_s = min(self._interval_s * _INTERVAL_GROWTH, _MAX_INTERVAL_S)
            self._next_summary_at = now + self._interval_s


class LiveDisplay(PlainDisplay):
    """A panel that is redrawn in place, while the output of the trials scrolls above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, is_verbose=True)
        self._lock = threading.Lock()
        self._lines: list[str] = []  # shown at the next redraw: each print redraws the panel
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def trial_started(self, info: TrialInfo, *, pid: int) -> None:
        """Show which trial starts. In a search, the table shows it."""
        if self._progress.is_search:
            self._progress.get_trial_progress(info.trial_id).record_start(info)
        else:
            super().trial_started(info, pid=pid)

    def notice(self, text: str) -> None:
        """Show a message of the runner and redraw, because the runner may be busy afterwards."""
        super().notice(text)
        self.tick()

    def event(self, info: TrialInfo, event: WorkerEvent) -> None:
        """Update the progress from a worker's event."""
        self._progress.update(info, event)

    def tick(self) -> None:
        """Show the lines since the last call, and redraw the panel."""
        with self._lock:
            self._print_lines()
            self._live.update(self._draw_panel(), refresh=True)

    def close(self) -> None:
        """Redraw, and leave the final state on the screen."""
        self.tick()
        self._live.stop()

    def _show(self, text: str) -> None:
        with self._lock:
            self._shown.append(text)
            self._lines.append(text)
            if len(self._lines) >= _MAX_LINES_AT_ONCE:
                self._print_lines()

    def _print_lines(self) -> None:
        if self._lines:
            lines = Text("\n").join(map(Text.from_ansi, self._lines))
            self._console.print(lines, soft_wrap=True)
            self._lines.clear()

    def _draw_panel(self) -> RenderableType:
        progress = self._progress
        if progress.is_search:
            return _draw_search(progress, self._console)
        started = [trial for trial in progress.trials.values() if trial.info is not None]
        return _draw_trial(started[-1]) if started else Text("")


def _draw_trial(trial: TrialProgress) -> Group:
    rows = Table.grid(padding=(0, 2))
    for kind in ("training", "validation", "checkpoint"):
        rows.add_row(Text(kind, style="dim"), Text(trial.reports.get(kind, "-")))
    amount = f"{trial.steps}/{trial.length or '?'} batches"
    name = f"trial {trial.trial_id}"
    return Group(_draw_bar(name, trial.steps / (trial.length or 1), amount, *trial.pace), rows)


def _draw_bar(name: str, done: float, *texts: str) -> Table:
    bar = Table.grid(padding=(0, 1))
    progress = ProgressBar(total=1.0, completed=done, width=30)
    bar.add_row(Text(name, style="bold"), progress, *map(Text, texts))
    return bar


def _draw_search(progress: RunProgress, console: Console) -> Group:
    """Return the current table, at most as high as the terminal.

    Running trials have priority, followed by the best trials. The rows are sorted by trial id.
    """
    trials = list(progress.trials.values())
    limit = max(3, min(_MAX_ROWS, console.height - _OTHER_LINES))
    ranked = sorted(
        trials, key=lambda trial: (trial.state != "running", progress.make_sort_key(trial))
    )
    visible = sorted(ranked[:limit], key=lambda trial: trial.trial_id)
    has_rungs = any(trial.status and trial.status.rung > 1 for trial in trials)
    columns = [
        NumberColumn("trial"),
        Column("state", is_state=True),
        Column("hyperparameters", wrap=True),
        NumberColumn("batches"),
        NumberColumn("rung" if has_rungs else ""),
        NumberColumn(f"best {progress.metric}"),
    ]
    room = max(10, console.width - _OTHER_COLUMNS)
    parts: list[RenderableType] = [
        _draw_bar(progress.searcher, progress.done),
        Text(printable(progress.describe_search()), no_wrap=True, overflow="ellipsis"),
        make_table(
            columns, [_format_cells(progress, t, room, has_rungs=has_rungs) for t in visible]
        ),
    ]
    if ranked[limit:]:
        hidden = Counter(trial.state for trial in ranked[limit:])
        listed = ", ".join(f"{count} {state}" for state, count in hidden.most_common())
        parts.append(Text(f"and {len(ranked[limit:])} more: {listed}", style="dim"))
    return Group(*parts)


def _format_cells(
    progress: RunProgress, trial: TrialProgress, room: int, *, has_rungs: bool
) -> list[str]:
    hparams = progress.describe_hparams(trial)
    of = f"/{trial.length}" if trial.length and trial.state == "running" else ""
    return [
        f"{_BEST} {trial.trial_id}" if trial is progress.best else str(trial.trial_id),
        trial.state,
        hparams if len(hparams) <= room else f"{hparams[: room - 1]}…",
        f"{trial.steps}{of}" if trial.info or trial.steps else "-",
        str(trial.status.rung) if trial.status and has_rungs else "",
        format_number(trial.best),
    ]


def _describe_end(trial: TrialProgress, status: TrialStatus, progress: RunProgress) -> str:
    best = "" if trial.best is None else f", best {progress.metric} {format_number(trial.best)}"
    hparams = progress.describe_hparams(trial)
    state = trial.state
    if state == "completed" and status.length < progress.max_length:
        state = f"stopped by the search at {status.length} of {progress.max_length} {progress.unit}"
    return (
        f"trial {trial.trial_id}: {state}{best}"
        f"{f' with {hparams}' if hparams else ''}; {progress.done:.0%} of the search is done"
    )
